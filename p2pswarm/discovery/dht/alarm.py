"""Alarm: one timer that wakes its owner at the next deadline.

A deadline changes often, mostly to a later time. So the timer is changed only if it would
fire too late. Firing too early does no harm: the owner asks its machine for the next
deadline and sets the alarm again.

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
    """The part of an event loop that an alarm uses."""

    def call_at(self, when: float, callback: Callable[[], None]) -> AlarmTimer:
        """Call `callback` at the time `when`."""
        ...


class Alarm:
    """Calls `ring` at the earliest deadline that was set, or before it."""

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
