"""RpcStream: one side of a stream, with messages in order and bulk bytes outside of them.

Errors:  the error that the other side ended with; LinkLost; Late; Refused for a send after
         a good end.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Protocol

from p2pswarm.base.errors import BadMessage, Late, Refused, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Arrival, Priority
from p2pswarm.net.rpc.dispatch import Inbox
from p2pswarm.net.rpc.framing import (
    MORE,
    RESET_GIVEN_UP,
    Assembly,
    LongMessage,
    is_good,
    pack_error,
    pack_good,
    unpack_error,
    unpack_good,
)
from p2pswarm.net.wire.message import Message, decode


class StreamTransport(Protocol):
    """The part of a link that a stream uses; `net/endpoint/link_io.py` documents it."""

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        ...

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one frame."""
        ...

    def writable(self, stream: int) -> bool:
        """Return whether `send` would go out soon; if not, `on_credit` is called later."""
        ...

    def reset(self, stream: int, code: int) -> None:
        """Give the stream up."""
        ...

    def consume(self, stream: int, n: int) -> None:
        """Give back the credit of a frame of `n` bytes."""
        ...

    def expect(self, memory: memoryview) -> Arrival:
        """Grant memory to a transfer."""
        ...

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send `data` into the memory that the peer has granted."""
        ...

    def close(self) -> None:
        """End the link: the peer broke the protocol."""
        ...


class RpcStream:
    """One side of a stream: implements `Stream` of `net/rpc/base.py`.

    The end of a stream wakes every task that waits on it: a reader, a writer, and a task that
    waits for bulk bytes. A `StreamTransport` carries the stream: a real link or a simulated one.
    """

    once = False
    """For `Listeners`: events may still come after the peer's last frame."""

    def __init__(self, transport: StreamTransport, stream: int = 0) -> None:
        self.stream = stream
        self.task: asyncio.Task[Any] | None = None
        self._transport = transport
        self._inbox = Inbox()
        self._reader: asyncio.Future[None] | None = None
        self._writers: list[asyncio.Future[None]] = []
        self._scopes: dict[asyncio.Timeout, None] = {}
        """The waits for bulk bytes, which end when the stream fails."""
        self._finished = False
        self._parts: Assembly | None = None
        """Of a message that is longer than a frame and not whole yet."""

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self._transport.peer

    async def send(self, message: Message) -> None:
        """Send one message when the stream has credit; see `Stream`."""
        frames = pack_good(message)
        self._check_open()
        while not self._transport.writable(self.stream):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._writers.append(waiter)
            await waiter
            self._check_open()
        for frame in frames:  # at once: nothing comes between the parts of a message
            self._transport.send(self.stream, frame, ended=False)

    async def receive(self) -> Message | None:
        """The next message, or None at a good end; see `Stream`."""
        if not self._inbox.ready:
            if self._reader is not None:
                raise RuntimeError("two tasks receive from one stream")
            self._reader = asyncio.get_running_loop().create_future()
            try:
                await self._reader
            finally:
                self._reader = None
        item: bytes | LongMessage | None = self._inbox.take()
        if item is None:
            return None
        self._give_back(item)
        try:
            return unpack_good(item) if isinstance(item, bytes) else decode(item.body)
        except BadMessage:
            self._transport.close()
            raise

    def expect(self, memory: memoryview) -> Arrival:
        """Grant `memory` to one transfer from this peer."""
        return _StreamArrival(self._transport.expect(memory), self)

    async def send_bulk(self, transfer: int, data: memoryview, priority: Priority) -> None:
        """Send bulk bytes into memory that the peer granted; see `Stream`."""
        await self.unless_failed(self._transport.send_bulk(transfer, data, priority))

    async def unless_failed(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for `work` on bulk bytes, or raise the error that the stream fails with."""
        if self._inbox.error is not None:
            work.close()
            raise self._inbox.error
        try:
            async with asyncio.timeout(None) as scope:
                self._scopes[scope] = None
                try:
                    await work
                finally:
                    self._scopes.pop(scope, None)
        except TimeoutError:
            if not scope.expired() or self._inbox.error is None:
                raise
            raise self._inbox.error from None

    def on_frame(self, frame: bytes, *, ended: bool) -> None:
        """Take a frame from the transport."""
        if self._parts is not None or frame[:1] == MORE:
            self._part(frame, ended=ended)
            return
        if ended and frame and not is_good(frame):
            self._transport.consume(self.stream, len(frame))
            self.fail(unpack_error(frame))
            return
        if frame:
            self._inbox.put(frame)
        if ended:
            self._inbox.finish(None)
        self._wake_reader()

    def _part(self, frame: bytes, *, ended: bool) -> None:
        """Take a part of a message that is longer than a frame."""
        self._parts = self._parts or Assembly()
        whole = self._parts.add(frame)
        if whole is None:
            if ended:
                raise BadMessage("a stream that ends within a message")
            return
        self._parts = None
        self._inbox.put(whole)
        if ended:
            self._inbox.finish(None)
        self._wake_reader()

    def _give_back(self, item: bytes | LongMessage) -> None:
        """Give back the credit of a message that nobody holds any more."""
        lengths = (len(item),) if isinstance(item, bytes) else item.frames_bytes
        for nbytes in lengths:
            self._transport.consume(self.stream, nbytes)

    def on_credit(self) -> None:
        """Wake the writers: the stream is writable again."""
        self._wake_writers()

    def fail(self, error: SwarmError) -> None:
        """Raise `error` in every wait on this stream; if there is none, cancel the handler."""
        self._inbox.finish(error)
        scopes = tuple(self._scopes)
        self._scopes.clear()
        for scope in scopes:
            scope.reschedule(0.0)
        woken = len(scopes) + self._wake_reader() + self._wake_writers()
        if not woken and self.task is not None:
            self.task.cancel()

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """End our half, well or with an error; what still comes is dropped."""
        self._finished = True
        for item in self._inbox.clear():
            self._give_back(item)
        for nbytes in self._parts.frames_bytes if self._parts else ():
            self._transport.consume(self.stream, nbytes)
        self._parts = None
        last = pack_error(outcome) if isinstance(outcome, SwarmError) else b""
        self._transport.send(self.stream, last, ended=True)

    def give_up(self, code: int) -> None:
        """End both halves now."""
        self._finished = True
        self._transport.reset(self.stream, code)

    def _check_open(self) -> None:
        if self._inbox.error is not None:
            raise self._inbox.error
        if self._finished or (self._inbox.over and self.task is None):
            raise Refused("the stream has ended")

    def _wake_reader(self) -> int:
        if self._reader is None or self._reader.done():
            return 0
        self._reader.set_result(None)
        return 1

    def _wake_writers(self) -> int:
        waiting = [waiter for waiter in self._writers if not waiter.done()]
        self._writers.clear()
        for waiter in waiting:
            waiter.set_result(None)
        return len(waiting)


class _StreamArrival:
    """An arrival that fails when its stream fails: implements `Arrival`."""

    def __init__(self, inner: Arrival, stream: RpcStream) -> None:
        self.transfer = inner.transfer
        self._inner = inner
        self._stream = stream

    async def wait(self) -> None:
        await self._stream.unless_failed(self._inner.wait())

    def cancel(self) -> None:
        self._inner.cancel()


@asynccontextmanager
async def within(timeout_s: float | None, what: str) -> AsyncIterator[None]:
    """Raise Late if the block does not end within `timeout_s`; `what` names it."""
    try:
        async with asyncio.timeout(timeout_s) as scope:
            yield
    except TimeoutError as error:
        if isinstance(error, SwarmError) or not scope.expired():
            raise
        raise Late(f"{what}: not done within {timeout_s:g} s") from error


@asynccontextmanager
async def held(stream: RpcStream) -> AsyncIterator[RpcStream]:
    """End a stream that we opened together with the block: well, or with its error."""
    try:
        yield stream
    except SwarmError as error:
        stream.finish(error)
        raise
    except BaseException:
        stream.give_up(RESET_GIVEN_UP)
        raise
    stream.finish(None)
