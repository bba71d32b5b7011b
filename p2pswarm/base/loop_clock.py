"""The event loop's clock: the time on it, waiting for an event until a time, and an alarm."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

from p2pswarm.base.signal import Signal


def now_s() -> float:
    """The time on the running loop's clock."""
    return asyncio.get_running_loop().time()


async def wait_until(event: asyncio.Event | Signal, deadline_s: float | None) -> None:
    """Return when the event has come, or at `deadline_s`; None waits for the event alone."""
    with suppress(TimeoutError):
        async with asyncio.timeout_at(deadline_s):
            await event.wait()


class Alarm:
    """One timer, which calls `ring` at the earliest deadline that was set, or before it.

    A deadline changes often, mostly to a later time. So the timer is changed only if it would fire
    too late. Firing too early does no harm: the owner asks its machine for the next deadline and
    sets the alarm again.
    """

    __slots__ = ("_ring", "_timer")

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring
        self._timer: asyncio.TimerHandle | None = None

    def set(self, deadline_s: float | None) -> None:
        """Ring at `deadline_s` at the latest; None leaves the alarm as it is."""
        if deadline_s is None:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(deadline_s, self._on_time)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()
