"""The request to leave, as a node's process gives it to its role."""

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")
INTERRUPTED = 130  # 128 + SIGINT, as shells count
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # Windows has no SIGHUP
LEAVE_S = 3.0  # a person who pressed Ctrl-C waits; leaving after the step saves a replay


def ending_signals() -> list[int]:
    """The signals that ask a process to end, but for those that it ignores: nohup does SIGHUP."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


class LeaveRequest(asyncio.Event):
    """Set when the node is to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.grace_s = LEAVE_S
        """The most time that leaving may take; final once the event is set."""
        self.patient = False
        """A person or a signal asked, who can ask again: leaving may wait for what is `saving`."""
        self.saving = False
        """The role saves what would be lost: leaving has no limit meanwhile."""

    @contextlib.contextmanager
    def saved(self) -> Iterator[None]:
        """Let a block last that saves what would be lost."""
        self.saving = True
        try:
            yield
        finally:
            self.saving = False


async def unless(leaving: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of `work`, or None if we are asked to leave first."""
    async with asyncio.TaskGroup() as tasks:
        doing = tasks.create_task(work)
        asked = tasks.create_task(leaving.wait())
        await asyncio.wait((doing, asked), return_when=asyncio.FIRST_COMPLETED)
        doing.cancel()
        asked.cancel()
    return None if doing.cancelled() else doing.result()
