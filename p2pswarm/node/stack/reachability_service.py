"""ReachabilityService: how others reach this node is found out, arranged and announced.

Source:  docs/reachability.md, sections 6 and 7.
"""

import asyncio
import contextlib
import importlib
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Protocol

from p2pswarm.base.errors import Unusable
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.cards.card import (
    DIRECT_MAX,
    RELAYS_MAX,
    AddressKind,
    Card,
    CardFlags,
    can_be_said,
)
from p2pswarm.net.cards.node_cards import CardContents
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.os.addresses import Scope, believable
from p2pswarm.net.os.local_network import family_of, is_here
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.node.stack.addresses import given, relays
from p2pswarm.node.stack.known_cards import KnownCards
from p2pswarm.reach.nat.announcement import (
    PEERS_HERE,
    Announcement,
    Announcer,
    ReachabilityEvents,
    on_this_machine_alone,
)
from p2pswarm.reach.nat.reachability import Belief, ReachabilityBelief, State
from p2pswarm.reach.punch.observed_addresses_io import OutsideView
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.relay import Relay, RelayRates
from p2pswarm.reach.relay.relay_table import RelayLimits
from p2pswarm.reach.relay.reservations import RelayCandidate, chosen
from p2pswarm.reach.relay.reservations_io import RelayKeeper
from p2pswarm.settings.node_config import NodeConfig

REACHABLE_S = 10.0  # a dial and a handshake, each with its own limit
SOCKETS = 2  # of a circuit
BYTES_PER_MB = 1e6


def is_relay(config: NodeConfig) -> bool:
    """Return whether this node passes on bytes; one that is behind relays itself does not."""
    return config.network.relay and not config.network.relays


def circuit_files(config: NodeConfig) -> int:
    """The number of open files that circuits may take."""
    return SOCKETS * RelayLimits().circuits_max if is_relay(config) else 0


@contextlib.asynccontextmanager
async def relaying(
    endpoint: Endpoint,
    rpc: LinkRpc,
    net: CircuitNet,
    config: NodeConfig,
    share: float = 1.0,
    reachable_s: float = REACHABLE_S,
) -> AsyncIterator[RelayKeeper]:
    """Be a relay, or reachable through those that the user has named, while this block lasts.

    The value keeps reservations; without relays of the user it has none until it is offered some.

    `share`: of the usual circuits, where this process may open few files. `reachable_s`: so long
    relays have to take us.
    """
    through = relays(config)
    async with contextlib.AsyncExitStack() as blocks:
        keeper = await blocks.enter_async_context(RelayKeeper(endpoint, rpc, net))
        if through:
            await _reach(keeper, endpoint, through, reachable_s)
        elif is_relay(config):
            rates = RelayRates(total_bytes_per_s=config.network.relay_mb_s * BYTES_PER_MB)
            relay = Relay(endpoint, rpc, os.urandom, fitted_limits(share), rates)
            await blocks.enter_async_context(relay)
        await _listen_elsewhere(endpoint, config, blocks)
        yield keeper


def fitted_limits(share: float) -> RelayLimits:
    """The usual limits, with a share of the circuits."""
    usual = RelayLimits()
    return replace(
        usual,
        circuits_max=max(1, int(usual.circuits_max * share)),
        network_circuits_max=max(1, int(usual.network_circuits_max * share)),
    )


async def _reach(
    keeper: RelayKeeper, endpoint: Endpoint, through: tuple[Contact, ...], reachable_s: float
) -> None:
    """Be reachable through some of these relays, and announce the first one's address."""
    keeper.offer(through)
    try:
        async with asyncio.timeout(reachable_s):
            await keeper.reachable()
    except TimeoutError:
        raise Unusable(
            f"network.relays: none of {', '.join(str(each.address) for each in through)} takes us"
            f" within {reachable_s:g} s: {keeper.trouble}"
        ) from None
    endpoint.announced = keeper.addresses[0]


async def _listen_elsewhere(
    endpoint: Endpoint, config: NodeConfig, blocks: contextlib.AsyncExitStack
) -> None:
    """Listen on the second port and for WebSocket, if the user wants that."""
    network, host = config.network, endpoint.listening[0].host
    if network.relay_port:
        try:
            await endpoint.listen(Address(host, network.relay_port))
        except Unusable as error:
            raise Unusable(f"network.relay_port: {error}") from error
    if network.relay_web:
        web_socket = await asyncio.to_thread(importlib.import_module, "p2pswarm.net.os.web_socket")
        upgrade = await blocks.enter_async_context(web_socket.WebUpgrade(network.relay_certificate))
        try:
            await endpoint.listen(Address(host, network.relay_web), upgrade)
        except Unusable as error:
            raise Unusable(f"network.relay_web: {error}{_remedy(network.relay_web)}") from error


def _remedy(port: int) -> str:
    privileged = 1024
    return (
        "; ports below 1024 are root's: choose another, or let this Python have them with setcap"
        if port < privileged
        else ""
    )


