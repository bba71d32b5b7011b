"""Endpoint: keeps one link to each peer in use, whoever dialled it.

Errors:  DialFailed, BadHandshake and LinkLost from `link`; Unusable from `listen`.
Source:  docs/wire.md.
"""

import asyncio
from collections.abc import Callable, Iterable

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.base.tasks import Closing, OwnedTasks
from p2pswarm.net.bulk.channel_set import BulkArrival
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.cards.node_cards import CardContents, NodeCards
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.acceptor import Acceptor, Upgrade
from p2pswarm.net.endpoint.dial_checks import bulk_allowed, introduced_port, meet, own_contact
from p2pswarm.net.endpoint.dialler import Dialler
from p2pswarm.net.endpoint.handshaker import Handshaker
from p2pswarm.net.endpoint.joiner import BulkJoiner
from p2pswarm.net.endpoint.link_io import Link, NodeShares
from p2pswarm.net.endpoint.link_paths import ControlPath
from p2pswarm.net.endpoint.link_request import session_of
from p2pswarm.net.endpoint.link_table import LinkEntry, LinkTable
from p2pswarm.net.endpoint.path_search import CardCandidates
from p2pswarm.net.endpoint.preface import (
    OBSERVATION_ANSWER_BYTES,
    SEAL_KEY_BYTES,
    ObservationSeals,
    observation_request,
    read_observation,
)
from p2pswarm.net.endpoint.resumer import Resumer
from p2pswarm.net.guard.bans import PeerBans
from p2pswarm.net.guard.connection_limits import LinkSlots
from p2pswarm.net.link.control_records import only_record
from p2pswarm.net.link.events import BulkWanted, EndpointEvent, PathWanted, StreamEvent
from p2pswarm.net.link.path import (
    DialledCandidate,
    Path,
    PathCandidate,
    address_of,
)
from p2pswarm.net.os.base import Connection, Listener, Net

__all__ = ["BulkArrival", "Endpoint", "Link"]


