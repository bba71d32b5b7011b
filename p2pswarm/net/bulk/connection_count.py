"""ConnectionCount: how many bulk connections a link should have, by what they carry.

It climbs: twice as many, if they carry GAIN times as much; half as many, if they carry KEEP times
as much. Between the two nothing is kept, so noise does not make it swing. When more do not help, or
there is no room, it pauses, twice as long each time.

Units:   `now_s` seconds on the caller's monotonic clock; bytes a second.
Errors:  none.
Source:  docs/bulk.md, with the reason for each number.
"""

from dataclasses import dataclass
from enum import Enum, auto

GAIN = 1.2
KEEP = 0.95
PAUSE_S = 30.0
PAUSE_S_MAX = 600.0


class Climb(Enum):
    """Which way is tried."""

    UP = auto()
    DOWN = auto()


@dataclass(frozen=True, slots=True)
class _Trial:
    """A step whose verdict is awaited."""

    climb: Climb
    count: int
    """How many there were before."""
    goodput: float
    """What those carried."""


class ConnectionCount:
    """The number of connections of one path. Read `wanted` after each call."""

    __slots__ = ("_floor", "_most", "_next", "_pause_s", "_rest_until_s", "_trial", "wanted")

    def __init__(self, floor: int, most: int, now_s: float, begin: int = 0) -> None:
        """`floor`: how many there are at least. `begin`: how many were best before; 0: unknown."""
        self._floor = min(floor, most)
        self._most = most
        self.wanted = min(max(begin, floor), most)
        self._next = Climb.UP
        self._pause_s = PAUSE_S
        self._rest_until_s = now_s + PAUSE_S if begin else now_s
        self._trial: _Trial | None = None

    @property
    def settled(self) -> int:
        """The best number that is known: the one before the step that is being tried, if any."""
        return self.wanted if self._trial is None else self._trial.count

    def measured(self, goodput: float, live: int, now_s: float) -> bool:
        """Take what the connections carried in a window; returns whether `wanted` has changed.

        `live`: how many there were; a window in which some were missing or spare says nothing.
        """
        if live != self.wanted:
            return False
        before = self.wanted
        trial, self._trial = self._trial, None
        if trial is not None:
            self._judge(trial, goodput, now_s)
        if self.wanted == before and now_s >= self._rest_until_s:
            self._try(goodput, now_s)
        return self.wanted != before

    def refused(self, live: int, now_s: float) -> None:
        """Note that another connection cannot be made: those that are there must do for now."""
        self._trial = None
        self.wanted = max(1, min(self.wanted, live))
        self._turn(Climb.UP, now_s)

    def _judge(self, trial: _Trial, goodput: float, now_s: float) -> None:
        """Keep a step or take it back."""
        least = GAIN if trial.climb is Climb.UP else KEEP
        if goodput >= least * trial.goodput:
            return
        self.wanted = trial.count
        if trial.climb is Climb.UP:
            self._turn(Climb.DOWN, now_s)
        else:  # fewer carry less: perhaps more carry more
            self._next = Climb.UP

    def _turn(self, to: Climb, now_s: float) -> None:
        """Go this way next, after a pause."""
        self._next = to
        self._rest_until_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _try(self, goodput: float, now_s: float) -> None:
        """Begin the step that is next; at the end of its direction, turn round."""
        up, down = min(2 * self.wanted, self._most), max(self.wanted // 2, self._floor)
        if self._next is Climb.UP and up > self.wanted:
            count = up
        elif self._next is Climb.DOWN and down < self.wanted:
            count = down
        else:
            self._turn(Climb.UP if self._next is Climb.DOWN else Climb.DOWN, now_s)
            return
        self._trial = _Trial(self._next, self.wanted, goodput)
        self.wanted = count