MEMBERS = ("stage", "trainer")
OTHERS_S = 10.0  # a first round of dial-backs is over then
SPARE_RELAYS = 1  # if the road between two members fails, a third one joins them


class ReachabilitySource(Protocol):
    """`Reachability`, whose module is loaded when it is needed."""

    on_change: Callable[[Belief], None]
    on_link: Callable[[Link], None]
    beliefs: dict[int, ReachabilityBelief]

    @property
    def settled(self) -> bool:
        """Return whether a router has been asked for a port, if that is wanted."""
        ...

    async def run(self) -> None:
        """Run until cancelled."""
        ...


def contents_of(
    announcement: Announcement, card_of: Callable[[PeerId], Card | None]
) -> CardContents:
    """Return what a card can say of it: no WebSocket, and no more than others take.

    `card_of`: the cards of the relays, for their addresses of the other family.
    """
    direct = tuple(filter(can_be_said, announcement.direct))[:DIRECT_MAX]
    mapped = tuple(filter(can_be_said, announcement.mapped))[: DIRECT_MAX - len(direct)]
    relays = [each for each in announcement.relays if each.peer and can_be_said(each.address)]
    both = [where for relay in relays[:RELAYS_MAX] for where in _in_both(relay, card_of)]
    flags = CardFlags.RELAY if announcement.relay else CardFlags.NONE
    if not (direct or mapped):
        flags |= CardFlags.CLIENT
    return CardContents(direct, mapped, tuple(both), flags)


def _in_both(relay: Contact, card_of: Callable[[PeerId], Card | None]) -> list[Contact]:
    """A relay where we have dialled it, and where who has no such addresses can dial it.

    Only a public address is told of a relay at a public one: others could not use it, and nobody
    should be led into a network by a stranger's card.
    """
    card = None if relay.peer is None else card_of(relay.peer)
    if card is None or not believable(relay.address, Scope.PUBLIC):
        return [relay]
    kinds = {AddressKind.IPV4, AddressKind.IPV6, AddressKind.MAPPED}
    named = [each.address for each in card.direct if each.kind in kinds]
    family = family_of(relay.address.host)
    others = [at for at in named if family_of(at.host) != family and believable(at, Scope.PUBLIC)]
    return [relay, *(Contact(relay.peer, at) for at in others[:1])]


def _candidate(at: Contact, card: Card, rtt_s: float = 0.0) -> list[RelayCandidate]:
    """A peer that we have found somewhere, if it says that it is a relay."""
    mapped = [each.address for each in card.direct if each.kind == AddressKind.MAPPED]
    relay = bool(card.flags & CardFlags.RELAY)
    return [RelayCandidate(at, at.address in mapped, rtt_s)] if relay else []


