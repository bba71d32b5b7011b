"""Probation: servers that were in no decided step, and what they may cost a run when they die."""

import math
from collections.abc import Iterable

from p2pswarm.base.recent_items import RecentItems
from p2pswarm.run.messages.field_limits import MEMBERS_MAX

START_S = 1.0  # of a run: whoever comes until then was started with it, and is no newcomer
STAY_S = 5.0  # of a newcomer before it has work; a machine that loads weights has been here longer
STAY_MAX_S = 64.0  # whoever has been here so long is no newcomer, proven or not
STAY_LEARNED = 2.0  # times the life of one that died
WARY_S = 120.0  # after a newcomer has died
NEWCOMER_SHARE = 4  # while wary: one newcomer for so many proven servers of its stage
WORK_SHARE = 4  # while wary: newcomers come before a step has counted this part of its work


class Probation:
    """The servers that have proven themselves, and how long others wait for their first work.

    Machines that come and die a few seconds later slow every step, if each is given work and then
    waited for: one stranger could do that to an open run. So who comes after a run's first second
    has no work before it was heard for some seconds. It is proven once it was in a decided step.

    When one dies that had work, the run is wary for two minutes. Others then wait for twice as
    long as that one lived, become ready only in the first quarter of a step, and one at a time for
    each four proven servers of a stage: what they take with them is missed early.
    """

    def __init__(self, proven: Iterable[bytes] = ()) -> None:
        """`proven`: the servers of the last decided step, if any is."""
        self._proven: dict[bytes, bool] = {}
        """Whether a proven server came with the run."""
        self._start_ends_s = math.inf
        self._starters: RecentItems[bytes, None] = RecentItems(MEMBERS_MAX)
        """Those that came with the run."""
        if proven := tuple(proven):
            self.begin(proven, -math.inf)
        self._deaths: RecentItems[bytes, int] = RecentItems(MEMBERS_MAX)
        """How often those died that had work and were not proven."""
        self._stay_s = STAY_S
        self._wary_until_s = -math.inf
        self._due_s = math.inf
        """When the first of those that wait has been here for long enough."""

    def begin(self, servers: Iterable[bytes], now_s: float) -> None:
        """The run begins with these."""
        self._start_ends_s = now_s + START_S
        for peer in servers:
            self._proven[peer] = True

    def prove(self, peers: Iterable[bytes]) -> None:
        """These were in a step that is decided."""
        for peer in peers:
            self._proven[peer] = self._proven.pop(peer, peer in self._starters)
        while len(self._proven) > MEMBERS_MAX:
            del self._proven[next(iter(self._proven))]

    def proven(self, peer: bytes) -> bool:
        """Return whether a server was in a decided step."""
        return peer in self._proven

    def on_first_word(self, peer: bytes, now_s: float) -> None:
        """A server has joined."""
        if now_s <= self._start_ends_s:
            self._starters[peer] = None

    def newcomer(self, peer: bytes) -> bool:
        """Return whether a server came later than the run, and was in no decided step."""
        return peer not in self._proven and peer not in self._starters

    def on_death(self, peer: bytes, stay_s: float, now_s: float) -> None:
        """A server that had work ended without a goodbye, after it had been here for `stay_s`."""
        if peer not in self._proven:
            self._deaths[peer] = self._deaths.get(peer, 0) + 1
        elif self._proven[peer] or stay_s >= STAY_MAX_S:
            return
        known_s = self._stay_s if now_s < self._wary_until_s else STAY_S
        self._stay_s = min(STAY_MAX_S, max(known_s, STAY_LEARNED * stay_s))
        self._wary_until_s = now_s + WARY_S

    def holds(
        self, peer: bytes, stay_s: float, ready: Iterable[bytes], counted: float, now_s: float
    ) -> bool:
        """Return whether a newcomer is to wait; one that comes back the first time is none.

        `ready`: the servers of its stage that have work and are heard. Without any the stage has
        nothing to lose. `counted`: the share of the step's microbatches that it has counted.
        """
        if not (ready := tuple(ready)):
            return False
        wary = now_s < self._wary_until_s
        starter = not wary and now_s - stay_s <= self._start_ends_s
        if peer in self._proven or self._deaths.get(peer) == 1 or starter:
            return False
        if (lacks_s := (self._stay_s if wary else STAY_S) - stay_s) > 0.0:
            due_s = self._due_s if now_s < self._due_s else math.inf
            self._due_s = min(due_s, now_s + lacks_s)
            return True
        if not wary:
            return False
        proven = [one in self._proven for one in ready]
        newcomers = len(proven) - sum(proven)
        late = counted * WORK_SHARE > 1
        return late or newcomers >= max(1, sum(proven) // NEWCOMER_SHARE)

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when to ask again whether it holds somebody."""
        return self._due_s if now_s < self._due_s < math.inf else None
