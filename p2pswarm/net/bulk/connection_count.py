"""ConnectionCount: how many bulk connections a link should have, by what they carry.

Source:  docs/bulk.md, with the reason for each number.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

GAIN = 1.2
KEEP = 0.95
PAUSE_S = 30.0
PAUSE_S_MAX = 600.0


@dataclass(frozen=True, slots=True)
class _Trial:
    """A step whose verdict is awaited, with the number of connections and the goodput before."""

    up: bool
    count: int
    goodput: float


class ConnectionCount:
    """The number of connections of one path. Read `wanted` after each call.

    It climbs: twice as many, if they carry GAIN times as much; half as many, if they carry KEEP
    times as much. Between the two nothing is kept, so noise does not make it swing. When more do
    not help, or there is no room, it pauses, twice as long each time.
    """

    def __init__(self, floor: int, most: int, now_s: float, begin: int = 0) -> None:
        """`floor`: how many there are at least. `begin`: how many were best before; 0: unknown."""
        self._floor = min(floor, most)
        self._most = most
        self.wanted = min(max(begin, floor), most)
        self._up_next = True
        self._pause_s = PAUSE_S
        self._rest_until_s = now_s + PAUSE_S if begin else now_s
        self._trial: _Trial | None = None

    @property
    def settled(self) -> int:
        """The best number that is known: the one before the step that is being tried, if any."""
        return self.wanted if self._trial is None else self._trial.count

    def on_goodput(self, goodput: float, live: int, now_s: float) -> bool:
        """Take the goodput of a window with `live` connections; whether `wanted` has changed."""
        if live != self.wanted:
            return False
        before = self.wanted
        trial, self._trial = self._trial, None
        if trial is not None:
            self._judge(trial, goodput, now_s)
        if self.wanted == before and now_s >= self._rest_until_s:
            self._try(goodput, now_s)
        return self.wanted != before

    def on_refusal(self, live: int, now_s: float) -> None:
        """Note that another connection cannot be made: those that are there must do for now."""
        self._trial = None
        self.wanted = max(1, min(self.wanted, live))
        self._turn(now_s, up=True)

    def _judge(self, trial: _Trial, goodput: float, now_s: float) -> None:
        """Keep a step or take it back."""
        if goodput >= (GAIN if trial.up else KEEP) * trial.goodput:
            return
        self.wanted = trial.count
        if trial.up:
            self._turn(now_s, up=False)
        else:  # fewer carry less: perhaps more carry more
            self._up_next = True

    def _turn(self, now_s: float, *, up: bool) -> None:
        """Go up or down next, after a pause."""
        self._up_next = up
        self._rest_until_s = now_s + self._pause_s
        self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX)

    def _try(self, goodput: float, now_s: float) -> None:
        """Begin the step that is next; at the end of its direction, turn round."""
        if self._up_next:
            count = max(min(2 * self.wanted, self._most), self.wanted)
        else:
            count = min(max(self.wanted // 2, self._floor), self.wanted)
        if count == self.wanted:
            self._turn(now_s, up=not self._up_next)
            return
        self._trial = _Trial(self._up_next, self.wanted, goodput)
        self.wanted = count


TICK_S = 0.25
"""Between two looks at a link that has work: a burst of 8 MB takes 0.3 s at 200 Mbit/s."""
SETTLE_S = 4.0
"""Slow start overshoots: with cubic, 150 ms and 0.1 % loss, four new connections carry 125 Mbit/s
for three seconds, and 15 from then on."""
WINDOW_S = 4.0
"""Twenty round trips around the world, and some losses where there are any."""


class GoodputMeter:
    """Measures one link; `at_s` is when to call `on_deadline`.

    It is told at every tick what was carried so far. A tick with work at both of its ends counts,
    the pauses between bursts do not. After `settle` SETTLE_S are not counted: connections that have
    just begun are in slow start, and fill buffers.
    """

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

    def on_deadline(self, carried_bytes: int, now_s: float, *, busy: bool) -> float | None:
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


REMEMBERED_MAX = 1024  # as many as there may be links: 100 KB


@dataclass(slots=True)
class BestCount:
    """The best count for one peer and one kind of path."""

    count: int = 0
    """The best number; 0: nothing is known."""


class CountMemory:
    """The latest peers that tensors were exchanged with."""

    def __init__(self) -> None:
        self._best: OrderedDict[Hashable, BestCount] = OrderedDict()

    def best(self, *key: Hashable) -> BestCount:
        """Return what is known; whoever finds out more writes it there."""
        found = self._best.setdefault(key, BestCount())
        self._best.move_to_end(key)
        while len(self._best) > REMEMBERED_MAX:
            self._best.popitem(last=False)
        return found
