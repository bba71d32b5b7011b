"""AlteredBytes: what a record that is not authentic costs a link, and which ways are tried last.

TCP delivers wrong bytes where a relay or a router alters them, or faulty memory does. Such a record
costs the path that brought it, not the link: the next path begins with that very record. The way of
the path is tried last for some minutes. A link whose paths bring such records again and again ends,
so a forger has a bounded number of tries.

Units:   `now_s` seconds on the caller's monotonic clock; counts.
Errors:  none.
Source:  docs/paths.md; RFC 9001, 6.6, for how many forgeries a cipher bears.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from p2pswarm.net.link.path import Way

PATHS_MAX = 8
"""At so many paths of one link within `WITHIN_S` it ends: it has tried two relays and the direct
way twice each by then. Each try costs a forger a path, a round trip, and a proof of who is at the
other end. At this pace a year has 2^22 of them; RFC 9001 allows 2^52 for AES-GCM and 2^36 for
ChaCha20-Poly1305."""
WITHIN_S = 60.0
LAST_S = 300.0
"""So long an altering way is tried last: a relay that was started again is sound by then."""
WAYS_MAX = 16
"""So many altering ways are remembered for a link, and as many ways of its latest paths."""


class AlteredBytes:
    """The paths of one link that brought a record which was not authentic."""

    __slots__ = ("_at_s", "count")

    def __init__(self) -> None:
        self._at_s: deque[float] = deque(maxlen=PATHS_MAX)
        self.count = 0
        """How many paths have done so, in all."""

    def note(self, now_s: float) -> bool:
        """Count a path; returns whether the link must end, because there were too many."""
        self.count += 1
        self._at_s.append(now_s)
        return len(self._at_s) == PATHS_MAX and now_s - self._at_s[0] < WITHIN_S


class WayMarks:
    """The ways of one link that alter bytes, and the numbers of the paths that took a way."""

    __slots__ = ("_marked", "_taken")

    def __init__(self) -> None:
        self._marked: list[tuple[Way, float]] = []
        self._taken: list[tuple[int, Way]] = []

    def taken(self, number: int, way: Way | None) -> None:
        """Note that path `number` came about by this way; None if the peer took one."""
        if way is not None:
            self._taken = [*self._taken[1 - WAYS_MAX :], (number, way)]

    def altered(self, number: int, now_s: float) -> None:
        """Note that path `number` brought wrong bytes, to us or to the peer, which says so."""
        for one, way in self._taken:
            if one == number:
                others = [(other, at_s) for other, at_s in self._marked if other != way]
                self._marked = [*others[1 - WAYS_MAX :], (way, now_s)]

    def sound(self, ways: Iterable[Way], now_s: float) -> list[Way]:
        """Those of the ways that have not altered bytes lately, in their order."""
        marked = [way for way, at_s in self._marked if now_s < at_s + LAST_S]
        return [way for way in ways if way not in marked]

    def in_order(self, ways: Sequence[Way], now_s: float) -> list[Way]:
        """The ways in the order in which to try them: those that alter bytes last."""
        sound = self.sound(ways, now_s)
        return sound + [way for way in ways if way not in sound]
