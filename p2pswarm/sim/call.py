"""One simulated call, event by event: at its caller, on the way, at its server, and back.

Messages pass as objects. They take the time that a real link would take, but not its processor
time. A call costs two timers on the loop and a future.

Three cases of the real network are simulated:
* A dead host answers nothing, so its callers wait for their deadline.
* If only the process is dead (`silent=False`), its host's kernel refuses calls at once.
* The first call to a peer makes a link if `dial_rtts` is not 0; the link is kept.

Units:   virtual seconds, bytes.
Errors:  as `net/rpc/base.py`; the waiter gets them.
"""

from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

from p2pswarm.base.errors import (
    BadHandshake,
    BadMessage,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
    Refused,
    SwarmError,
)
from p2pswarm.base.ids import Contact
from p2pswarm.net.guard.slots import HandlerLimits
from p2pswarm.net.rpc.base import StreamHandler, UnaryHandler
from p2pswarm.net.rpc.framing import (
    OPENING_BYTES,
    Kind,
    error_for_caller,
    error_of,
    failure_of,
    fits,
    reset_error,
    status_of,
)
from p2pswarm.net.rpc.handler_pool import HandlerPool, HandlerRequest
from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.sim.link import SimLink
from p2pswarm.sim.process import Population, SimProcess
from p2pswarm.sim.world import Host

M = TypeVar("M", bound=Message)

MESSAGE_BYTES = 200  # size of a message that is not encoded: a DHT call with its frame and tags


class ReplyWaiter(Protocol):
    """What waits for the outcome of a call; a future is one."""

    def done(self) -> bool:
        """Whether it has stopped waiting."""
        ...

    def set_result(self, result: Message, /) -> None:
        """The reply has come."""
        ...

    def set_exception(self, exception: SwarmError, /) -> None:
        """The call has failed."""
        ...


class SimPeer(SimProcess):
    """A process with its handlers of calls and streams."""

    def __init__(self, population: Population[Any], host: Host, limits: HandlerLimits) -> None:
        super().__init__(population, host)
        self.unary_handlers: dict[type[Message], UnaryHandler[Any]] = {}
        self.stream_handlers: dict[type[Message], StreamHandler[Any]] = {}
        self.pools = {kind: HandlerPool(limits) for kind in Kind}

    def serve_unary(self, request: type[M], handler: UnaryHandler[M]) -> None:
        """Serve calls of one message type."""
        self.unary_handlers[request] = handler

    def serve_stream(self, opening: type[M], handler: StreamHandler[M]) -> None:
        """Serve streams that open with one message type."""
        self.stream_handlers[opening] = handler

    def stop(self, *, silent: bool) -> None:
        """The process ends, and its handlers with it."""
        super().stop(silent=silent)
        for pool in self.pools.values():
            pool.stop()


