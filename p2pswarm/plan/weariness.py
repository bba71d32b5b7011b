"""When a run has had enough of moving: where speeds wander by themselves, moves do not settle it.

Each move of the last hour raises what the next one has to bring. Moves that answer a change of who
is there do not count where they are cheap: a server that came or went leaves the stages uneven, and
evening them out takes some moves, however often that happens.

Units:   seconds on the caller's clock.
Errors:  none.
Source:  docs/rebalancing.md, "`priced`".
"""

from collections import deque
from collections.abc import Iterable

WEARY = 4.0  # as many moves within an hour as there are servers: a move has to bring 5 times more
WEARY_S = 3600.0
MOVES_A_CHANGE = 4  # an exchange for the stage that it changed, one for the stage that gave to it
REMEMBERED_MAX = 4096  # as many servers as a run can have


class Weariness:
    """The moves and the changes of the last hour."""

    def __init__(self) -> None:
        self._moved_s: deque[float] = deque(maxlen=REMEMBERED_MAX)
        """When servers were sent."""
        self._changed_s: deque[float] = deque(maxlen=REMEMBERED_MAX)
        """When servers were seen to have come or gone."""
        self._there: frozenset[bytes] | None = None

    def see(self, servers: Iterable[bytes], now_s: float) -> bool:
        """Who is there now; True if somebody has come or gone since the last time."""
        there = frozenset(servers)
        changes = 0 if self._there is None else len(there ^ self._there)
        self._there = there
        self._changed_s.extend([now_s] * min(changes, REMEMBERED_MAX))
        for times_s in (self._moved_s, self._changed_s):
            while times_s and times_s[0] < now_s - WEARY_S:
                times_s.popleft()
        return changes > 0

    def moved(self, now_s: float) -> None:
        """A server was sent to another stage."""
        self._moved_s.append(now_s)

    def factor(self, *, cheap: bool) -> float:
        """By what a move has to bring more than where nobody has moved.

        `cheap`: moves cost little of what they bring; else those that answer a change count as
        well, because the next change undoes many of them before they are paid for.
        """
        excess = len(self._moved_s) - MOVES_A_CHANGE * len(self._changed_s) * cheap
        return 1.0 + WEARY * max(0, excess) / max(1, len(self._there or ()))