class Endpoint(Closing):
    """This node's end of every link. Use it as a context manager, or `close` it.

    `dialler.py` and `acceptor.py` do the handshakes, `joiner.py` joins bulk connections to links.
    Decisions: `admission`, `link_table`, `guard/slots`.
    """

    on_event: Callable[[Link, StreamEvent], None]
    """Called in the event loop with everything that happens on links."""
    on_card: Callable[[Link, Card], None]
    """Called in the event loop with each card that the peer of a link should be told."""
    on_up: Callable[[Link], None]
    """Called in the event loop with each link that comes up."""
    on_down: Callable[[Link], None]
    """Called in the event loop with each link that was up and has ended."""

    def __init__(
        self,
        identity: Identity,
        net: Net,
        config: TransportConfig,
        entropy: Callable[[int], bytes],
        wall_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`entropy`: returns that many random bytes, as `os.urandom` does.

        `wall_s`: gives seconds since 1970, for the numbers of our cards. Without it they begin at
        0, and peers that remember cards of an earlier process first have to tell us so.
        """
        self.peer_id = identity.peer_id
        self._net = net
        self._config = config
        self._shared = NodeShares(UploadShare(net.lock(), config.background_share))
        self._table: LinkTable[Link] = LinkTable()
        self.links, self.reach = self._table.all, self._table.reach
        self._slots: LinkSlots[Link] = LinkSlots(config.links_max, lambda link: link.use)
        self._tasks = OwnedTasks()
        self._handshaker = Handshaker(
            identity, config, entropy, lambda: introduced_port(self.contact), lambda: self.card
        )
        self._cards: NodeCards[Link] = NodeCards(identity)
        self.cards = self._cards.book
        self._announced: Address | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._wall_s = wall_s
        self.candidates = CardCandidates(
            net,
            self.cards,
            self._cards.claims,
            lambda: (*self.listening, self.contact.address),
            _now_s,
        )
        """The candidates for new links and for those that have lost their path."""
        self._dialler = Dialler(
            self.candidates, config, self._handshaker, self._tasks, self._link_by
        )
        self._sessions: dict[bytes, Link] = {}
        self._joiner = BulkJoiner(self._sessions, config, entropy)
        self._resumer = Resumer(self._sessions, config, entropy, self._tasks, self.candidates)
        self.seals = ObservationSeals(entropy(SEAL_KEY_BYTES))
        """Shows to ourselves where we have seen others."""
        self.acceptor = Acceptor(
            config,
            self._handshaker,
            self._tasks,
            self.seals,
            self._link_of,
            self._joiner.admit,
            self._resumer.admit,
        )
        """The connections that arrive; set what takes over those that open no link."""
        self.bans = PeerBans()
        self._listeners: list[Listener] = []
        self._observed_host = ""
        self._open_links: dict[Link, None] = {}
        self._quiet = asyncio.Event()
        self._closing = False
        self.on_event = _ignore
        self.on_card = _ignore
        self.on_up = _ignore
        self.on_down = _ignore

    @property
    def announced(self) -> Address | None:
        """The address that others dial, if it differs from the one that we listen on."""
        return self._announced

    @announced.setter
    def announced(self, address: Address | None) -> None:
        self._announced = address
        self._tell_card()

    @property
    def contact(self) -> Contact:
        """Our own contact, as others should dial it."""
        listening = self._listeners[0].address if self._listeners else None
        return own_contact(self.peer_id, self._announced, listening, self._observed_host)

    @property
    def listening(self) -> tuple[Address, ...]:
        """Return where we listen; the first place is the one that is announced."""
        return tuple(listener.address for listener in self._listeners)

    @property
    def card(self) -> Card:
        """Our own card, as it is now: where we were told to be, or else where we listen."""
        return self._cards.ours(self.contact, int(1000 * self._wall_s()))

    def announce(
        self,
        direct: Iterable[Address],
        mapped: Iterable[Address] = (),
        relays: Iterable[Contact] = (),
        flags: CardFlags = CardFlags.NONE,
    ) -> None:
        """Say from now on how we can be dialled; ValueError if others would not take that."""
        said = CardContents(tuple(direct), tuple(mapped), tuple(relays), flags)
        self._cards.announce(said, int(1000 * self._wall_s()))
        self._tell_card()

    def learn_card(self, peer: PeerId, data: bytes) -> bytes:
        """Take a card that a peer has sent over its link; BadMessage if it is none of ours or its.

        Returns the peer's card that counts, if the peer does not know it; else empty bytes.
        """
        link = self._table.best(peer)
        if link is None:
            return b""
        heard = self._cards.on_card(link, Contact(peer, link.remote), data, _now_s())
        if heard.moved:
            self._resumer.climb(link)
        if heard.outdone:
            self._tell_card()
        return heard.answer

    async def listen(self, at: Address, upgrade: Upgrade | None = None) -> Address:
        """Accept links at `at`, where port 0 means any free port. Returns the bound address.

        `upgrade`: what each connection that arrives there has to become first.
        """
        listener = await self._net.listen(at)
        self._listeners.append(listener)
        self.acceptor.serve(listener, upgrade)
        return listener.address

    def accept(self, connection: Connection) -> None:
        """Treat a connection like one that arrived where we listen: it came by another way."""
        if self._closing:
            connection.close()
        else:
            self.acceptor.accept(connection)

    async def link(self, to: Contact) -> Link:
        """The link to a peer: one that is up, or a new one; LinkLost if this endpoint is closed."""
        while (found := self._table.find(to)) is not None:
            if found.path is not None:
                return found
            offered = DialledCandidate(self._net, to.address) if to.address.port else None
            await self._resumer.wait_until_settled(found, offered)
        if self._closing:
            raise LinkLost("this endpoint is closed")
        self.bans.check_dial(to.peer, _now_s())
        return await self._dialler.link(to)

    def seen_at(self, peer: PeerId) -> Address | None:
        """The other end of the link to a peer; None if no link is up, or if it is a relay."""
        link = self._table.best(peer)
        return None if link is None or link.remote.circuit else link.remote

    def dialled_at(self, peer: PeerId) -> Address | None:
        """Return where a peer can be dialled, as the link to it tells; None as for `seen_at`.

        The other end of a link that the peer has dialled has a port that changes with each link.
        """
        link = self._table.best(peer)
        known = None if link is None or link.remote.circuit else link.contact.address
        return known if known is not None and known.port else None

    async def outside(self, at: Address) -> Address:
        """Return where the peer at `at` sees a call from our listening port come from."""
        connection = await self._net.dial(at, self._listeners[0].address.port)
        try:
            await connection.send(observation_request())
            answer = await connection.receive(OBSERVATION_ANSWER_BYTES)
            return read_observation(answer).address
        finally:
            connection.close()

    async def move(self, link: Link, candidate: PathCandidate) -> None:
        """Let a link go on by another candidate; if that fails, raise why and keep its path."""
        await self._resumer.move(link, candidate)

    async def close(self) -> None:
        """End every link and every task of ours."""
        self._closing = True
        self.acceptor.close()
        await self._tasks.close()
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        if self._telling is not None:
            self._telling.cancel()
        for link in list(self._open_links):
            link.close()
        while self._open_links:
            self._quiet.clear()
            await self._quiet.wait()

    # called by links

    def on_link_event(self, link: Link, event: EndpointEvent) -> None:
        """Act on an event: the link is up, or needs bulk connections."""
        if isinstance(event, BulkWanted):
            joined = link.stats.bulk_connections
            for _ in range(bulk_allowed(event.connections, joined, link.path)):
                self._tasks.spawn(self._joiner.dial(link))
        elif isinstance(event, PathWanted):
            self._resumer.want(link)
        else:
            self._came_up(link)

    def on_link_end(self, link: Link) -> None:
        """Stop using a link that has ended."""
        self._table.remove(link.peer, link)
        self._slots.remove(link, link.peer)
        self._joiner.remove(link)
        self._sessions.pop(session_of(link.session.exporter), None)
        if link in self._open_links:
            self._cards.on_link_end(link, link.peer)
            self.on_down(link)

    def on_channel_end(self, link: Link, number: int) -> None:
        """Note that a bulk connection of a link is closed."""
        self._joiner.leave(link, number)

    def on_release(self, link: Link) -> None:
        """Note that the last socket of a link is closed; it may have ended before it came up."""
        self._open_links.pop(link, None)
        self._quiet.set()

    def _came_up(self, link: Link) -> None:
        """Put a new link into the table, and give it to the dials that wait for its peer."""
        session = link.session
        self._open_links[link] = None
        self._slots.add(link, link.peer, link.remote.host)
        self._sessions[session_of(session.exporter)] = link
        dialler = self.peer_id if session.dialled else link.peer
        now_s = asyncio.get_running_loop().time()
        verdict = self._table.add(
            LinkEntry(link, link.peer, session.contact.address, dialler, session.incarnation, now_s)
        )
        for other in verdict.dead:
            other.fail(LinkLost(f"link to {link.peer.short}: its process was started again"))
        for other in verdict.drain:  # should the better one end first, we dial again
            self._table.remove(other.peer, other)
            other.leave()
        self._dialler.on_link(self._table.best(link.peer) or link)
        newer = self._cards.on_link(link, session.card, session.introduced, self.card)
        self.on_up(link)
        if newer is not None:  # of an earlier process, whose clock was ahead
            self.on_card(link, newer)
        self._tell_card()

    async def _link_by(
        self, connection: Connection, handshake: Handshake, candidate: PathCandidate
    ) -> Link:
        """A link of a connection by a candidate that we took."""
        path = Path(candidate.kind, connection.remote, candidate)
        dialled = address_of(candidate) or Address(connection.remote.host, 0)
        link = await self._make_link(connection, handshake, path, dialled)
        if dialled.port:
            self._cards.claims.confirm(Contact(link.peer, dialled), _now_s())
        return link

    async def _link_of(self, connection: Connection, handshake: Handshake) -> Link:
        """A link of a connection that the peer made."""
        path = Path(None, connection.remote, None)
        return await self._make_link(connection, handshake, path, None)

    async def _make_link(
        self, connection: Connection, handshake: Handshake, path: Path, dialled: Address | None
    ) -> Link:
        """A link of a connection, `dialled` or accepted; returns the best link to its peer."""
        session, introduction = meet(handshake, self.peer_id, connection.remote, dialled)
        if notice := self.bans.notice(session.peer, _now_s()):
            await connection.send(only_record(session.keys, notice, _now_s()))
        self.bans.check_peer(session.peer, _now_s())
        self._observed_host = introduction.observed_host or self._observed_host
        for other in self._slots.make_room(session.peer):
            other.close(f"made way for another, {len(self._open_links)} are up")
        link = Link(session, self._config, self, self._net.lock, self._shared)
        self._cards.learn(session.card, connection.remote)
        await connection.become_control(ControlPath(link, path))
        self._resumer.climb(link)
        return self._table.best(link.peer) or link

    def _tell_card(self) -> None:
        """Tell our card to whoever does not have it, now or as soon as it may be."""
        exchange = self._cards.exchange
        if self._closing or not len(exchange):
            return
        ours = (card := self.card).data
        for link in exchange.to_tell(ours, _now_s()):
            self.on_card(link, card)
        if self._telling is not None:
            self._telling.cancel()
        at_s = exchange.next_deadline_s(ours)
        loop = asyncio.get_running_loop()
        self._telling = None if at_s is None else loop.call_at(at_s, self._tell_card)


def _ignore(*_: object) -> None:
    """Until they are set, nobody waits for links, events or cards."""


def _now_s() -> float:
    return asyncio.get_running_loop().time()
