"""PathState: what a link knows of the path that carries it, and of the paths that altered bytes.

Source:  docs/paths.md; RFC 9001, 6.6, for how many forgeries a cipher bears.
"""

from collections import deque
from collections.abc import Iterable, Sequence

from p2pswarm.base.errors import BadRecord, LinkLost, SwarmError
from p2pswarm.net.link.path import PathCandidate

PATHS_MAX = 8
"""At so many paths of one link within `WITHIN_S` it ends: it has tried two relays and the direct
candidate twice each by then. Each try costs a forger a path, a round trip, and a proof of who is
at the other end. At this pace a year has 2^22 of them; RFC 9001 allows 2^52 for AES-GCM and 2^36
for ChaCha20-Poly1305."""
WITHIN_S = 60.0
LAST_S = 300.0
"""So long an altering candidate is tried last: a relay that was started again is sound by then."""
CANDIDATES_MAX = 16
"""So many altering candidates are remembered for a link, and as many of its latest paths."""


class CorruptCandidates:
    """The candidates of one link that alter bytes, and the numbers of the paths that took one."""

    def __init__(self) -> None:
        self._marked: list[tuple[PathCandidate, float]] = []
        self._taken: list[tuple[int, PathCandidate]] = []

    def on_path(self, number: int, candidate: PathCandidate | None) -> None:
        """Note that path `number` came about by this way; None if the peer took one."""
        if candidate is not None:
            self._taken = [*self._taken[1 - CANDIDATES_MAX :], (number, candidate)]

    def on_corruption(self, number: int, now_s: float) -> None:
        """Note that path `number` brought wrong bytes, to us or to the peer, which says so."""
        for one, candidate in self._taken:
            if one == number:
                others = [(other, at_s) for other, at_s in self._marked if other != candidate]
                self._marked = [*others[1 - CANDIDATES_MAX :], (candidate, now_s)]

    def sound(self, candidates: Iterable[PathCandidate], now_s: float) -> list[PathCandidate]:
        """Those of the candidates that have not altered bytes lately, in their order."""
        marked = [candidate for candidate, at_s in self._marked if now_s < at_s + LAST_S]
        return [candidate for candidate in candidates if candidate not in marked]

    def in_order(self, candidates: Sequence[PathCandidate], now_s: float) -> list[PathCandidate]:
        """The candidates in the order in which to try them: those that alter bytes last."""
        sound = self.sound(candidates, now_s)
        return sound + [candidate for candidate in candidates if candidate not in sound]


class PathState:
    """The path of one link, as one side sees it.

    TCP delivers wrong bytes where a relay or a router alters them, or faulty memory does. Such a
    record costs the path that brought it, not the link: the next path begins with that very
    record. The candidate of the path is tried last for some minutes. A link whose paths bring such
    records again and again ends, so a forger has a bounded number of tries.
    """

    def __init__(self, *, dialled: bool) -> None:
        """`dialled`: whether we dialled the first path."""
        self.dials = dialled
        """True if we chose the present path: then we dial its bulk connections, too."""
        self.moved = False
        """True if there was another path before."""
        self.by_s: float | None = None
        """The time at which the link is lost for want of a path; None while it has one."""
        self.altered = 0
        """The number of paths that brought a record which was not authentic."""
        self._altered_at_s: deque[float] = deque(maxlen=PATHS_MAX)
        self._why_none: SwarmError | None = None

    def on_loss(self, error: SwarmError, by_s: float) -> None:
        """Note that the path is gone, for this reason; the link waits for another until `by_s`."""
        self._why_none, self.by_s = error, by_s

    def on_path(self, *, dialled: bool) -> None:
        """Note that another path carries the link; `dialled`: whether we took its way."""
        self.by_s, self.moved, self.dials = None, True, dialled

    def loss_error(self, name: str) -> LinkLost:
        """Return what ends a link that found no other path in time."""
        return LinkLost(f"{name}: {self._why_none}, and no other path was found")

    def on_corruption(self, name: str, now_s: float) -> BadRecord | None:
        """Count a record that was not authentic; returns what ends the link, if it must end."""
        self.altered += 1
        self._altered_at_s.append(now_s)
        if len(self._altered_at_s) < PATHS_MAX or now_s - self._altered_at_s[0] >= WITHIN_S:
            return None
        return BadRecord(
            f"{name}: {PATHS_MAX} paths altered bytes within {WITHIN_S:g} s; somebody on the way "
            "or faulty hardware does it: use another network or relay"
        )
