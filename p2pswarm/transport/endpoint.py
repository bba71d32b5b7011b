"""Endpoint: our end of every link: dials, accepts, and keeps one link a peer in use.

The first bytes of a connection tell whether it opens a link or joins bulk to one.
Whoever stalls, speaks garbage or belongs elsewhere costs one bounded place in the
gate and one line in the log.

Units:   bytes, seconds.
Errors:  DialFailed, BadHandshake from `link`, one line each; Unusable from `listen`.
Source:  docs/wire.md.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from types import TracebackType
from typing import Self

from p2pswarm.crypto.handshake import HELLO_BYTES, Handshake, Hello, StaticKey
from p2pswarm.crypto.handshake import MAGIC as CONTROL_MAGIC
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.noise_xx import Role
from p2pswarm.crypto.suite import KEY_BYTES
from p2pswarm.errors import BadHandshake, DialFailed, LinkLost, PathError, SwarmError
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.base import Connection, Listener, Net
from p2pswarm.transport.bulk import join
from p2pswarm.transport.bulk.channel import BulkKeys
from p2pswarm.transport.bulk.channels import BulkArrival
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.events import BulkWanted, EndpointEvent, StreamEvent
from p2pswarm.transport.handshake_limiter import HandshakeLimiter
from p2pswarm.transport.link_io import Link
from p2pswarm.transport.link_table import LinkEntry, LinkTable
from p2pswarm.transport.session import INCARNATION_BYTES, Introduction, Session, read_introduction
from p2pswarm.wire.message import encode

__all__ = ["BulkArrival", "Endpoint", "Link"]

LENGTH_BYTES = 2  # before each message of the handshake
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  bound to, and no place to dial
_log = logging.getLogger(__name__)


class Endpoint:
    """Our end of every link. Use it as a context manager, or `close` it."""

    on_event: Callable[[Link, StreamEvent], None]
    """Told everything that happens on links, from inside the event loop."""
    announced: Address | None
    """Where others dial us, if that is not to be told from where we listen."""

    def __init__(
        self,
        identity: Identity,
        net: Net,
        config: TransportConfig,
        entropy: Callable[[int], bytes],
    ) -> None:
        """`entropy`: so many random bytes, `os.urandom` or a simulation's."""
        self._net = net
        self._config = config
        self._entropy = entropy
        self._static = StaticKey(identity, entropy(KEY_BYTES))
        self._incarnation = entropy(INCARNATION_BYTES)
        self._table: LinkTable[Link] = LinkTable()
        self._sessions: dict[bytes, Link] = {}
        self._dials: dict[Contact, asyncio.Future[Link]] = {}
        self._limiter = HandshakeLimiter(config.pending_max, config.pending_per_host_max)
        self._greeting: dict[int, asyncio.Task[None]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._listeners: list[Listener] = []
        self._observed_host = ""
        self._open_links: dict[Link, None] = {}
        self._quiet = asyncio.Event()
        self._closing = False
        self.on_event = _ignore
        self.announced = None

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        return self._static.peer_id

    @property
    def contact(self) -> Contact:
        """Ourselves, as others should dial us."""
        if self.announced is not None:
            return Contact(self.peer_id, self.announced)
        if not self._listeners:
            return Contact(self.peer_id, Address(self._observed_host or "127.0.0.1", 0))
        at = self._listeners[0].address
        if at.host in EVERYWHERE:
            at = Address(self._observed_host or "127.0.0.1", at.port)
        return Contact(self.peer_id, at)

    async def listen(self, at: Address) -> Address:
        """Accept links at `at`; port 0 picks one. Returns the address bound."""
        listener = await self._net.listen(at)
        self._listeners.append(listener)
        self._spawn(self._accept(listener))
        return listener.address

    async def link(self, to: Contact) -> Link:
        """The link to a peer: one that is up, or a new one; raises DialFailed, BadHandshake."""
        found = self._find(to)
        if found is not None:
            return found
        dialling = self._dials.get(to)
        if dialling is None:
            if self._closing:
                raise LinkLost("this endpoint is closed")
            dialling = asyncio.get_running_loop().create_future()
            dialling.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dials[to] = dialling
            self._spawn(self._dial(to, dialling), partial(self._end_dial, to, dialling))
        return await asyncio.shield(dialling)

    def links(self) -> tuple[Link, ...]:
        """Every link that is up and in use."""
        return self._table.all()

    async def close(self) -> None:
        """End every link and leave nothing running."""
        self._closing = True
        while self._tasks:
            task = next(iter(self._tasks))
            task.cancel()
            await asyncio.wait([task])
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()
        for link in list(self._open_links):
            link.close()
        while self._open_links:
            self._quiet.clear()
            await self._quiet.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    # what links ask of us

    def on_link(self, link: Link, event: EndpointEvent) -> None:
        """The link can be used, or wants bulk connections."""
        if isinstance(event, BulkWanted):
            for number in range(event.connections):
                self._spawn(self._join(link, number))
        else:
            self._came_up(link)

    def _came_up(self, link: Link) -> None:
        """A link can be used: whoever waits for its peer gets it."""
        session = link.session
        self._open_links[link] = None
        self._sessions[join.session_of(session.exporter)] = link
        dialler = self.peer_id if session.dialled else link.peer
        now_s = asyncio.get_running_loop().time()
        verdict = self._table.add(LinkEntry(link, link.peer, dialler, session.incarnation, now_s))
        for other in verdict.dead:
            other.fail(LinkLost(f"link to {link.peer.short}: its process was started again"))
        for other in verdict.drain:  # it may end well before the better one: then we dial again
            self._table.remove(other.peer, other)
            other.leave()
        best = self._table.best(link.peer) or link
        for to, dialling in list(self._dials.items()):
            if to.peer == link.peer and not dialling.done():
                dialling.set_result(best)

    def ended(self, link: Link) -> None:
        """Use the link no more."""
        self._table.remove(link.peer, link)
        self._sessions.pop(join.session_of(link.session.exporter), None)

    def released(self, link: Link) -> None:
        """Its last socket is closed."""
        del self._open_links[link]
        self._quiet.set()

    # dialling

    def _find(self, to: Contact) -> Link | None:
        if to.peer is not None:
            return self._table.best(to.peer)
        for link in self._table.all():
            if link.contact.address == to.address:
                return self._table.best(link.peer)
        return None

    async def _dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        try:
            stream = await self._connect(to.address)
            try:
                link = await self._shake_hands(stream, to)
            finally:
                stream.close()
            if not dialling.done():
                dialling.set_result(self._table.best(link.peer) or link)
        except SwarmError as error:
            if not dialling.done():
                dialling.set_exception(error)

    def _end_dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        del self._dials[to]
        dialling.cancel()  # does nothing, unless we are being closed

    async def _connect(self, to: Address) -> Connection:
        try:
            async with asyncio.timeout(self._config.dial_s):
                return await self._net.dial(to)
        except TimeoutError as error:
            raise DialFailed(f"{to}: no answer within {self._config.dial_s:g} s") from error

    async def _shake_hands(self, stream: Connection, to: Contact) -> Link:
        hello = Hello(self._config.suite, self._config.network_id)
        handshake = Handshake(
            Role.INITIATOR,
            hello,
            self._static,
            self._entropy(KEY_BYTES),
            self._introduction(stream.remote),
            expect=to.peer,
        )
        try:
            async with asyncio.timeout(self._config.handshake_s):
                await self._converse(stream, handshake)
                if handshake.peer == self.peer_id:
                    raise DialFailed(f"{to.address} is ourselves")
                return await self._make_link(stream, handshake, to.address)
        except TimeoutError as error:
            raise BadHandshake(f"{to.address} stalled in the handshake") from error
        except BadHandshake as error:
            raise BadHandshake(f"{to.address}: {error}") from error
        except LinkLost as error:
            raise DialFailed(f"{to.address} closed the connection in the handshake") from error

    async def _converse(self, stream: Connection, handshake: Handshake) -> None:
        """Let the handshake run to its end over the raw stream."""
        while True:
            ready = b"".join(handshake.data_to_send())
            if ready:
                await stream.send(ready)
            if handshake.done:
                return
            length = await stream.receive(LENGTH_BYTES)
            if length == CONTROL_MAGIC[:LENGTH_BYTES]:  # no message is so long: it is a hello
                hello = length + await stream.receive(HELLO_BYTES - LENGTH_BYTES)
                Hello.parse(hello, self._config.network_id)
                raise BadHandshake("the peer turned us away without a reason")
            handshake.receive(length)
            handshake.receive(await stream.receive(int.from_bytes(length)))

    async def _make_link(
        self, stream: Connection, handshake: Handshake, at: Address | None
    ) -> Link:
        """`at`: where we dialled, None if we were."""
        introduction = read_introduction(handshake.peer_payload)
        self._observed_host = introduction.observed_host or self._observed_host
        address = at or Address(stream.remote.host, introduction.listen_port)
        session = Session(
            contact=Contact(handshake.peer, address),
            remote=stream.remote,
            dialled=at is not None,
            incarnation=introduction.incarnation,
            keys=handshake.keys,
            exporter=handshake.exporter,
        )
        if len(self._open_links) >= self._config.links_max:
            raise DialFailed(f"{self._config.links_max} links are up already")
        link = Link(session, self._config, self, self._net.lock)
        await stream.become_control(link)
        return link

    def _introduction(self, remote: Address) -> bytes:
        port = self.contact.address.port
        return encode(Introduction(self._incarnation, port, remote.host))

    async def _join(self, link: Link, number: int) -> None:
        """Dial one bulk connection."""
        exporter = link.session.exporter
        asked = join.BulkJoin.make(exporter, number, self._entropy(join.NONCE_BYTES))
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                stream = await self._net.dial(link.remote)
                try:
                    await stream.send(asked.raw)
                    answer = await stream.receive(join.ANSWER_BYTES)
                    nonce = asked.check_answer(exporter, answer)
                    keys = asked.keys(exporter, nonce)
                    link.add_bulk(stream, BulkKeys(*keys, link.session.keys.suite))
                finally:
                    stream.close()
        except TimeoutError:
            link.fail(LinkLost(f"link to {link.peer.short}: bulk connection {number} stalled"))
        except SwarmError as error:
            link.fail(LinkLost(f"link to {link.peer.short}: bulk connection {number}: {error}"))

    # accepting

    async def _accept(self, listener: Listener) -> None:
        while True:
            stream = await listener.accept()
            ticket, displaced = self._limiter.enter(stream.remote.host)
            if displaced is not None:
                self._greeting[displaced].cancel()
            end = partial(self._end_greeting, stream, ticket)
            self._greeting[ticket] = self._spawn(self._greet(stream), end)

    async def _greet(self, stream: Connection) -> None:
        try:
            async with asyncio.timeout(self._config.handshake_s):
                magic = await stream.receive(len(CONTROL_MAGIC))
                if magic == join.MAGIC:
                    await self._admit_bulk(stream, magic)
                else:
                    await self._admit(stream, magic)
        except TimeoutError:
            _log.info("%s turned away: it stalled in the handshake", stream.remote)
        except PathError:
            _log.debug("%s left in the handshake", stream.remote)
        except SwarmError as error:
            _log.info("%s turned away: %s", stream.remote, error)

    def _end_greeting(self, stream: Connection, ticket: int) -> None:
        stream.close()
        self._limiter.leave(ticket)
        del self._greeting[ticket]

    async def _admit(self, stream: Connection, magic: bytes) -> None:
        if magic[:-1] != CONTROL_MAGIC[:-1]:
            raise BadHandshake("its first bytes are not those of a peer")
        raw = magic + await stream.receive(HELLO_BYTES - len(magic))
        try:
            hello = Hello.parse(raw, self._config.network_id)
        except BadHandshake:  # tell why, in as many bytes as it sent
            await stream.send(Hello(self._config.suite, self._config.network_id).raw)
            raise
        handshake = Handshake(
            Role.RESPONDER,
            hello,
            self._static,
            self._entropy(KEY_BYTES),
            self._introduction(stream.remote),
        )
        await self._converse(stream, handshake)
        if handshake.peer == self.peer_id:
            raise BadHandshake("it has our own identity: is a key file in use twice?")
        await self._make_link(stream, handshake, None)

    async def _admit_bulk(self, stream: Connection, magic: bytes) -> None:
        asked = join.BulkJoin.parse(magic + await stream.receive(join.JOIN_BYTES - len(magic)))
        link = self._sessions.get(asked.session)
        if link is None or link.session.dialled:
            raise BadHandshake("it joins a session that we do not know")
        exporter = link.session.exporter
        nonce = self._entropy(join.NONCE_BYTES)
        answer = asked.answer(exporter, nonce)
        if not link.claim_number(asked.number):
            raise BadHandshake(f"bulk connection {asked.number} has joined before, or is too many")
        await stream.send(answer)
        key_in, key_out = asked.keys(exporter, nonce)
        link.add_bulk(stream, BulkKeys(key_out, key_in, link.session.keys.suite))

    def _spawn(
        self, work: Coroutine[None, None, None], end: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        """A task that `close` ends; `end` is called then too, even if it never began."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if end is not None:
            task.add_done_callback(lambda _: end())
        return task


def _ignore(_link: Link, _event: StreamEvent) -> None:
    """Before rpc is there, events go nowhere."""
