"""One timer that wakes its owner at the soonest deadline.

A deadline moves often, mostly to a later time. So the timer stays where it is unless it
would ring too late; ringing too early does no harm, because the owner asks its machine
for the next deadline and sets the alarm again.

Units:   seconds on the clock of the event loop that is given.
Errors:  none.
"""

from collections.abc import Callable
from typing import Protocol


class AlarmTimer(Protocol):
    """A timer of an event loop; `asyncio.TimerHandle` is one."""

    def when(self) -> float:
        """The time at which it fires."""
        ...

    def cancel(self) -> None:
        """Do not fire."""
        ...


class AlarmClock(Protocol):
    """What an alarm asks of the event loop."""

    def call_at(self, when: float, callback: Callable[[], None]) -> AlarmTimer:
        """Call back at that time."""
        ...


class Alarm:
    """Rings once for each time that it is set, at the soonest of the deadlines or before."""

    __slots__ = ("_clock", "_ring", "_timer")

    def __init__(self, clock: AlarmClock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: AlarmTimer | None = None

    def set(self, deadline_s: float | None) -> None:
        """Ring at `deadline_s` at the latest; None leaves the alarm as it is."""
        if deadline_s is None:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = self._clock.call_at(deadline_s, self._on_time)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()
