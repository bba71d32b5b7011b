"""LinkRpc: calls and exchanges over links to real peers, SEAM 2 of `rpc/base.py`.

A stream of a link carries one call or one exchange, and one party here is told
what happens on it: a caller that waits, a handler at work, or a talk. All of it
happens inside the transport's callback, so that a small call costs two frames
and one wake-up, and no queue. A plain function answers right there; a coroutine
gets a task, owned here, that ends with its caller's deadline.

What breaks the rules ends the link: such a peer is not what it claims to be.

Units:   seconds, bytes.
Errors:  as `rpc/base.py`.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from p2pswarm.errors import BadMessage, Late, NotServing, PeerError, SwarmError
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Answer, Converse
from p2pswarm.rpc.calls import (
    RESET_GIVEN_UP,
    Kind,
    is_good,
    pack_error,
    pack_good,
    pack_opening,
    pack_outcome,
    reset_error,
    told,
    unpack_error,
    unpack_good,
    unpack_opening,
)
from p2pswarm.rpc.desk.service import Desk, DeskConfig, Order
from p2pswarm.rpc.exchange.service import Talk, held, within
from p2pswarm.transport.events import (
    CreditGained,
    LinkEnded,
    StreamData,
    StreamEvent,
    StreamOpened,
    StreamReset,
)
from p2pswarm.transport.service import Endpoint, Link
from p2pswarm.wire.codec import Message, UnknownCode, encode

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)


class Party(Protocol):
    """Who is told what happens on a stream."""

    def data(self, frame: bytes, *, ended: bool) -> None:
        """A frame came; `ended`: the last one."""
        ...

    def credit(self) -> None:
        """The stream is writable again."""
        ...

    def fail(self, error: SwarmError) -> None:
        """Nothing more will come, because of this."""
        ...


class _Caller:
    """Waits for the reply of one call."""

    __slots__ = ("waiter",)

    def __init__(self, waiter: asyncio.Future[Message]) -> None:
        self.waiter = waiter

    def data(self, frame: bytes, *, ended: bool) -> None:
        if not ended:
            raise BadMessage("a call has one reply")
        if not is_good(frame):
            self.fail(unpack_error(frame))
        elif not self.waiter.done():
            self.waiter.set_result(unpack_good(frame))

    def credit(self) -> None:
        """A request is one frame: nothing waits for credit."""

    def fail(self, error: SwarmError) -> None:
        if not self.waiter.done():
            self.waiter.set_exception(error)


class _Work:
    """A call's handler at work."""

    __slots__ = ("_link", "_request", "_stream", "task")

    def __init__(self, link: Link, stream: int, request: Message) -> None:
        self._link = link
        self._stream = stream
        self._request = request
        self.task: asyncio.Task[Any] | None = None

    def data(self, frame: bytes, *, ended: bool) -> None:
        raise BadMessage(f"{len(frame)} bytes after a request (ended: {ended})")

    def credit(self) -> None:
        """A reply is one frame: nothing waits for credit."""

    def fail(self, error: SwarmError) -> None:
        """Nobody wants the reply any more."""
        del error
        if self.task is not None:
            self.task.cancel()

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """Send the reply; one that cannot travel is our bug, and the caller hears of it."""
        self._link.send(self._stream, pack_outcome(outcome, self._request), ended=True)

    def give_up(self, code: int) -> None:
        self._link.reset(self._stream, code)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a peer's opening asks for."""

    link: Link
    event: StreamOpened
    kind: Kind
    timeout_s: float | None
    request: Message


