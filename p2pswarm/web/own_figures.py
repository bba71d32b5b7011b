"""Figures of a node for its owner: the bytes that it has carried, and its share of the work.

Units:   `now_s` seconds on the caller's clock; bytes.
"""

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

SHARE_OVER_S = 60.0  # steps of a minute; less varies, and more is late
LOOKS_MAX = 64  # one a second


@dataclass(frozen=True, slots=True)
class LinkBytes:
    """One link and the bytes that it has carried so far."""

    key: Hashable
    path: str
    """The kind of its path."""
    sent: int
    received: int


class Traffic:
    """The bytes of all links so far, those that have ended as well."""

    def __init__(self) -> None:
        self.totals: dict[tuple[str, str], int] = {}
        """By direction, and by the kind of path that the link had when they were counted."""
        self._seen: dict[Hashable, LinkBytes] = {}

    def on_links(self, links: Iterable[LinkBytes]) -> None:
        """Count what the links have carried since they were looked at last."""
        now = {link.key: link for link in links}
        for key, link in now.items():
            before = self._seen.get(key)
            self._add("sent", link.path, link.sent - (before.sent if before else 0))
            self._add("received", link.path, link.received - (before.received if before else 0))
        self._seen = now

    def sum_of(self, direction: str) -> int:
        """All bytes of one direction."""
        return sum(count for (way, _), count in self.totals.items() if way == direction)

    def by_path(self) -> dict[str, dict[str, int]]:
        """The bytes of each kind of path, both ways."""
        paths = {path for _, path in self.totals}
        return {
            path: {
                "up": self.totals.get(("sent", path), 0),
                "down": self.totals.get(("received", path), 0),
            }
            for path in sorted(paths)
        }

    def _add(self, direction: str, path: str, count: int) -> None:
        self.totals[direction, path] = self.totals.get((direction, path), 0) + max(0, count)


class ShareOfWork:
    """A server's share of its stage's work: what it counts, of what the run's steps need."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, int]] = deque(maxlen=LOOKS_MAX)

    def on_version(self, version: int | None, now_s: float) -> None:
        """Note the version of the weights; None while they are not here."""
        if version is None or (self._looks and version < self._looks[-1][1]):
            self._looks.clear()
        if version is not None:
            self._looks.append((now_s, version))
        while self._looks and self._looks[0][0] < now_s - SHARE_OVER_S:
            self._looks.popleft()

    def share(self, rate_per_s: float, microbatches: int) -> float | None:
        """Its microbatches a second, of those of the steps; None before two steps were seen."""
        if len(self._looks) < 2:  # noqa: PLR2004 - a first and a last one
            return None
        (first_s, first), (last_s, last) = self._looks[0], self._looks[-1]
        needed_per_s = microbatches * (last - first) / (last_s - first_s)
        return min(1.0, rate_per_s / needed_per_s) if needed_per_s > 0 else None
