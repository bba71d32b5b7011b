"""The parts that every role uses: an identity, an endpoint, calls and the DHT.

Nothing here imports torch, so a node that others join through starts fast.
"""

import asyncio
import contextlib
import dataclasses
import ipaddress
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from random import Random

from p2pswarm.base.errors import Late, LinkLost, NoRoute, SwarmError, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.gossip.directory_io import RunDirectory
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.guard.file_budget import (
    files_wanted,
    fitted,
    refusal,
    shortage,
    web_files,
    within_select,
)
from p2pswarm.net.os.addresses import least_scope
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.system_limits import WATCHED_MAX, raise_file_limit
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.node.stack.addresses import announced, places_to_listen, seeds, why_nobody
from p2pswarm.node.stack.known_cards import KnownCards
from p2pswarm.node.stack.node_page import NodePage
from p2pswarm.node.stack.reachability_service import ReachabilityService, circuit_files, relaying
from p2pswarm.reach.nat.dial_back_io import DialBackServer
from p2pswarm.reach.punch.puncher import Puncher
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.reservations_io import RelayKeeper
from p2pswarm.settings.node_config import NodeConfig
from p2pswarm.web.health import NodeHealth

BEYOND = ("192.0.2.1", 9)  # RFC 5737: an address that no host has; nothing is sent to it
LOOK_AGAIN_S = 1.0  # so soon we look again for a run that was not found

Say = Callable[[str], None]
"""Tells a node's user something, in a line."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeStack:
    """A node that is up."""

    config: NodeConfig
    identity: Identity
    endpoint: Endpoint
    rpc: LinkRpc
    dht: Dht
    cards: KnownCards
    """Addresses of peers, as far as they are known."""
    keeper: RelayKeeper
    """Keeps reservations at relays, if others cannot dial us."""
    reachability: ReachabilityService
    """Finds out how others reach us, and announces it."""
    directories: dict[bytes, RunDirectory] = field(default_factory=dict)
    """Those of the runs that this node takes part in; see `node/run/run_members.py`."""
    page: NodePage | None = None
    """What browsers show of this node, if it has a page."""
    health: NodeHealth = field(default_factory=lambda: NodeHealth("node", 0.0))
    """What probes ask; the role says whether it does its work."""

    def with_page(
        self, page: NodePage | None, health: NodeHealth, *, has_role: bool = False
    ) -> "NodeStack":
        """The same node, whose links a page shows, and of which probes learn that it is up."""
        if page is not None:
            page.follow(self.endpoint.links)
        health.on_join(has_role=has_role)
        return dataclasses.replace(self, page=page, health=health)


@contextlib.asynccontextmanager
async def open_stack(
    config: NodeConfig, identity: Identity, *, passing: bool = False
) -> AsyncIterator[NodeStack]:
    """Listen, join the DHT, and stay in it while this block lasts.

    `passing`: we are gone before anybody dials us, so nobody is asked how others reach us.
    """
    through = seeds(config)
    wanted = TransportConfig(
        bulk_connections=config.network.bulk_connections,
        background_share=config.network.state_share,
    )
    beside = circuit_files(config) + (web_files(wanted) if config.network.relay_web else 0)
    transport = within_files(wanted, beside, passing=passing)
    share = transport.links_max / wanted.links_max
    net = SocketNet()
    async with (
        WebNet(net) as web,
        Endpoint(identity, CircuitNet(web), transport, os.urandom, time.time) as endpoint,
        LinkRpc(endpoint) as rpc,
    ):
        bound = await _listen(endpoint, places_to_listen(config.listen))
        endpoint.announced = announced(bound, config, own_host)
        async with (
            relaying(endpoint, rpc, CircuitNet(web), config, share) as keeper,
            Puncher(endpoint, rpc, net, os.urandom) as puncher,
        ):
            endpoint.candidates.offered = puncher
            scope = least_scope(endpoint.contact.address, tuple(seed.address for seed in through))
            limits = DhtConfig(
                negative_s=LOOK_AGAIN_S, least_scope=scope, server=not config.network.relays
            )
            rng = Random(os.urandom(32))
            async with Dht(rpc, identity, limits, rng, time.time) as dht:
                endpoint.on_down = lambda link: dht.on_link_end(link.peer)
                DialBackServer(rpc, net, endpoint.seen_at, time.time)
                await _join(endpoint, dht, through)
                cards = KnownCards(endpoint)
                reachability = ReachabilityService(
                    endpoint, rpc, dht, keeper, cards, config, scope, puncher.view
                )
                async with asyncio.TaskGroup() as tasks:
                    lasting = [tasks.create_task(dht.maintain())]
                    if not passing:
                        lasting.append(tasks.create_task(reachability.run()))
                    yield NodeStack(
                        config, identity, endpoint, rpc, dht, cards, keeper, reachability
                    )
                    for task in lasting:
                        task.cancel()


def within_files(
    transport: TransportConfig, beside: int = 0, *, passing: bool = False
) -> TransportConfig:
    """The same settings, with limits that fit into the files that this process may open.

    `beside`: how many files something else takes; where all are too few, it gets fewer, too. Raises
    Unusable if they are too few for a node that stays, that is, one that is not `passing`.
    """
    if WATCHED_MAX is not None:
        transport = within_select(transport, WATCHED_MAX, beside)
    files = raise_file_limit(files_wanted(transport) + beside)
    if not passing and (why := refusal(files, transport, beside)):
        raise Unusable(why)
    possible = fitted(transport, files, beside)
    if possible is not transport and not passing:
        log.warning("%s", shortage(files, transport, beside))
    return possible


async def _listen(endpoint: Endpoint, places: tuple[Address, ...]) -> Address:
    """Listen at the first of `places` that is possible."""
    *first, last = places
    for place in first:
        try:
            return await endpoint.listen(place)
        except Unusable as error:
            log.info("%s", error)
    return await endpoint.listen(last)


async def _join(endpoint: Endpoint, dht: Dht, through: tuple[Contact, ...]) -> None:
    """Join the swarm through any of the seeds; raises Unusable if none answers."""
    try:
        await dht.bootstrap(through)
    except NoRoute:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_why_not(endpoint, seed)) for seed in through]
        raise why_nobody([each.result() for each in asked]) from None


async def _why_not(endpoint: Endpoint, seed: Contact) -> SwarmError:
    """Return why a seed cannot be joined."""
    try:
        link = await endpoint.link(seed)
    except SwarmError as error:
        return error
    if said := endpoint.bans.banned_by.get(link.peer.raw):
        return LinkLost(f"{seed.address}: {said}")
    return Late(f"{seed.address}: {link.peer.short} did not answer in time")


def own_host(towards: tuple[str, ...]) -> str:
    """This host's address towards `towards`, or towards the Internet if they are on this host."""
    for host in (*towards, BEYOND[0]):
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((host, BEYOND[1]))  # chooses a route; sends nothing
            own = str(probe.getsockname()[0])
            if not ipaddress.ip_address(own).is_loopback:
                return own
    return "127.0.0.1"
