"""What every role stands on: an identity, an endpoint, calls and the DHT.

Nothing here imports torch: a node that others join through starts in the time that its own
code takes to load.

Units:   seconds.
Errors:  Unusable when we cannot listen or nobody answers; one line with the remedy.
"""

import asyncio
import contextlib
import ipaddress
import os
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from random import Random

from p2pswarm.config import NodeConfig
from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.node import Dht
from p2pswarm.errors import NoRoute, SwarmError, Unusable
from p2pswarm.ids import Address, Contact
from p2pswarm.net.sockets import SocketNet
from p2pswarm.rpc.link_rpc import LinkRpc
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.endpoint import Endpoint

USUAL_PORT = 4000
EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104 - all of this host's addresses
BEYOND = ("192.0.2.1", 9)  # RFC 5737: an address that is nobody's; nothing is sent to it
LOOK_AGAIN_S = 1.0  # a run that was not there is looked for again this soon


@dataclass(frozen=True, slots=True)
class NodeStack:
    """A node that is up."""

    config: NodeConfig
    identity: Identity
    endpoint: Endpoint
    rpc: LinkRpc
    dht: Dht


@contextlib.asynccontextmanager
async def open_stack(config: NodeConfig, identity: Identity) -> AsyncIterator[NodeStack]:
    """Listen, join the DHT, and stay in it for this block."""
    seeds = tuple(Contact(None, address(text, "bootstrap")) for text in config.bootstrap)
    transport = TransportConfig(bulk_connections=config.network.bulk_connections)
    endpoint = Endpoint(identity, SocketNet(), transport, os.urandom)
    async with endpoint:
        bound = await _listen(endpoint, config.listen)
        endpoint.announced = announced(bound, config)
        limits = DhtConfig(negative_s=LOOK_AGAIN_S)
        rng = Random(os.urandom(32))
        async with LinkRpc(endpoint) as rpc, Dht(rpc, identity, limits, rng, time.time) as dht:
            await _join(endpoint, dht, seeds)
            async with asyncio.TaskGroup() as tasks:
                upkeep = tasks.create_task(dht.maintain())
                yield NodeStack(config, identity, endpoint, rpc, dht)
                upkeep.cancel()


def address(text: str, key: str) -> Address:
    """An address that the user gave."""
    try:
        return Address.parse(text)
    except ValueError as error:
        raise Unusable(f"{key}: {error}") from error


async def _listen(endpoint: Endpoint, text: str) -> Address:
    """Where the user says, or at the usual port, or at any free one."""
    if text:
        return await endpoint.listen(address(text, "listen"))
    try:
        return await endpoint.listen(Address("0.0.0.0", USUAL_PORT))  # noqa: S104
    except Unusable:
        return await endpoint.listen(Address("0.0.0.0", 0))  # noqa: S104


async def _join(endpoint: Endpoint, dht: Dht, seeds: tuple[Contact, ...]) -> None:
    """Meet the swarm through any of the seeds; if none answers, say why."""
    try:
        await dht.bootstrap(seeds)
    except NoRoute:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(_why_not(endpoint, seed)) for seed in seeds]
        reasons = "; ".join(each.result() for each in asked)
        raise Unusable(
            f"no bootstrap address answers: {reasons}; is a node running there, and its port open?"
        ) from None


async def _why_not(endpoint: Endpoint, seed: Contact) -> str:
    """What stands between us and a seed, in a few words."""
    try:
        link = await endpoint.link(seed)
    except SwarmError as error:
        return str(error)
    return f"{seed.address}: {link.peer.short} did not answer in time"


def announced(bound: Address, config: NodeConfig) -> Address:
    """What others dial: as the user says, or this host's address on the way to the swarm."""
    if config.network.announce:
        return address(config.network.announce, "network.announce")
    if bound.host not in EVERYWHERE:
        return bound
    host = own_host(tuple(address(text, "bootstrap").host for text in config.bootstrap))
    return Address(host, bound.port)


def own_host(towards: tuple[str, ...]) -> str:
    """Our address on the way to `towards`, or to the world if they are here too."""
    for host in (*towards, BEYOND[0]):
        with contextlib.suppress(OSError), socket.socket(type=socket.SOCK_DGRAM) as probe:
            probe.connect((host, BEYOND[1]))  # chooses a route; sends nothing
            own = str(probe.getsockname()[0])
            if not ipaddress.ip_address(own).is_loopback:
                return own
    return "127.0.0.1"
