"""LinkRpc: calls and streams over links to real peers, SEAM 2 of `rpc/base.py`.

A stream of a link carries one call or one stream, and one listener here is told
what happens on it: a caller that waits, a handler at work, or a stream. All of it
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
from p2pswarm.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.rpc.framing import (
    RESET_GIVEN_UP,
    Kind,
    error_for_caller,
    is_good,
    pack_error,
    pack_good,
    pack_opening,
    pack_outcome,
    reset_error,
    unpack_error,
    unpack_good,
    unpack_opening,
)
from p2pswarm.rpc.handler_pool import HandlerLimits, HandlerPool, HandlerRequest
from p2pswarm.rpc.stream import RpcStream, held, within
from p2pswarm.transport.endpoint import Endpoint, Link
from p2pswarm.transport.events import (
    CreditGained,
    LinkEnded,
    StreamData,
    StreamEvent,
    StreamOpened,
    StreamReset,
)
from p2pswarm.wire.message import Message, UnknownCode, encode

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)


class StreamListener(Protocol):
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


class _PendingCall:
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


class _RunningCall:
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
class _Opening:
    """What a peer's opening asks for."""

    link: Link
    event: StreamOpened
    kind: Kind
    timeout_s: float | None
    request: Message


class LinkRpc:
    """Calls and streams over an endpoint's links: implements `Rpc`.

    Use it as a context manager: its handlers end with it. The endpoint is its
    owner's to close, afterwards.
    """

    def __init__(self, endpoint: Endpoint, config: HandlerLimits | None = None) -> None:
        self._endpoint = endpoint
        self._unary_handlers: dict[type[Message], UnaryHandler[Any]] = {}
        self._stream_handlers: dict[type[Message], StreamHandler[Any]] = {}
        self._listeners: dict[Link, dict[int, StreamListener]] = {}
        self._pools = {kind: HandlerPool(config or HandlerLimits()) for kind in Kind}
        endpoint.on_event = self._on_event

    @property
    def contact(self) -> Contact:
        """Ourselves, as others should dial us."""
        return self._endpoint.contact

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        self._unary_handlers[request] = handler

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        self._stream_handlers[opening] = handler

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once; see `Rpc`."""
        body = encode(request)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s) as scope:  # `within` would cost 3 us more
                link = await self._endpoint.link(to)
                left_s = (scope.when() or 0.0) - loop.time()
                caller = _PendingCall(loop.create_future())
                frame = pack_opening(Kind.UNARY, left_s, body)
                listeners, stream = self._open(link, frame, caller, ended=True)
                try:
                    return await caller.waiter
                finally:
                    if listeners.pop(stream, None) is not None:
                        link.reset(stream, RESET_GIVEN_UP)
        except TimeoutError as error:
            if isinstance(error, SwarmError) or not scope.expired():
                raise
            raise Late(f"no reply from {to.address} within {timeout_s:g} s") from error

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[RpcStream]:
        """Open an exchange; see `Rpc`."""
        frame = pack_opening(Kind.STREAM, timeout_s, encode(opening))
        async with within(timeout_s, f"stream with {to.address}"):
            link = await self._endpoint.link(to)
            stream = RpcStream(link)
            listeners, stream.stream = self._open(link, frame, stream, ended=False)
            try:
                async with held(stream):
                    yield stream
            finally:
                listeners.pop(stream.stream, None)

    async def close(self) -> None:
        """Stop every handler; those who wait for them are told."""
        stopped = [task for pool in self._pools.values() for task in pool.stop()]
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
        self, link: Link, frame: bytes, listener: StreamListener, *, ended: bool
    ) -> tuple[dict[int, StreamListener], int]:
        """Open a stream on a link that is up, and have `listener` told what happens on it."""
        stream = link.open(frame, ended=ended)
        listeners = self._listeners.setdefault(link, {})
        listeners[stream] = listener
        return listeners, stream

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
        listeners = self._listeners.get(link, {})
        listener = listeners.get(event.stream)
        if isinstance(event, StreamData):
            if listener is None:  # our side has finished; the other side does not know yet
                link.consumed(event.stream, len(event.data))
                return
            listener.data(event.data, ended=event.ended)
            if event.ended and isinstance(listener, _PendingCall):
                del listeners[event.stream]
        elif listener is not None:
            if isinstance(event, StreamReset):
                del listeners[event.stream]
                listener.fail(reset_error(event.code))
            else:
                listener.credit()

    def _ended(self, link: Link, error: SwarmError) -> None:
        for listener in self._listeners.pop(link, {}).values():
            listener.fail(error)

    def _opened(self, link: Link, event: StreamOpened) -> None:
        """A peer asks: answer at once, or start a handler."""
        try:
            kind, timeout_s, request = unpack_opening(event.data)
        except UnknownCode as error:
            link.send(event.stream, pack_error(NotServing(str(error))), ended=True)
            return
        if event.ended != (kind is Kind.UNARY):
            raise BadMessage(f"a {kind.name} whose first frame says ended={event.ended}")
        try:
            if kind is Kind.UNARY:
                self._answer(link, event, request, timeout_s)
            else:
                self._attend(link, event, request, timeout_s)
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            link.send(event.stream, pack_error(error_for_caller(error, request)), ended=True)

    def _answer(
        self, link: Link, event: StreamOpened, request: Message, timeout_s: float | None
    ) -> None:
        handler = self._unary_handlers.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        outcome = handler(link.peer, request)
        if isinstance(outcome, Message):
            link.send(event.stream, pack_good(outcome), ended=True)
        else:
            asked = _Opening(link, event, Kind.UNARY, timeout_s, request)
            self._start(asked, _RunningCall(link, event.stream, request), outcome)

    def _attend(
        self, link: Link, event: StreamOpened, opening: Message, timeout_s: float | None
    ) -> None:
        handler = self._stream_handlers.get(type(opening))
        if handler is None:
            raise NotServing(f"no streams of {type(opening).__name__} here")
        stream = RpcStream(link, event.stream)
        asked = _Opening(link, event, Kind.STREAM, timeout_s, opening)
        self._start(asked, stream, handler(stream, opening))

    def _start(
        self, asked: _Opening, server: _RunningCall | RpcStream, work: Coroutine[Any, Any, Any]
    ) -> None:
        """Have a handler run; until it is done, `server` is told what happens on the stream."""
        link, stream = asked.link, asked.event.stream
        listeners = self._listeners.setdefault(link, {})

        def after() -> None:
            if listeners.get(stream) is server:
                del listeners[stream]

        order = HandlerRequest(link.peer, asked.request, asked.timeout_s, after)
        self._pools[asked.kind].start(server, order, work)
        listeners[stream] = server
        link.consumed(stream, len(asked.event.data))  # the desk bounds what handlers hold
