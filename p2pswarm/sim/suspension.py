"""A process that is stopped, as by SIGSTOP: it runs nothing until it goes on.

Its kernel still takes what the network brings. When the process goes on, everything that came is
read first; then the timers fire that are overdue, and the tasks go on that were to run.

A process runs in contexts of its own, in which `PROCESS` names its suspension. So the event loop
knows whose handles it runs. What the network does belongs to no process: it runs in `WORLD`.

Units:   none.
Errors:  none.
"""

import contextvars
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Resumable(Protocol):
    """Something that the event loop was to run in a process that is stopped."""

    def resume(self) -> None:
        """Run it in the next turn of the loop."""
        ...


class Suspension:
    """Whether one process is stopped, and what waits until it goes on."""

    def __init__(self) -> None:
        self.context = contextvars.copy_context()
        """A context of the process: what starts in it belongs to the process."""
        self.context.run(PROCESS.set, self)
        self.stopped = False
        """Whether the process runs nothing now."""
        self._stops = 0
        self._arrivals: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._waiting: list[Resumable] = []

    def stop(self) -> None:
        """Stop it; as often as it is stopped, it has to be continued."""
        self._stops += 1
        self.stopped = True

    def go_on(self) -> None:
        """Continue it: first comes what arrived, then what was to run."""
        self._stops -= 1
        if self._stops == 0:
            self.release()

    def release(self) -> None:
        """Run all that waits, however often the process was stopped: it goes on, or it ends."""
        self._stops = 0
        self.stopped = False
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            one.resume()
        arrivals, self._arrivals = self._arrivals, deque()
        for event, args in arrivals:
            self.context.run(event, *args)

    def forget_arrivals(self) -> None:
        """Forget what came and was not read: the process has ended."""
        self._arrivals.clear()

    def wait(self, one: Resumable) -> None:
        """Keep something that was to run while the process is stopped."""
        self._waiting.append(one)

    def arrived(self, event: Callable[..., object], *args: Any) -> None:
        """Let the network tell the process something, now or when it goes on."""
        if self.stopped:
            self._arrivals.append((event, args))
        else:
            self.context.run(event, *args)


PROCESS: contextvars.ContextVar[Suspension | None] = contextvars.ContextVar("PROCESS", default=None)
WORLD = contextvars.Context()
