"""HandlerPool: runs handlers in tasks that it owns, up to a limit, until their deadlines."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from p2pswarm.base.errors import Busy, SwarmError
from p2pswarm.base.ids import PeerId
from p2pswarm.net.guard.connection_limits import ConcurrencyLimit, HandlerLimits
from p2pswarm.net.rpc.framing import RESET_LATE, RESET_LEAVING, error_for_caller
from p2pswarm.net.wire.message import Message


class HandlerOwner(Protocol):
    """The call or stream that a handler serves."""

    task: asyncio.Task[Any] | None
    """The handler's task, once it has started."""

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """The handler has ended with a reply, with an error, or well without a reply (None)."""
        ...

    def give_up(self, code: int) -> None:
        """The handler was stopped; `code` is the reason for the peer."""
        ...


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """One request to serve."""

    peer: PeerId
    request: Message
    timeout_s: float | None
    after: Callable[[], None]
    """Called when the handler has ended, in any way."""
    network: str = ""
    """The network that the peer is in; empty where that does not count."""


class HandlerPool:
    """The handlers that run for peers.

    It serves calls and streams, real and simulated, so that limits, deadlines and the errors of
    handlers work the same everywhere.
    """

    def __init__(self, config: HandlerLimits) -> None:
        self._limit = ConcurrencyLimit(config)
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(
        self, server: HandlerOwner, order: HandlerRequest, work: Coroutine[Any, Any, Any]
    ) -> None:
        """Run `work` in a task; raises Busy and closes `work` if a limit is reached."""
        if not isinstance(work, Coroutine):
            raise TypeError(f"a handler returned {work!r}, not a message or a coroutine")
        try:
            self._limit.enter(order.peer, order.network)
        except Busy:
            work.close()
            raise
        loop = asyncio.get_running_loop()
        task = server.task = loop.create_task(work)
        self._tasks[task] = None
        late = None if order.timeout_s is None else loop.call_later(order.timeout_s, task.cancel)

        def done(task: asyncio.Task[Any]) -> None:
            del self._tasks[task]
            self._limit.leave(order.peer, order.network)
            order.after()
            if late is not None:
                late.cancel()
            if task.cancelled():
                is_late = late is not None and late.when() <= loop.time()
                server.give_up(RESET_LATE if is_late else RESET_LEAVING)
            else:
                server.finish(_outcome(task, order.request))

        task.add_done_callback(done)

    def stop(self) -> tuple[asyncio.Task[Any], ...]:
        """Cancel every handler; returns the tasks to wait for."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        return tasks


def _outcome(task: asyncio.Task[Any], request: Message) -> Message | SwarmError | None:
    error = task.exception()
    if error is None:
        reply: Message | None = task.result()
        return reply
    if not isinstance(error, Exception):
        raise error
    return error_for_caller(error, request)
