"""The clock of a server's attendance: wakes it, and tells a run's server when to leave."""

import asyncio
import math
from collections.abc import Callable
from datetime import datetime

from p2pswarm.base.signal import Signal
from p2pswarm.node.attendance import Attendance
from p2pswarm.node.shutdown import LeaveRequest, unless
from p2pswarm.server.leadership import Seeker
from p2pswarm.settings.node_config import ServeConfig


class AttendanceClock:
    """Keeps the deadlines of one server's attendance; tasks wait here for what it decides."""

    def __init__(self, serve: ServeConfig, local: Callable[[], datetime]) -> None:
        """`local`: the present time as a clock on the wall shows it."""
        self._loop = asyncio.get_running_loop()
        self._local = local
        self._grace_s = serve.grace_s
        self._rule = Attendance(serve.leave, serve.hours, self._now_s(), local())
        self._changed = Signal()
        self._out = Signal()
        self._within = False

    @property
    def end(self) -> str:
        """Why the server ends by itself; empty if it does not."""
        return self._rule.end(self._now_s())

    @property
    def rests(self) -> str:
        """Why it rests; empty if it serves."""
        return self._rule.why_not

    async def keep(self) -> None:
        """Keep the deadlines, until cancelled."""
        while True:
            deadline_s = self._rule.next_deadline_s()
            try:
                async with asyncio.timeout_at(None if math.isinf(deadline_s) else deadline_s):
                    await self._changed.wait()
            except TimeoutError:
                self._rule.on_deadline(self._now_s(), self._local())
                self._changed.fire()

    async def pause(self) -> str:
        """Rest until `resume`; returns what to tell the owner once the run is left."""
        self._rule.on_pause(self._now_s())
        self._changed.fire()
        while self._within and self._rule.paused:
            await self._out.wait()
        return self._rule.why_not or "it serves again"

    async def resume(self) -> str:
        """Serve again; returns what to tell the owner."""
        self._rule.on_resume(self._now_s())
        self._changed.fire()
        return self._rule.why_not or "it looks for a run"

    async def until_serving(self) -> None:
        """Return when the server is to serve, or ends by itself."""
        while not (self._rule.serves or self.end):
            await self._changed.wait()

    async def pass_on(self, leaving: LeaveRequest, leave: LeaveRequest) -> None:
        """Set `leave` when the process is to end, or when the server rests or ends by itself."""
        while self._rule.serves and not self.end and not leaving.is_set():
            await unless(leaving, self._changed.wait())
        leave.grace_s = leaving.grace_s if leaving.is_set() else self._grace_s
        leave.patient = leaving.patient
        leave.set()

    def entered(self) -> None:
        """The server tries to serve a run."""
        self._within = True

    def left(self) -> None:
        """It is out of that run."""
        self._within = False
        self._out.fire()

    async def follow(self, seeker: Seeker) -> None:
        """Note when a server has a session with its trainer; until cancelled."""
        within = False
        try:
            while True:
                if seeker.in_run != within:
                    within = not within
                    self._note(within=within)
                await seeker.changed()
        finally:
            if within:
                self._note(within=False)

    def _note(self, *, within: bool) -> None:
        self._rule.on_run(self._now_s(), within=within)
        self._changed.fire()

    def _now_s(self) -> float:
        return self._loop.time()
