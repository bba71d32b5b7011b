"""A server's attendance: whether it serves now, rests, or ends by itself.

It rests outside of its hours, and while its owner has paused it. It ends after so many seconds
without a run, if its settings say so (`serve.leave`). A rest does not count: the owner knows of it.

Units:   seconds on the loop's clock; hours as a clock on the wall shows them.
"""

import math
from datetime import datetime

from p2pswarm.settings.service_hours import ServingHours, idle_s

LOOK_EVERY_S = 20.0
"""Clocks are set, summer time begins, and machines sleep: so no change of the hours is foreseen."""
PAUSED = "paused: p2pswarm resume goes on"


class Attendance:
    """Decides for one server; every input says what is so from `now_s` on."""

    def __init__(self, leave: str, hours: str, now_s: float, local: datetime) -> None:
        """`leave`, `hours`: the settings of `[serve]`. `local`: what a clock on the wall shows."""
        self._idle_s = idle_s(leave)
        self._hours = ServingHours.of(hours)
        self.paused = False
        self._in_hours = self._hours.serves_at(local)
        self._in_run = self._ended = False
        self._idle_since_s = now_s
        self._look_s = now_s + LOOK_EVERY_S if self._hours.ranges else math.inf

    @property
    def serves(self) -> bool:
        """True if it is to serve now."""
        return self._in_hours and not self.paused

    @property
    def why_not(self) -> str:
        """Why it rests, for its owner; empty if it serves."""
        if self.paused:
            return PAUSED
        return "" if self._in_hours else f"resting until its hours, {self._hours} (serve.hours)"

    def on_pause(self, now_s: float) -> None:
        """The owner wants the machine."""
        self.paused = True
        self._begin_idling(now_s)

    def on_resume(self, now_s: float) -> None:
        """The owner gives it back; outside of its hours it still rests."""
        self.paused = False
        self._begin_idling(now_s)

    def on_run(self, now_s: float, *, within: bool) -> None:
        """The server has a session with a trainer from now on, or has none any more."""
        self._in_run = within
        self._begin_idling(now_s)

    def next_deadline_s(self) -> float:
        """Time to call `on_deadline`; infinite if nothing changes by time."""
        return min(self._look_s, self._idle_ends_s())

    def on_deadline(self, now_s: float, local: datetime) -> None:
        """Look at the clock on the wall, if it is time."""
        if now_s < self._look_s:
            return
        self._look_s = now_s + LOOK_EVERY_S
        before, self._in_hours = self._in_hours, self._hours.serves_at(local)
        if before != self._in_hours:
            self._begin_idling(now_s)

    def end(self, now_s: float) -> str:
        """Why the server ends by itself, for its owner; empty if it does not.

        Once it is to end it does, also if a run is found while it leaves.
        """
        self._ended = self._ended or now_s >= self._idle_ends_s()
        if not self._ended:
            return ""
        return f"no run for {self._idle_s:.0f} s: this server ends (serve.leave)"

    def _idle_ends_s(self) -> float:
        if self._idle_s is None or self._in_run or self._ended or not self.serves:
            return math.inf
        return self._idle_since_s + self._idle_s

    def _begin_idling(self, now_s: float) -> None:
        self._idle_since_s = now_s
