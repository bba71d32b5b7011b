"""Probation: servers that were in no decided step, and what they may cost a run when they die."""

from collections.abc import Iterable

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.messages.field_limits import MEMBERS_MAX

PAUSE_FIRST_S, PAUSE_MAX_S = 2.0, 64.0  # after a newcomer has died; twice as long each time
NEWCOMER_SHARE = 4  # while wary: one newcomer for so many proven servers of its stage
WORK_SHARE = 4  # while wary: newcomers come before a step has counted this part of its work


class Probation:
    """The servers that have proven themselves, and whether others are to be met with caution.

    Machines that come and die a few seconds later slow every step, if each is given work and then
    waited for: one stranger could do that to an open run. A server is proven once it was in a
    decided step. When one that was not proven dies, the run is wary until another newcomer is
    proven. No newcomer becomes ready for a pause, twice as long after each death. Then they become
    ready only in the first quarter of a step, and one at a time for each four proven servers of a
    stage: what they take with them is missed early, while others still work.
    """

    def __init__(self, proven: Iterable[bytes] = ()) -> None:
        self._proven: dict[bytes, None] = dict.fromkeys(proven)
        self._deaths: RecentItems[bytes, int] = RecentItems(MEMBERS_MAX)
        """How often those died that were ready and are not proven."""
        self._pause_s = 0.0
        """The last pause; 0: not wary."""
        self._until_s = float("-inf")

    def prove(self, peers: Iterable[bytes]) -> None:
        """These were in a step that is decided, or in the run from its beginning on."""
        for peer in peers:
            if peer not in self._proven:
                self._pause_s, self._until_s = 0.0, float("-inf")
            self._proven.pop(peer, None)
            self._proven[peer] = None
            self._deaths.pop(peer, None)
        while len(self._proven) > MEMBERS_MAX:
            del self._proven[next(iter(self._proven))]

    def proven(self, peer: bytes) -> bool:
        """Return whether a server was in a decided step."""
        return peer in self._proven

    def on_death(self, peer: bytes, now_s: float) -> None:
        """A ready server ended without a goodbye."""
        if peer not in self._proven:
            self._deaths[peer] = self._deaths.get(peer, 0) + 1
            self._pause_s = min(PAUSE_MAX_S, max(PAUSE_FIRST_S, 2.0 * self._pause_s))
            self._until_s = now_s + self._pause_s

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when the pause ends, while there is one."""
        return self._until_s if self._until_s > now_s else None

    def holds(self, peer: bytes, ready: Iterable[bytes], counted: float, now_s: float) -> bool:
        """Return whether a newcomer is to wait; one that comes back the first time is none.

        `ready`: the servers of its stage that have work; `counted`: the share of the step's
        microbatches that the stage has counted.
        """
        if not self._pause_s or peer in self._proven or self._deaths.get(peer) == 1:
            return False
        proven = [one in self._proven for one in ready]
        newcomers = len(proven) - sum(proven)
        late = counted * WORK_SHARE > 1
        return now_s < self._until_s or late or newcomers >= max(1, sum(proven) // NEWCOMER_SHARE)
