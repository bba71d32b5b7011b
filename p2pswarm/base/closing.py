"""Closing: what ends with its block of `async with`, by its own `close`."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Self


class OwnedTasks:
    """Tasks that `close` ends."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.closing = False
        """Whether `close` was called: start nothing that it would have to wait for."""

    def spawn(
        self, work: Coroutine[None, None, None], end: Callable[[], None] | None = None
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