class SimCall:
    """One call on its way: each method is an event of it."""

    __slots__ = (
        "_caller",
        "_ended",
        "_link",
        "_replied",
        "_request_bytes",
        "_server",
        "_target",
        "_timeout_s",
        "task",
        "waiter",
    )

    def __init__(self, caller: SimPeer, waiter: ReplyWaiter, timeout_s: float) -> None:
        self.waiter = waiter
        self.task: Any = None
        """The task of the handler, once it has started."""
        self._caller = caller
        self._request_bytes = MESSAGE_BYTES
        self._timeout_s = timeout_s
        self._target: Host | None = None
        self._link: SimLink | None = None
        self._server: SimPeer | None = None
        self._ended = False
        self._replied = False

    def begin(self, to: Contact, request: Message) -> None:
        """At the caller: dial if there is no link, and send."""
        caller = self._caller
        target, meant = caller.population.find(to)
        request, self._request_bytes = self._carried(request)
        if not caller.running or target is None:
            return  # no host has that address, or we are dead ourselves
        if not meant:
            error = BadHandshake(f"{to.address} is not {to.peer}")
            caller.later(2 * caller.way_s(target), self.settle, error)
        elif (link := caller.population.link(caller, target)) is not None:
            self._link = link
            link.join(self, caller, self._lose_link)
            self._send(target, request)
        elif dial_s := caller.dial_s(target):
            caller.clock.call_later(dial_s, self._send, target, request)
        else:
            self._send(target, request)

    def _send(self, target: Host, request: Message) -> None:
        if not self._ended:
            self._target = target
            self._caller.deliver(target, self._request_bytes, self._arrive, request)

    def _carried(self, m: Message) -> tuple[Message, int]:
        """A message as the other side gets it, and its size in bytes."""
        if not self._caller.world.config.through_codec:
            return m, MESSAGE_BYTES
        body = encode(m)
        fits(body, OPENING_BYTES)  # or it may be long: a socket would carry it
        return decode(body), len(body)

    def _arrive(self, request: Message) -> None:
        """At the server: answer at once, or start a handler."""
        caller, target = self._caller, self._target
        assert target is not None
        server: SimPeer | None = caller.population.at(target)
        if server is None:
            if target.alive:
                error = DialFailed(f"nobody listens at {target.address}")
                caller.later(caller.way_s(target), self.settle, error)
            return
        if caller.world.config.dial_rtts:
            server.note_link(caller.host, caller, 0.0)
        self._server = server
        try:
            self._serve(server, request)
        except BadMessage as error:  # a plain function found the request malformed
            self.finish(LinkLost(f"{target.address} ended the link: {error}"))
        except Exception as error:  # noqa: BLE001  the caller gets it; logged if it is a bug
            self.finish(error_for_caller(error, request))

    def _serve(self, server: SimPeer, request: Message) -> None:
        handler = server.unary_handlers.get(type(request))
        if handler is None:
            raise NotServing(f"no calls of {type(request).__name__} here")
        peer = self._caller.host.peer
        outcome = handler(peer, request)
        if isinstance(outcome, Coroutine):
            order = HandlerRequest(peer, request, self._timeout_s, self._done)
            server.pools[Kind.UNARY].start(self, order, outcome)
            server.lost[self] = self._lose
            if self._link is not None:
                self._link.join((self, server), server, self._cancel)
        else:
            self.finish(outcome)

    def _done(self) -> None:
        assert self._server is not None
        self._server.lost.pop(self, None)
        if self._link is not None:
            self._link.leave((self, self._server))

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
            try:
                outcome, size_bytes = self._carried(outcome)
            except ValueError as error:  # a reply that cannot travel is a bug, as in `LinkRpc`
                outcome = error_for_caller(error, outcome)
        self._server.deliver(self._caller.host, size_bytes, self.settle, outcome)

    def give_up(self, code: int) -> None:
        """At the server: the handler was stopped."""
        self.finish(reset_error(code))

    def expire(self) -> None:
        """At the caller: the deadline has passed; a dead caller gets this too."""
        if not self.waiter.done():
            self.waiter.set_exception(Late("no reply by the deadline"))

    def settle(self, outcome: Message | SwarmError) -> None:
        """At the caller: the outcome has come."""
        if self.waiter.done() or not self._caller.running:
            return
        if isinstance(outcome, SwarmError):
            self.waiter.set_exception(outcome)
        else:
            if self._target is not None:
                self._caller.note_dialled(self._target)
            self.waiter.set_result(outcome)

    def _lose(self, wait_s: float) -> None:
        """The server's process died while its handler was running."""
        assert self._target is not None
        wait_s = max(wait_s, self._caller.way_s(self._target))
        error = LinkLost("the process at the other end is gone")
        self._caller.later(wait_s, self.settle, error)

    def _lose_link(self) -> None:
        """At the caller: the link has ended; a handler that runs learns it from its own end."""
        self.settle(LinkLost("the link was lost before the reply"))

    def end(self) -> None:
        """At the caller, after any outcome: stop a handler that still runs."""
        self._ended = True
        if self._link is not None:
            self._link.leave(self)
        if self._target is not None and not self._replied:
            self._caller.deliver(self._target, MESSAGE_BYTES, self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()
