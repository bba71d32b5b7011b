"""Work that ends with its block, and work that is done even if its caller is cancelled."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class Closing(ABC):
    """Something that is over after its block. What begins with the block overrides `__aenter__`."""

    @abstractmethod
    async def close(self) -> None:
        """End it."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end, and only then obey a cancellation.

    A handler is cancelled when its link is lost, when its caller's deadline has passed, or when its
    session is over. What changes weights must not stop half-way then. An error of the work is
    raised even then: it ends the caller too, and says more.
    """
    task = asyncio.ensure_future(work)
    over, cancelled = asyncio.Event(), None
    task.add_done_callback(lambda _: over.set())
    while not task.done():
        try:
            await over.wait()
        except asyncio.CancelledError as error:
            cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


def obey_cancellation() -> None:
    """Raise CancelledError if the present task was told to end.

    For who catches an error and goes on. A `TaskGroup` that is cancelled in the moment in which one
    of its tasks fails raises that error alone, and whoever cancelled it waits in vain.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class OwnedTasks:
    """Tasks that `close` ends."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.closing = False
        """True if `close` was called: start nothing that it would have to wait for."""

    def spawn(
        self, work: Coroutine[None, None, None], end: Callable[[], object] | None = None
    ) -> asyncio.Task[None]:
        """Start a task. `end` is called when it is over, even if it never ran."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        if end is not None:
            task.add_done_callback(lambda _: end())
        return task

    async def close(self) -> None:
        """Cancel every task, and return when all are over."""
        self.closing = True
        while self._tasks:
            task = next(iter(self._tasks))
            task.cancel()
            await asyncio.wait([task])