class ReachabilityService:
    """The ways by which others reach one node; `run` keeps finding out.

    `reach/nat/reachability_io.py` finds out, `reach/relay/reservations_io.py` keeps reservations
    while they are needed, `reach/nat/announcement.py` decides what is told. Here they meet.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rpc: Rpc,
        dht: Dht,
        keeper: RelayKeeper,
        cards: KnownCards,
        config: NodeConfig,
        least: Scope,
        view: OutsideView,
    ) -> None:
        """The endpoint listens already; `least`: the smallest scope of addresses we believe.

        `view`: what is told to who punches holes.
        """
        self._endpoint = endpoint
        self._dht = dht
        self._cards = cards
        self.announced = Signal()
        """Fired when this node's card is another."""
        self._rpc = rpc
        self._keeper = keeper
        self._config = config
        self._least = least
        self._bound = endpoint.listening[0]
        self._alone = on_this_machine_alone(self._bound)
        self._relays_wanted = 0
        self._belief, self._settled = Belief(State.ABSENT), False
        self._news = ReachabilityEvents(self._bound.port)
        self._said: CardContents | None = None
        self._say: Callable[[str], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._others: asyncio.TimerHandle | None = None
        self._looked = False
        """True after the first look for peers on other machines: some come a moment later."""
        self._loop = asyncio.get_running_loop()
        self._announcer = Announcer(
            fixed=self._fixed(),
            through_relays=bool(config.network.relays),
            serves=is_relay(config),
            spare=SPARE_RELAYS if config.role in MEMBERS else 0,
        )
        self._view = view
        view.reachable = lambda: self._belief.reachable != "no"
        view.keep_seen_at(lambda: keeper.relays)
        self._keeper.on_change = self._on_relays
        cards.watch(self._on_card)
        self._on_relays()

    def _fixed(self) -> Address | None:
        """The address that the user names, or the only one of a node that is for this machine."""
        network = self._config.network
        if network.announce:
            return given(network.announce, "network.announce")
        return self._bound if self._alone and not network.relays else None

    def tell(self, say: Callable[[str], None]) -> None:
        """Say in a line what is known, now and whenever it changes."""
        self._say = say
        self._tell()
        network = self._config.network
        if self._alone and not network.announce and not network.relays:
            say(self._news.lone_line(f"from this machine alone: it listens on {self._bound.host}"))

    async def run(self) -> None:
        """Find out, until cancelled."""
        if self._alone:
            return
        # aiohttp is slow to load, and nobody waits for a router before the swarm is joined
        name = "p2pswarm.reach.nat.reachability_io"
        module = await asyncio.to_thread(importlib.import_module, name)
        maps = self._config.network.map_ports
        reach = module.Reachability(
            self._endpoint, self._rpc, self._bound, os.urandom, map_ports=maps
        )
        await self.follow(reach)

    async def follow(self, reach: ReachabilitySource) -> None:
        """Announce what `reach` finds out while it runs, until cancelled."""

        def changed(belief: Belief) -> None:
            self._belief, self._settled = belief, reach.settled
            found = [each.finding for each in reach.beliefs.values()]
            self._announcer.on_findings(found, self._loop.time())
            self._drain()

        reach.on_change, reach.on_link = changed, self._on_link
        for link in self._endpoint.links():
            self._on_link(link)
        self._look_for_others()
        try:
            await reach.run()
        finally:
            if self._others is not None:
                self._others.cancel()
            if self._timer is not None:
                self._timer.cancel()

    def _look_for_others(self) -> None:
        """Say why nothing is known, once there are peers and all of them are on this machine."""
        self._others = self._loop.call_later(OTHERS_S, self._look_for_others)
        if self._looked and self._say is not None:
            peers = [link.remote.host for link in self._endpoint.links()]
            line = self._news.lone_line(PEERS_HERE) if peers and all(map(is_here, peers)) else ""
            if line:
                self._say(line)
        self._looked = True

    def _on_relays(self) -> None:
        self._view.look_again()
        self._announcer.on_relays(self._keeper.relays, self._loop.time())
        self._drain()
        self._offer_relays()

    def _on_card(self, peer: bytes) -> None:
        """A peer has another card."""
        said = self._announcer.current
        ours = any(relay.peer and relay.peer.raw == peer for relay in said.relays)
        if ours and contents_of(said, self._endpoint.cards.of) != self._said:
            self._announce(said)
        self._offer_relays()

    def _on_link(self, link: Link) -> None:
        if not (link.remote.circuit or link.remote.web):
            self._announcer.on_link(self._loop.time())
        self._drain()
        self._offer_relays()

    def _drain(self) -> None:
        """Do what the announcer asks for, and set the timer."""
        for event in self._announcer.drain():
            if isinstance(event, Announcement):
                self._announce(event)
                continue
            self._relays_wanted = event.count
            self._keeper.want(event.count)
            self._offer_relays()
        if self._timer is not None:
            self._timer.cancel()
        at_s = self._announcer.next_deadline_s()
        self._timer = None if at_s is None else self._loop.call_at(at_s, self._on_deadline)
        self._tell()

    def _on_deadline(self) -> None:
        self._announcer.on_deadline(self._loop.time())
        self._drain()

    def _announce(self, announcement: Announcement) -> None:
        best = announcement.best(self._endpoint.peer_id)
        if best is not None:
            self._endpoint.announced = best
        self._said = contents = contents_of(announcement, self._endpoint.cards.of)
        self._endpoint.announce(contents.direct, contents.mapped, contents.relays, contents.flags)
        self._cards.ours_has_changed()
        self.announced.fire()

    def _offer_relays(self) -> None:
        """Offer the peers that we have met as relays, unless the user has named some."""
        if self._config.network.relays:
            return
        held = [relay.peer for relay in self._keeper.relays if relay.peer is not None]
        if len(held) >= self._relays_wanted:
            return
        self._keeper.offer(chosen(self._candidates(), self._endpoint.peer_id, held))

    def _candidates(self) -> list[RelayCandidate]:
        """The peers that say that they are relays, and answered a dial of ours."""
        found: list[RelayCandidate] = []
        for link in self._endpoint.links():
            at, card = link.session.remote, self._endpoint.cards.of(link.peer)
            if link.session.dialled and card is not None and believable(at, self._least):
                rtt_s = 0.0 if link.path is None or link.doubted else link.rtt_s
                found += _candidate(Contact(link.peer, at), card, rtt_s)
        for neighbour in self._dht.table:  # each is there where we have found it ourselves
            peer = neighbour.contact.peer
            card = None if peer is None else self._endpoint.cards.of(peer)
            if card is not None and believable(neighbour.contact.address, self._least):
                found += _candidate(neighbour.contact, card)
        return found

    def _tell(self) -> None:
        if self._say is None:
            return
        relayed = next(iter(self._keeper.addresses), None)
        if line := self._news.line(self._belief, settled=self._settled, relayed=relayed):
            self._say(line)
