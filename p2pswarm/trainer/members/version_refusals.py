"""Servers that cannot read this trainer's run: how many there are, and when people are told.

A peer that calls a thousand times is counted once, and no peer can make the trainer speak often.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections import Counter

from p2pswarm.base.ids import PeerId
from p2pswarm.settings.parser import RUN_VERSION
from p2pswarm.trainer.reports import actions as act

PEERS_MAX = 1024  # remembered, 32 bytes each: whoever reads of so many knows enough
SAY_EVERY_S = 10.0  # a fleet that starts at once is told of in two lines
VERSIONS_MAX = 4  # named in a report: an honest swarm has two releases, seldom three


class VersionRefusals:
    """Which peers speak another version of runs."""

    def __init__(self, ours: int = RUN_VERSION, peers_max: int = PEERS_MAX) -> None:
        self.ours = ours
        """The version of this trainer's run."""
        self._max = peers_max
        self._speaks: dict[PeerId, int] = {}
        self._told = 0
        self._told_s = float("-inf")
        self._reports: list[act.VersionsRefused] = []
        self._closed = False

    def receive(self, peer: PeerId, speaks: int, now_s: float) -> None:
        """A peer says which version it speaks; its last word counts."""
        if speaks == self.ours:
            return  # it read an older record of ours, or makes this up
        if peer in self._speaks or len(self._speaks) < self._max:
            self._speaks[peer] = speaks
            self.on_deadline(now_s)

    def close(self) -> None:
        """The run is over: nothing more is told."""
        self._closed = True
        self._reports = []

    def events(self) -> list[act.VersionsRefused]:
        """Reports to tell; drained by reading."""
        reports, self._reports = self._reports, []
        return reports

    def next_deadline_s(self) -> float | None:
        """When people are told of the peers that have come since the last time."""
        if self._closed or len(self._speaks) == self._told:
            return None
        return self._told_s + SAY_EVERY_S

    def on_deadline(self, now_s: float) -> None:
        """Tell how many there are, if there are more than before and it is time."""
        due_s = self.next_deadline_s()
        if due_s is None or now_s < due_s:
            return
        self._told, self._told_s = len(self._speaks), now_s
        common = Counter(self._speaks.values()).most_common(VERSIONS_MAX)
        versions = tuple(version for version, _ in common)
        self._reports.append(act.VersionsRefused(self._told, versions, self.ours))
