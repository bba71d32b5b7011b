"""SEAM 2 simulated: calls between thousands of nodes in one process, without crypto or mux.

Messages pass as objects; what a real link would do to them in time is done,
what it would do in cycles is not. A call costs two timers on the loop and a
future, so that 10,000 nodes can look each other up in seconds.

Where the real network differs for those who care:
* a dead host answers nothing, so its callers wait for their deadline; a dead
  process (`silent=False`) is refused or lost at once by its host's kernel;
* a link is made with the first call if `dial_rtts` says so, and is kept.

Units:   virtual seconds, bytes.
Errors:  as `rpc/base.py`.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from p2pswarm.errors import (
    BadHandshake,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.rpc.concurrency_limit import HandlerLimits
from p2pswarm.rpc.framing import (
    Kind,
    error_for_caller,
    error_of,
    failure_of,
    reset_error,
    status_of,
)
from p2pswarm.rpc.handler_pool import HandlerPool, HandlerRequest
from p2pswarm.rpc.stream import RpcStream, held, within
from p2pswarm.sim.process import Population, SimProcess
from p2pswarm.sim.stream import SimReceiveBuffers, SimStreamTransport, connect_streams
from p2pswarm.sim.world import Host
from p2pswarm.wire.message import Message, decode, encode

M = TypeVar("M", bound=Message)

MESSAGE_BYTES = 200  # charged where messages are not encoded: a DHT call with its frame and tags


class SimRpc(SimProcess):
    """One simulated process: implements `Rpc`."""

    def __init__(self, world: "SimWorld", host: Host, config: HandlerLimits) -> None:
        super().__init__(world, host)
        self.unary_handlers: dict[type[Message], UnaryHandler[Any]] = {}
        self.stream_handlers: dict[type[Message], StreamHandler[Any]] = {}
        self.pools = {kind: HandlerPool(config) for kind in Kind}
        self.buffers = SimReceiveBuffers()

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        self.unary_handlers[request] = handler

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        self.stream_handlers[opening] = handler

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once; see `Rpc`."""
        loop = asyncio.get_running_loop()
        call = _Call(self, loop.create_future(), timeout_s)
        late = loop.call_later(timeout_s, call.expire)
        try:
            call.begin(to, request)
            return await call.waiter
        finally:
            late.cancel()
            call.end()

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[RpcStream]:
        """Open an exchange; see `Rpc`."""
        body = encode(opening)
        async with within(timeout_s, f"stream with {to.address}"):
            server = await self.connect(to)
            here = connect_streams(self, server, (self.buffers, server.buffers))
            stream = here.stream = RpcStream(here)
            here.post(len(body), server.opened, here.far, decode(body), timeout_s)
            try:
                async with held(stream):
                    yield stream
            finally:
                here.leave()

    def opened(self, here: SimStreamTransport, opening: Message, timeout_s: float | None) -> None:
        """A peer opened a stream."""
        stream = RpcStream(here)
        try:
            self._attend(stream, here, opening, timeout_s)
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            stream.finish(error_for_caller(error, opening))

    def _attend(
        self, stream: RpcStream, here: SimStreamTransport, opening: Message, timeout_s: float | None
    ) -> None:
        handler = self.stream_handlers.get(type(opening))
        if handler is None:
            raise NotServing(f"no streams of {type(opening).__name__} here")
        order = HandlerRequest(here.peer, opening, timeout_s, here.leave)
        self.pools[Kind.STREAM].start(stream, order, handler(stream, opening))
        here.stream = stream

    def stop(self, *, silent: bool) -> None:
        """The process ends, and its handlers with it."""
        super().stop(silent=silent)
        for pool in self.pools.values():
            pool.stop()


class SimWorld(Population[SimRpc]):
    """The network of one simulated run, and the processes on its hosts."""

    def rpc(
        self,
        peer: PeerId,
        at: tuple[float, float] | None = None,
        config: HandlerLimits | None = None,
    ) -> SimRpc:
        """Start a process of `peer` on its host; `at` places a new one in the unit square."""
        return self.start(SimRpc(self, self.enter(peer, at), config or HandlerLimits()))


