"""The end of a node: what Ctrl-C and other signals do, and the request to leave for its role.

| asked by | time to leave | exit code | again |
|---|---|---|---|
| SIGINT, Ctrl-C | `GRACE_S` | 130 | at once |
| SIGTERM | `serve.grace_s` | 143 | nothing: launchers send it to parent and child |
| SIGHUP, a terminal that was closed | `GRACE_S` | 129 | nothing |
| the end of stdin | `GRACE_S` | 143 | |
| the owner, by `p2pswarm drain` | `serve.grace_s` | 0 | |

SIGCONT, which Slurm sends before SIGTERM, is no event: the kernel has woken the process by then.
"""

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from types import FrameType
from typing import Any, TypeVar

from p2pswarm.base.exit_codes import DONE, FAILED, TERMINATED, code_of
from p2pswarm.node.console_end import watch_console_end
from p2pswarm.settings.node_config import NodeConfig

T = TypeVar("T")
LEAVE_S = 4.5  # to leave in order; the whole process then ends within 5 s
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")  # Windows has the last instead of SIGHUP
LEAVING = "leaving; once more to leave at once"
GRACE_S = 3.0  # a person who pressed Ctrl-C waits; leaving after the step saves a replay


def ending_signals() -> list[int]:
    """The signals that ask a process to end, but for those that it ignores: nohup does SIGHUP."""
    numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


class LeaveRequest(asyncio.Event):
    """Set when the node is to leave."""

    def __init__(self) -> None:
        super().__init__()
        self.grace_s = GRACE_S
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


class Shutdown:
    """The end of a process: a signal, the end of stdin, its owner, or the role itself asks for it.

    A person who presses Ctrl-C again ends the process at once. A process that was asked to leave
    ends after `LEAVE_S` at the latest. SIGTERM is how a machine is told that it will end: a stage
    server then may take the time of its settings to hand over.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, config: NodeConfig, say: Callable[[str], None]
    ) -> None:
        """`say`: tells the user a line."""
        self._say = say
        self.asked = LeaveRequest()
        self.code = DONE
        """The exit code of a process that leaves because it was asked; final once it was."""
        self._loop = loop
        self._notice_s = config.serve.grace_s if config.role == "stage" else self.asked.grace_s
        self._begun = False

    def watch_signals(self) -> None:
        """Handle signals from now on, even while the loop is busy."""
        for number in ending_signals():
            signal.signal(number, self._on_signal)
        watch_console_end()

    def watch_stdin(self) -> None:
        """Leave when stdin ends, as it does when the program at its other end ends."""
        threading.Thread(target=self._read_stdin, daemon=True).start()

    async def watch_role(self) -> None:
        """Start the time limit when the role begins to leave by itself."""
        await self.asked.wait()
        self._begin(FAILED)

    def drain(self) -> None:
        """Leave for good, as the owner of this node asks: whoever started it need not do so again.

        Called on the loop.
        """
        if not self._begun:
            self.asked.grace_s, self.asked.patient = self._notice_s, True
            self._begin(DONE)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._begun:
            if number == signal.SIGINT:
                os._exit(code_of(number))
            return
        if code_of(number) == TERMINATED:
            self.asked.grace_s = self._notice_s
        self.asked.patient = True
        self._begin(code_of(number))  # before it is said: stdout may be a terminal that is closed
        self._say(LEAVING if number == signal.SIGINT else "leaving")

    def _read_stdin(self) -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        self._begin(TERMINATED)

    def _begin(self, code: int) -> None:
        if self._begun:
            return
        self._begun, self.code = True, code
        limit_s = LEAVE_S + max(0.0, self.asked.grace_s - GRACE_S)
        self._limit(limit_s, code)
        self._loop.call_soon_threadsafe(self.asked.set)

    def _limit(self, seconds: float, code: int) -> None:
        late = threading.Timer(seconds, self._too_late, (code,))
        late.daemon = True
        late.start()

    def _too_late(self, code: int) -> None:
        """End the process, unless what it saves is worth to wait for."""
        if self.asked.saving and self.asked.patient:
            self._limit(LEAVE_S, code)
        else:
            os._exit(code)
