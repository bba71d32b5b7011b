"""A clock that stands still while its own process is stopped, so that no deadline passes meanwhile.

Units:   seconds; `loop_s` on the event loop's clock, what `read` returns on this one.
"""

TICK_S = 0.5  # the longest pause between two readings while the process runs
LATE_S = 1.0  # a timer that is later than this was stopped; a busy loop is late by less
ROUNDING_S = 1e-6  # sums of times round, and a loop's timer may be early by its resolution
DRAIN_S = 1.0  # to read what came during the stop; a loop reads thousands of messages in it


class SuspendAwareClock:
    """The time for which this process has run.

    A process that was stopped (SIGSTOP, a closed lid, a starved virtual machine) finds every
    deadline overdue when it goes on, and the answers that came meanwhile still unread in its
    sockets. It must not take others for silent that it did not listen to. So it reads this clock
    instead of the loop's. The clock is read every `TICK_S`, by a timer if by nothing else. A
    longer gap between two readings was a stop. It does not count, and the clock stands still a
    moment longer, until what waits was read.
    """

    def __init__(self, loop_s: float) -> None:
        self._seen_s = loop_s
        self._now_s = loop_s
        self._stopped_s = 0.0

    @property
    def stopped_s(self) -> float:
        """Return for how long this process has been stopped in all."""
        return self._stopped_s

    def read(self, loop_s: float) -> float:
        """The time now; it never goes back."""
        gap_s = loop_s - self._seen_s
        if gap_s > TICK_S + LATE_S:
            self._stopped_s += gap_s - TICK_S + DRAIN_S
        self._seen_s = max(self._seen_s, loop_s)
        self._now_s = max(self._now_s, loop_s - self._stopped_s)
        return self._now_s

    def timer_s(self, due_s: float) -> float:
        """The loop's time of its next timer: at `due_s` of this clock, or for the next tick."""
        return min(self._seen_s + TICK_S, due_s + self._stopped_s) + ROUNDING_S