class _Call:
    """One call on its way: what happens to it, event by event."""

    __slots__ = (
        "_caller",
        "_ended",
        "_replied",
        "_server",
        "_target",
        "_timeout_s",
        "task",
        "waiter",
    )

    def __init__(self, caller: SimRpc, waiter: asyncio.Future[Message], timeout_s: float) -> None:
        self.waiter = waiter
        self.task: asyncio.Task[Any] | None = None
        self._caller = caller
        self._timeout_s = timeout_s
        self._target: Host | None = None
        self._server: SimRpc | None = None
        self._ended = False
        self._replied = False

    def begin(self, to: Contact, request: Message) -> None:
        """At the caller: dial if there is no link, and send."""
        caller = self._caller
        target, meant = caller.population.find(to)
        if not caller.running or target is None:
            return  # nobody is there to answer, or we are dead ourselves
        loop = asyncio.get_running_loop()
        if not meant:
            error = BadHandshake(f"{to.address} is not {to.peer}")
            loop.call_later(2 * caller.way_s(target), self.settle, error)
        elif dial_s := caller.dial_s(target):
            loop.call_later(dial_s, self._send, target, request)
        else:
            self._send(target, request)

    def _send(self, target: Host, request: Message) -> None:
        if not self._ended:
            self._target = target
            request, size_bytes = self._carried(request)
            self._caller.deliver(target, size_bytes, self._arrive, request)

    def _carried(self, m: Message) -> tuple[Message, int]:
        """A message as the other side sees it, and its bytes."""
        if not self._caller.world.config.through_codec:
            return m, MESSAGE_BYTES
        body = encode(m)
        return decode(body), len(body)

    def _arrive(self, request: Message) -> None:
        """At the server: answer at once, or start a handler."""
        caller, target = self._caller, self._target
        assert target is not None
        server: SimRpc | None = caller.population.at(target)
        if server is None:
            if target.alive:
                error = DialFailed(f"nobody listens at {target.address}")
                asyncio.get_running_loop().call_later(caller.way_s(target), self.settle, error)
            return
        if caller.world.config.dial_rtts:
            server.note_link(caller.host, caller, 0.0)
        self._server = server
        try:
            self._serve(server, request)
        except Exception as error:  # noqa: BLE001  told to the caller, and logged if ours
            self.finish(error_for_caller(error, request))

    def _serve(self, server: SimRpc, request: Message) -> None:
        handler = server.unary_handlers.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        peer = self._caller.host.peer
        outcome = handler(peer, request)
        if isinstance(outcome, Coroutine):
            order = HandlerRequest(peer, request, self._timeout_s, self._done)
            server.pools[Kind.UNARY].start(self, order, outcome)
            server.lost[self] = self._lose
        else:
            self.finish(outcome)

    def _done(self) -> None:
        assert self._server is not None
        self._server.lost.pop(self, None)

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """At the server: the handler is done."""
        self._replied = True
        size_bytes = MESSAGE_BYTES
        assert self._server is not None
        if isinstance(outcome, SwarmError):
            outcome = error_of(status_of(outcome), failure_of(outcome))
        elif outcome is None:
            outcome = Refused("internal error")
        else:
            outcome, size_bytes = self._carried(outcome)
        self._server.deliver(self._caller.host, size_bytes, self.settle, outcome)

    def give_up(self, code: int) -> None:
        """At the server: the handler was stopped."""
        self.finish(reset_error(code))

    def expire(self) -> None:
        """At the caller: the deadline has passed, also for one that is dead and does not know."""
        if not self.waiter.done():
            self.waiter.set_exception(Late("no reply by the deadline"))

    def settle(self, outcome: Message | SwarmError) -> None:
        """At the caller: it has come."""
        if self.waiter.done() or not self._caller.running:
            return
        if isinstance(outcome, SwarmError):
            self.waiter.set_exception(outcome)
        else:
            self.waiter.set_result(outcome)

    def _lose(self, wait_s: float) -> None:
        """The server's process died while its handler was at work."""
        assert self._target is not None
        wait_s = max(wait_s, self._caller.way_s(self._target))
        error = LinkLost("the process at the other end is gone")
        asyncio.get_running_loop().call_later(wait_s, self.settle, error)

    def end(self) -> None:
        """At the caller, whatever came of it: a handler that still runs is to stop."""
        self._ended = True
        if self._target is not None and not self._replied:
            self._caller.deliver(self._target, MESSAGE_BYTES, self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