class LinkRpc:
    """Calls and exchanges over an endpoint's links: implements `Rpc`.

    Use it as a context manager: its handlers end with it. The endpoint is its
    owner's to close, afterwards.
    """

    def __init__(self, endpoint: Endpoint, config: DeskConfig | None = None) -> None:
        self._endpoint = endpoint
        self._answers: dict[type[Message], Answer[Any]] = {}
        self._attends: dict[type[Message], Converse[Any]] = {}
        self._parties: dict[Link, dict[int, Party]] = {}
        self._desks = {kind: Desk(config or DeskConfig()) for kind in Kind}
        endpoint.on_event = self._on_event

    @property
    def contact(self) -> Contact:
        """Ourselves, as others should dial us."""
        return self._endpoint.contact

    def answer(self, request: type[M], handler: Answer[M]) -> None:
        """Serve calls of one message type."""
        self._answers[request] = handler

    def attend(self, opening: type[M], handler: Converse[M]) -> None:
        """Serve exchanges that open with one message type."""
        self._attends[opening] = handler

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once; see `Rpc`."""
        body = encode(request)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as scope:  # `within` would cost 3 us more
                link = await self._endpoint.link(to)
                left_s = (scope.when() or 0.0) - loop.time()
                caller = _Caller(loop.create_future())
                frame = pack_opening(Kind.CALL, left_s, body)
                parties, stream = self._open(link, frame, caller, ended=True)
                try:
                    return await caller.waiter
                finally:
                    if parties.pop(stream, None) is not None:
                        link.reset(stream, RESET_GIVEN_UP)
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise Late(f"no reply from {to.address} within {timeout_s:g} s") from error

    @asynccontextmanager
    async def converse(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[Talk]:
        """Open an exchange; see `Rpc`."""
        frame = pack_opening(Kind.EXCHANGE, timeout_s, encode(opening))
        async with within(timeout_s, f"exchange with {to.address}"):
            link = await self._endpoint.link(to)
            talk = Talk(link)
            parties, talk.stream = self._open(link, frame, talk, ended=False)
            try:
                async with held(talk):
                    yield talk
            finally:
                parties.pop(talk.stream, None)

    async def close(self) -> None:
        """Stop every handler; those who wait for them are told."""
        stopped = [task for desk in self._desks.values() for task in desk.stop()]
        await asyncio.gather(*stopped, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _open(
        self, link: Link, frame: bytes, party: Party, *, ended: bool
    ) -> tuple[dict[int, Party], int]:
        """Open a stream on a link that is up, and have `party` told what happens on it."""
        stream = link.open(frame, ended=ended)
        parties = self._parties.setdefault(link, {})
        parties[stream] = party
        return parties, stream

    def _on_event(self, link: Link, event: StreamEvent) -> None:
        """From the transport, inside its read callback."""
        try:
            if isinstance(event, StreamOpened):
                self._opened(link, event)
            elif isinstance(event, LinkEnded):
                self._ended(link, event.error)
            else:
                self._on_stream(link, event)
        except PeerError as error:
            log.warning("%s broke the protocol: %s", link.peer.short, error)
            self._ended(link, error)
            link.close()

    def _on_stream(self, link: Link, event: StreamData | StreamReset | CreditGained) -> None:
        parties = self._parties.get(link, {})
        party = parties.get(event.stream)
        if isinstance(event, StreamData):
            if party is None:  # our side has finished; the other side does not know yet
                link.consumed(event.stream, len(event.data))
                return
            party.data(event.data, ended=event.ended)
            if event.ended and isinstance(party, _Caller):
                del parties[event.stream]
        elif party is not None:
            if isinstance(event, StreamReset):
                del parties[event.stream]
                party.fail(reset_error(event.code))
            else:
                party.credit()

    def _ended(self, link: Link, error: SwarmError) -> None:
        for party in self._parties.pop(link, {}).values():
            party.fail(error)

    def _opened(self, link: Link, event: StreamOpened) -> None:
        """A peer asks: answer at once, or start a handler."""
        try:
            kind, timeout_s, request = unpack_opening(event.data)
        except UnknownCode as error:
            link.send(event.stream, pack_error(NotServing(str(error))), ended=True)
            return
        if event.ended != (kind is Kind.CALL):
            raise BadMessage(f"a {kind.name} whose first frame says ended={event.ended}")
        try:
            if kind is Kind.CALL:
                self._answer(link, event, request, timeout_s)
            else:
                self._attend(link, event, request, timeout_s)
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            link.send(event.stream, pack_error(told(error, request)), ended=True)

    def _answer(
        self, link: Link, event: StreamOpened, request: Message, timeout_s: float | None
    ) -> None:
        handler = self._answers.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        outcome = handler(link.peer, request)
        if isinstance(outcome, Message):
            link.send(event.stream, pack_good(outcome), ended=True)
        else:
            asked = _Asked(link, event, Kind.CALL, timeout_s, request)
            self._start(asked, _Work(link, event.stream, request), outcome)

    def _attend(
        self, link: Link, event: StreamOpened, opening: Message, timeout_s: float | None
    ) -> None:
        handler = self._attends.get(type(opening))
        if handler is None:
            raise NotServing(f"no exchanges of {type(opening).__name__} here")
        talk = Talk(link, event.stream)
        asked = _Asked(link, event, Kind.EXCHANGE, timeout_s, opening)
        self._start(asked, talk, handler(talk, opening))

    def _start(self, asked: _Asked, server: _Work | Talk, work: Coroutine[Any, Any, Any]) -> None:
        """Have a handler run; until it is done, `server` is told what happens on the stream."""
        link, stream = asked.link, asked.event.stream
        parties = self._parties.setdefault(link, {})

        def after() -> None:
            if parties.get(stream) is server:
                del parties[stream]

        order = Order(link.peer, asked.request, asked.timeout_s, after)
        self._desks[asked.kind].start(server, order, work)
        parties[stream] = server
        link.consumed(stream, len(asked.event.data))  # the desk bounds what handlers hold
