"""Suspensions: incarnations whose streams have ended, and whose sums are not void yet.

A link can end although both its ends are well. The server is back within a second then, and still
has its sum of the step. Until it is back, or the sum is void, fences and the end of the step wait
for it. So a suspension is short where another server can do the work. The coordinator dials it: one
that has died is mostly known at once, and one that answers is given more time.

Units:   seconds on the caller's clock.
Errors:  none.
Source:  docs/training.md, "A sum that outlives its link".
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.run.view import Incarnation

SUSPENDED_S = 1.0  # to answer, or to dial again behind the pause before it
REDO_SHARE = 0.25  # of the time to do its work again: if it does not come, no more is lost
SUSPENDED_MAX_S = 5.0  # however much it has summed: a machine that changes its network needs less
ANSWERED_S = 4.0  # its process lives and is reached: it asks other trainers first, perhaps in vain
TIMES_MAX = 3  # in one step: a peer that loses its link on purpose holds no step up for longer


@dataclass(frozen=True, slots=True)
class SumKept:
    """Report: a server has joined again in time, with what it had summed of the current step."""

    step: int
    former: Incarnation
    incarnation: Incarnation
    stage: int
    microbatches: int


@dataclass(frozen=True, slots=True)
class SumVoided:
    """Report: what a server had summed that was lost is done again."""

    incarnation: Incarnation
    stage: int
    reason: str
    microbatches: int


SumReport = SumKept | SumVoided
"""What became of a sum whose incarnation is over."""


@dataclass(slots=True)
class _Suspended:
    incarnation: Incarnation
    stage: int
    limit_s: float
    since_s: float | None = None
    """Since when another server could do its work; None while there is none."""


class Suspensions:
    """The suspended incarnations of the step in progress."""

    def __init__(
        self,
        limit_s: float = SUSPENDED_S,
        answered_s: float = ANSWERED_S,
        times_max: int = TIMES_MAX,
        limit_max_s: float = SUSPENDED_MAX_S,
    ) -> None:
        self._limit_s = limit_s
        self._limit_max_s = limit_max_s
        self._answered_s = answered_s
        self._times_max = times_max
        self._suspended: dict[bytes, _Suspended] = {}
        self._times: Counter[bytes] = Counter()
        """How often each peer was suspended in this step."""

    def __len__(self) -> int:
        return len(self._suspended)

    def __contains__(self, one: Incarnation) -> bool:
        there = self._suspended.get(one.peer)
        return there is not None and there.incarnation == one

    def begin(self, one: Incarnation, stage: int, *, silent: bool, redo_s: float = 0.0) -> bool:
        """Suspend an incarnation that is over; False if its peer had that too often.

        `silent`: it was waited for already; it is not, once its stage has another server. `redo_s`:
        about how long it would take to do again what it has summed. Of that a quarter may be lost.
        """
        assert one.peer not in self._suspended, "whoever joins is suspended no longer"
        if self._times[one.peer] >= self._times_max:
            return False
        self._times[one.peer] += 1
        limit_s = 0.0 if silent else max(self._limit_s, min(REDO_SHARE * redo_s, self._limit_max_s))
        self._suspended[one.peer] = _Suspended(one, stage, limit_s)
        return True

    def of_peer(self, peer: bytes) -> tuple[Incarnation, int] | None:
        """The suspended incarnation of a peer, and its stage."""
        there = self._suspended.get(peer)
        return None if there is None else (there.incarnation, there.stage)

    def answered(self, one: Incarnation) -> None:
        """The process of an incarnation lives, and is reached."""
        if one in self:
            there = self._suspended[one.peer]
            there.limit_s = max(there.limit_s, self._answered_s)

    def end(self, one: Incarnation) -> int:
        """Its sum has gone over to a new incarnation, or is void; returns its stage."""
        return self._suspended.pop(one.peer).stage

    def watch(self, served: Callable[[int], bool], now_s: float) -> None:
        """Note whose work another server could do; `served`: whether a stage has one that works.

        To be called whenever that may have changed: a stage that has lost all its servers has as
        much time from the moment when the first of them is back.
        """
        for one in self._suspended.values():
            if not served(one.stage):
                one.since_s = None
            elif one.since_s is None:
                one.since_s = now_s

    def overdue(self, now_s: float) -> list[Incarnation]:
        """Whose sums are to be void now."""
        return [one.incarnation for due_s, one in self._due() if now_s >= due_s]

    def next_deadline_s(self) -> float | None:
        """When to ask whose sums are to be void."""
        return min((due_s for due_s, _ in self._due()), default=None)

    def next_step(self) -> None:
        """Another step begins, with empty sums."""
        assert not self._suspended, "the step had waited for them"
        self._times.clear()

    def _due(self) -> list[tuple[float, _Suspended]]:
        there = self._suspended.values()
        return [(one.since_s + one.limit_s, one) for one in there if one.since_s is not None]
