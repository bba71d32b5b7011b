"""Endpoint: dials and accepts links, and keeps one link to each peer in use.

The first bytes of a connection tell whether it opens a link or joins bulk to one. A peer that
stalls, sends garbage or belongs to another network costs one of a limited number of handshakes and
a line in the log. Decisions: `raw_handshake`, `admission`, `handshake_limiter`, `link_table`.

Units:   bytes, seconds.
Errors:  DialFailed, BadHandshake and LinkLost from `link`; Unusable from `listen`.
Source:  docs/wire.md.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

from p2pswarm.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.crypto.identity import Identity
from p2pswarm.crypto.noise_xx import Role
from p2pswarm.crypto.suite import KEY_BYTES
from p2pswarm.errors import BadHandshake, DialFailed, LinkLost, PathError, SwarmError
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.base import Connection, Listener, Net
from p2pswarm.transport.admission import (
    check_dials,
    check_join,
    dial_error,
    join_error,
    meet,
    own_contact,
)
from p2pswarm.transport.bulk import join
from p2pswarm.transport.bulk.bulk_places import BulkPlaces
from p2pswarm.transport.bulk.channel import BulkKeys
from p2pswarm.transport.bulk.channels import BulkArrival
from p2pswarm.transport.bulk.join import BulkJoin
from p2pswarm.transport.bulk.upload_share import UploadShare
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.events import BulkWanted, EndpointEvent, StreamEvent
from p2pswarm.transport.handshake_gate import HandshakeGate
from p2pswarm.transport.handshake_limiter import HandshakeLimiter
from p2pswarm.transport.link_io import Link, NodeShares
from p2pswarm.transport.link_places import LinkPlaces
from p2pswarm.transport.link_table import LinkEntry, LinkTable, Reach
from p2pswarm.transport.raw_handshake import AcceptedHandshake, DialledHandshake
from p2pswarm.transport.reply_memory import ReplyMemory
from p2pswarm.transport.session import INCARNATION_BYTES, Introduction
from p2pswarm.wire.message import encode

__all__ = ["BulkArrival", "Endpoint", "Link"]

_log = logging.getLogger(__name__)


class Endpoint:
    """This node's end of every link. Use it as a context manager, or `close` it."""

    on_event: Callable[[Link, StreamEvent], None]
    """Called in the event loop with everything that happens on links."""
    announced: Address | None
    """The address that others dial, if it differs from the one that we listen on."""

    def __init__(
        self,
        identity: Identity,
        net: Net,
        config: TransportConfig,
        entropy: Callable[[int], bytes],
    ) -> None:
        """`entropy`: returns that many random bytes, as `os.urandom` does."""
        self._net = net
        self._config = config
        self._entropy = entropy
        self._hello = Hello(config.suite, config.network_id)
        self._static = StaticKey(identity, entropy(KEY_BYTES))
        self._incarnation = entropy(INCARNATION_BYTES)
        upload = UploadShare(net.lock(), config.background_share)
        self._shared = NodeShares(upload, ReplyMemory())
        self._table: LinkTable[Link] = LinkTable()
        self._places: LinkPlaces[Link] = LinkPlaces(config.links_max, lambda link: link.use)
        self._joined: BulkPlaces[Link] = BulkPlaces(config.bulk_joined_max, lambda link: link.use)
        self._sessions: dict[bytes, Link] = {}
        self._dials: dict[Contact, asyncio.Future[Link]] = {}
        self._limiter = HandshakeLimiter(config.silent_max, config.answered_max)
        self._gate = HandshakeGate()
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
        """Our own peer id."""
        return self._static.peer_id

    @property
    def contact(self) -> Contact:
        """Our own contact, as others should dial it."""
        listening = self._listeners[0].address if self._listeners else None
        return own_contact(self.peer_id, self.announced, listening, self._observed_host)

    async def listen(self, at: Address) -> Address:
        """Accept links at `at`, where port 0 means any free port. Returns the bound address."""
        listener = await self._net.listen(at)
        self._listeners.append(listener)
        self._spawn(self._accept(listener))
        return listener.address

    async def link(self, to: Contact) -> Link:
        """The link to a peer: one that is up, or a new one.

        Raises DialFailed, BadHandshake, LinkLost if this endpoint is closed, Busy if it dials many.
        """
        found = self._table.find(to)
        if found is not None:
            return found
        dialling = self._dials.get(to)
        if dialling is None:
            if self._closing:
                raise LinkLost("this endpoint is closed")
            check_dials(len(self._dials), self._config)
            dialling = asyncio.get_running_loop().create_future()
            dialling.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._dials[to] = dialling
            self._spawn(self._dial(to, dialling), partial(self._end_dial, to, dialling))
        return await asyncio.shield(dialling)

    def reach(self, to: Contact) -> Reach:
        """What links that are up show of the address of a peer."""
        return self._table.reach(to)

    def links(self) -> tuple[Link, ...]:
        """Every link that is up and in use."""
        return self._table.all()

    async def close(self) -> None:
        """End every link and every task of ours."""
        self._closing = True
        self._gate.close()
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

    # called by links

    def on_link(self, link: Link, event: EndpointEvent) -> None:
        """Act on an event: the link is up, or needs bulk connections."""
        if isinstance(event, BulkWanted):
            for number in range(event.connections):
                self._spawn(self._join(link, number))
        else:
            self._came_up(link)

    def _came_up(self, link: Link) -> None:
        """Put a new link into the table, and give it to the dials that wait for its peer."""
        session = link.session
        self._open_links[link] = None
        self._places.add(link, link.peer, link.remote.host)
        self._sessions[join.session_of(session.exporter)] = link
        dialler = self.peer_id if session.dialled else link.peer
        now_s = asyncio.get_running_loop().time()
        verdict = self._table.add(
            LinkEntry(link, session.contact, dialler, session.incarnation, now_s)
        )
        for other in verdict.dead:
            other.fail(LinkLost(f"link to {link.peer.short}: its process was started again"))
        for other in verdict.drain:  # should the better one end first, we dial again
            self._table.remove(other.peer, other)
            other.leave()
        best = self._table.best(link.peer) or link
        for to, dialling in list(self._dials.items()):
            if to.peer == link.peer and not dialling.done():
                dialling.set_result(best)

    def ended(self, link: Link) -> None:
        """Stop using a link that has ended."""
        self._table.remove(link.peer, link)
        self._places.remove(link, link.peer)
        self._joined.remove(link)
        self._sessions.pop(join.session_of(link.session.exporter), None)

    def released(self, link: Link) -> None:
        """Note that the last socket of a link is closed."""
        del self._open_links[link]
        self._quiet.set()

    # dialling

    async def _dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        stream = None
        try:
            async with asyncio.timeout(self._config.dial_s):
                stream = await self._net.dial(to.address)
            async with asyncio.timeout(self._config.handshake_s):
                link = await self._shake_hands(stream, to)
            if not dialling.done():
                dialling.set_result(self._table.best(link.peer) or link)
        except (SwarmError, TimeoutError) as error:
            known = dial_error(error, to.address, self._config, connected=stream is not None)
            known.__cause__ = error if known is not error else None
            if not dialling.done():
                dialling.set_exception(known)
        except Exception as error:  # noqa: BLE001  callers would else see a cancellation
            _log.error("the dial of %s failed", to.address, exc_info=error)
            if not dialling.done():
                dialling.set_exception(DialFailed(f"{to.address}: internal error: {error!r}"))
        finally:
            if stream is not None:
                stream.close()

    def _end_dial(self, to: Contact, dialling: asyncio.Future[Link]) -> None:
        del self._dials[to]
        dialling.cancel()  # this has an effect only while the endpoint closes

    async def _shake_hands(self, stream: Connection, to: Contact) -> Link:
        handshake = Handshake(
            Role.INITIATOR,
            self._hello,
            self._static,
            self._entropy(KEY_BYTES),
            self._introduction(stream.remote),
            expect=to.peer,
        )
        await _exchange_messages(stream, DialledHandshake(handshake, self._hello.network))
        return await self._make_link(stream, handshake, to.address)

    async def _make_link(
        self, stream: Connection, handshake: Handshake, dialled: Address | None
    ) -> Link:
        session, introduction = meet(handshake, self.peer_id, stream.remote, dialled)
        self._observed_host = introduction.observed_host or self._observed_host
        for other in self._places.make_room(session.peer):
            other.close(f"made way for another, {len(self._open_links)} are up")
        link = Link(session, self._config, self, self._net.lock, self._shared)
        await stream.become_control(link)
        return link

    def _introduction(self, remote: Address) -> bytes:
        port = self.contact.address.port
        return encode(Introduction(self._incarnation, port, remote.host))

    async def _join(self, link: Link, number: int) -> None:
        """Join one bulk connection to the link, in a few tries: a crowd may displace one."""
        try:
            async with asyncio.timeout(self._config.dial_s + self._config.handshake_s):
                *others, last = join.numbers(number, self._config.bulk_connections_max)
                for each in others:
                    with suppress(PathError):
                        return await self._join_as(link, each)
                await self._join_as(link, last)
        except (SwarmError, TimeoutError) as error:
            link.fail(join_error(error, link.peer, number))

    async def _join_as(self, link: Link, number: int) -> None:
        exporter = link.session.exporter
        asked = join.BulkJoin.make(exporter, number, self._entropy(join.NONCE_BYTES))
        stream = await self._net.dial(link.remote)
        try:
            await stream.send(asked.raw)
            answer = await stream.receive(join.ANSWER_BYTES)
            nonce = asked.check_answer(exporter, answer)
            keys = asked.keys(exporter, nonce)
            link.add_bulk(stream, BulkKeys(*keys, link.session.keys.suite))
        finally:
            stream.close()

    # accepting

    async def _accept(self, listener: Listener) -> None:
        while True:
            stream = await listener.accept()
            ticket, displaced = self._limiter.enter(stream.remote.host)
            self._displace(displaced)
            end = partial(self._end_greeting, stream, ticket)
            self._greeting[ticket] = self._spawn(self._greet(stream, ticket), end)

    def _displace(self, ticket: int | None) -> None:
        if ticket is not None:
            self._greeting[ticket].cancel()

    async def _greet(self, stream: Connection, ticket: int) -> None:
        try:
            async with asyncio.timeout(self._config.handshake_s):
                accepted = AcceptedHandshake(
                    self._hello,
                    self._static,
                    self._entropy(KEY_BYTES),
                    self._introduction(stream.remote),
                )
                await _exchange_messages(
                    stream,
                    accepted,
                    lambda: self._displace(self._limiter.answered(ticket)),
                    partial(self._gate.run, ticket, stream.remote.host),
                )
                if accepted.refusal is not None:
                    raise accepted.refusal
                if accepted.join is not None:
                    await self._admit_bulk(stream, accepted.join)
                else:
                    await self._make_link(stream, accepted.handshake, None)
        except TimeoutError:
            _log.info("%s refused: it stalled in the handshake", stream.remote)
        except PathError:
            _log.debug("%s hung up in the handshake", stream.remote)
        except SwarmError as error:
            _log.info("%s refused: %s", stream.remote, error)

    def _end_greeting(self, stream: Connection, ticket: int) -> None:
        stream.close()
        self._limiter.leave(ticket)
        del self._greeting[ticket]

    async def _admit_bulk(self, stream: Connection, asked: BulkJoin) -> None:
        link = self._sessions.get(asked.session)
        exporter = check_join(asked, None if link is None else link.session).exporter
        assert link is not None
        nonce = self._entropy(join.NONCE_BYTES)
        answer = asked.answer(exporter, nonce)
        crowd = self._joined.make_room(link)
        if not link.claim_number(asked.number):
            raise BadHandshake(
                f"bulk connection {asked.number} has joined before, or exceeds the limit"
            )
        self._joined.add(link, link.remote.host)
        for other in crowd:
            other.close("made way for another, all bulk connections are in use")
        await stream.send(answer)
        key_in, key_out = asked.keys(exporter, nonce)
        link.add_bulk(stream, BulkKeys(key_out, key_in, link.session.keys.suite))

    def _spawn(
        self, work: Coroutine[None, None, None], end: Callable[[], None] | None = None
    ) -> asyncio.Task[None]:
        """Start a task that `close` ends. `end` is called when it is over, even if it never ran."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if end is not None:
            task.add_done_callback(lambda _: end())
        return task


async def _exchange_messages(
    stream: Connection,
    side: DialledHandshake | AcceptedHandshake,
    before_answer: Callable[[], None] | None = None,
    compute: Callable[[Callable[[], None]], Coroutine[None, None, None]] | None = None,
) -> None:
    """Send and receive until the handshake needs no more bytes.

    `compute`: runs what costs much time.
    """
    while True:
        if ready := side.data_to_send():
            if before_answer is not None:
                before_answer()
            await stream.send(ready)
        if not side.wanted_bytes:
            return
        data = await stream.receive(side.wanted_bytes)
        if compute is not None and side.computes:
            await compute(partial(side.receive, data))
        else:
            side.receive(data)


def _ignore(_link: Link, _event: StreamEvent) -> None:
    """Drop an event: until rpc sets `on_event`, nobody wants it."""
