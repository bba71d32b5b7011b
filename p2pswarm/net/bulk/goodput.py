"""GoodputMeter: what bulk connections carry for each second in which there is work.

It is told at every tick what was carried so far. A tick with work at both of its ends counts, the
pauses between bursts do not. After `settle` SETTLE_S are not counted: connections that have
just begun are in slow start, and fill buffers.

Units:   bytes, seconds on the caller's monotonic clock.
Errors:  none.
Source:  docs/bulk.md.
"""

TICK_S = 0.25
"""Between two looks at a link that has work: a burst of 8 MB takes 0.3 s at 200 Mbit/s."""
SETTLE_S = 4.0
"""Slow start overshoots: with cubic, 150 ms and 0.1 % loss, four new connections carry 125 Mbit/s
for three seconds, and 15 from then on."""
WINDOW_S = 4.0
"""Twenty round trips around the world, and some losses where there are any."""


class GoodputMeter:
    """Measures one link; `at_s` is when to call `tick`."""

    __slots__ = ("_bytes", "_last_bytes", "_last_s", "_work_s", "at_s")

    def __init__(self) -> None:
        self.at_s: float | None = None
        """The next tick; None while there is no work."""
        self._last_s = 0.0
        self._last_bytes = 0
        self.settle()

    def settle(self) -> None:
        """Begin again, because something was changed."""
        self._work_s = -SETTLE_S
        self._bytes = 0

    def begin(self, carried_bytes: int, now_s: float) -> None:
        """Note that there is work from now on; does nothing if there was."""
        if self.at_s is None:
            self._last_s, self._last_bytes = now_s, carried_bytes
            self.at_s = now_s + TICK_S

    def tick(self, carried_bytes: int, now_s: float, *, busy: bool) -> float | None:
        """Take a look; returns the bytes a second of a whole window, if one is over."""
        if not busy:
            self.at_s = None
            return None
        took_s = now_s - self._last_s
        counts = self._work_s >= 0.0
        self._work_s += took_s
        if counts:
            self._bytes += carried_bytes - self._last_bytes
        elif self._work_s >= 0.0:
            self._work_s = 0.0
        self._last_s, self._last_bytes = now_s, carried_bytes
        self.at_s = now_s + TICK_S
        if self._work_s < WINDOW_S:
            return None
        goodput = self._bytes / self._work_s
        self._work_s = 0.0
        self._bytes = 0
        return goodput
