"""PathState: what a link machine knows of the path that carries it, or of why there is none.

Units:   `now_s` seconds on the caller's monotonic clock.
Errors:  LinkLost and BadRecord are returned, and raised by nobody here.
Source:  docs/paths.md.
"""

from p2pswarm.base.errors import BadRecord, LinkLost, SwarmError
from p2pswarm.net.link.altered_bytes import PATHS_MAX, WITHIN_S, AlteredBytes


class PathState:
    """The path of one link, as one side sees it."""

    __slots__ = ("_altered", "_why_none", "by_s", "dials", "moved")

    def __init__(self, *, dialled: bool) -> None:
        """`dialled`: whether we dialled the first path."""
        self.dials = dialled
        """Whether we took the way of the present path: then we dial its bulk connections, too."""
        self.moved = False
        """Whether there was another path before."""
        self.by_s: float | None = None
        """When the link is lost, because it has no path; None while it has one."""
        self._why_none: SwarmError | None = None
        self._altered = AlteredBytes()

    @property
    def altered(self) -> int:
        """How many paths brought a record that was not authentic."""
        return self._altered.count

    def lost(self, error: SwarmError, by_s: float) -> None:
        """Note that the path is gone, for this reason; the link waits for another until `by_s`."""
        self._why_none, self.by_s = error, by_s

    def up(self, *, dialled: bool) -> None:
        """Note that another path carries the link; `dialled`: whether we took its way."""
        self.by_s, self.moved, self.dials = None, True, dialled

    def over(self, name: str) -> LinkLost:
        """What ends a link that found no other path in time."""
        return LinkLost(f"{name}: {self._why_none}, and no other path was found")

    def brought_wrong_bytes(self, name: str, now_s: float) -> BadRecord | None:
        """Count a record that was not authentic; returns what ends the link, if it must end."""
        if not self._altered.note(now_s):
            return None
        return BadRecord(
            f"{name}: {PATHS_MAX} paths altered bytes within {WITHIN_S:g} s; somebody on the way "
            "or faulty hardware does it: use another network or relay"
        )
