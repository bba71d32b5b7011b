"""HandlerPool: runs handlers in tasks that it owns, up to a limit, until their deadlines.

Real and simulated calls and streams are all served here, so that admission,
deadlines and what becomes of a handler's errors are the same everywhere.

Units:   seconds.
Errors:  Busy where too many handlers run.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from p2pswarm.errors import Busy, SwarmError
from p2pswarm.ids import PeerId
from p2pswarm.rpc.concurrency_limit import ConcurrencyLimit, HandlerLimits
from p2pswarm.rpc.framing import RESET_LATE, RESET_LEAVING, error_for_caller
from p2pswarm.wire.message import Message


class HandlerOwner(Protocol):
    """Whom a handler works for."""

    task: asyncio.Task[Any] | None
    """The handler, once it has started."""

    def finish(self, outcome: Message | SwarmError | None) -> None:
        """The handler is done: with a reply, an error, or a good end without a word."""
        ...

    def give_up(self, code: int) -> None:
        """The handler was stopped."""
        ...


@dataclass(frozen=True, slots=True)
class HandlerRequest:
    """One request to serve."""

    peer: PeerId
    request: Message
    timeout_s: float | None
    after: Callable[[], None]
    """Called once the handler is done, however it ended."""


class HandlerPool:
    """The handlers at work for peers."""

    def __init__(self, config: HandlerLimits) -> None:
        self._limit = ConcurrencyLimit(config)
        self._tasks: dict[asyncio.Task[Any], None] = {}

    def start(
        self, server: HandlerOwner, order: HandlerRequest, work: Coroutine[Any, Any, Any]
    ) -> None:
        """Run `work`, which is closed unrun where there is no room for it."""
        if not isinstance(work, Coroutine):
            raise TypeError(f"a handler gave {work!r}")
        try:
            self._limit.enter(order.peer)
        except Busy:
            work.close()
            raise
        loop = asyncio.get_running_loop()
        task = server.task = loop.create_task(work)
        self._tasks[task] = None
        late = None if order.timeout_s is None else loop.call_later(order.timeout_s, task.cancel)

        def done(task: asyncio.Task[Any]) -> None:
            del self._tasks[task]
            self._limit.leave(order.peer)
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
        """Cancel every handler; wait for what is returned."""
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
