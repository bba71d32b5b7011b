"""Sums of gradients that outlive an incarnation: which are kept, which are void, and for how long.

A sum is a part of the step while its incarnation lives, or is suspended. It goes over to the next
incarnation of its server if that comes with it in time, also from a former coordinator.

Source:  docs/recovery.md, "A sum that outlives its link", "A sum that outlives its coordinator".
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from p2pswarm.run.chain.record import term_of
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.run.messages.membership import HeldSum, Join
from p2pswarm.trainer.step.in_flight import InFlight
from p2pswarm.trainer.step.ledger import StepLedger


class StepSums:
    """Sums of one step as servers tell of them, judged by what the coordinator knows."""

    def __init__(self, step: int, ledger: StepLedger, in_flight: InFlight) -> None:
        self.step = step
        self._ledger = ledger
        self._in_flight = in_flight
        self.counted_s: dict[int, float] = {}
        """When each stage counted something last; who enters a count writes it."""

    def redo_s(self, one: Incarnation, stage: int) -> float:
        """About how long its stage would take to count again what an incarnation has counted.

        Time in which the stage counts nothing, because one server holds it up, is not its pace.
        """
        begun_s, in_stage = self._in_flight.begun_s, self._ledger.counted_in(stage)
        last_s = self.counted_s.get(stage)
        if begun_s is None or last_s is None or not in_stage:
            return 0.0
        return max(0.0, last_s - begun_s) * self._ledger.counted_by_one(one) / in_stage

    def losses(self, held: HeldSum) -> dict[int, float]:
        """The losses that a sum of the last stage says."""
        known = zip(self._ledger.microbatches(held.counted), held.losses, strict=False)
        return {microbatch: loss for microbatch, loss in known if loss is not None}

    def fits(self, held: HeldSum | None, of: Incarnation, stage: int) -> bool:
        """Return whether it can be the sum of an incarnation that was suspended in this step."""
        if held is None or held.incarnation != of.number or held.step != self.step:
            return False
        beyond = self._ledger.fits(held.counted, of, stage)
        return beyond is not None and all(map(self._in_flight.was_launched, beyond))

    def takes(self, held: HeldSum, stage: int) -> bool:
        """Return whether a sum from before this coordinator can count.

        Nobody else holds anything of it, and nobody can have begun to count anything of it since.
        """
        nobody = Incarnation(b"", held.incarnation)
        if held.step != self.step:
            return False
        counted = self._ledger.fits(held.counted, nobody, stage)
        return counted is not None and not any(map(self._in_flight.was_launched, counted))


class SumsUnderWay:
    """Sums of the step in progress, and with a delay of the next.

    A server has both in one life: so all that it brings stand or fall together.
    """

    def __init__(self, steps: Sequence[StepSums]) -> None:
        self._steps = steps

    def redo_s(self, one: Incarnation, stage: int) -> float:
        """About how long its stage would take to count again what an incarnation has counted."""
        return sum(sums.redo_s(one, stage) for sums in self._steps)

    def fits(self, held: HeldSum | None, of: Incarnation, stage: int) -> bool:
        """Return whether they can be those of an incarnation that was suspended."""
        if held is None or not self._are_of_now(held):
            return False
        return all(sums.fits(held.of_step(sums.step), of, stage) for sums in self._steps)

    def takes(self, held: HeldSum, stage: int) -> bool:
        """Return whether sums from before this coordinator can count."""
        each = (sums.takes(held.of_step(sums.step), stage) for sums in self._steps)
        return self._are_of_now(held) and all(each)

    def _are_of_now(self, held: HeldSum) -> bool:
        first, *ahead = self._steps
        return held.step == first.step and (not held.ahead or bool(ahead))


SUSPENDED_S = 1.0  # to answer, or to dial again behind the pause before it
REDO_SHARE = 0.25  # of the time to do its work again: if it does not come, no more is lost
SUSPENDED_MAX_S = 5.0  # however much it has summed: a machine that changes its network needs less
ANSWERED_S = 4.0  # its process lives and is reached: it asks other trainers first, perhaps in vain
STAY_SHARE = 0.05  # of its time in the run: who breaks its link on purpose holds others up no more
TIMES_MAX = 3  # in one step: a peer that loses its link on purpose holds no step up for longer


@dataclass(slots=True)
class _Suspended:
    incarnation: Incarnation
    stage: int
    limit_s: float
    answered_s: float
    """The least time that it has once its process has answered."""
    usual_s: float
    """The least time that it has once its whole stage was lost."""
    since_s: float | None = None
    """Time since which another server could do its work; None while there is none."""


class Suspensions:
    """The suspended incarnations of the step in progress.

    A link can end although both its ends are well. The server is back within a second then, and
    still has its sum of the step. Until it is back, or the sum is void, fences and the end of the
    step wait for it. So a suspension is short where another server can do the work. The
    coordinator dials it: one that has died is mostly known at once, and one that answers is given
    more time.
    """

    def __init__(self) -> None:
        self._suspended: dict[bytes, _Suspended] = {}
        self._times: Counter[bytes] = Counter()
        """Suspensions of each peer in this step."""

    def __len__(self) -> int:
        return len(self._suspended)

    def __contains__(self, one: Incarnation) -> bool:
        there = self._suspended.get(one.peer)
        return there is not None and there.incarnation == one

    def begin(
        self,
        one: Incarnation,
        stage: int,
        *,
        silent: bool,
        redo_s: float = 0.0,
        stay_s: float = math.inf,
    ) -> bool:
        """Suspend an incarnation that is over; False if its peer had that too often.

        `silent`: it was waited for already; it is not, once its stage has another server. `redo_s`:
        about how long it would take to do its work again, of which `REDO_SHARE` may be lost.
        `stay_s`: how long it was there, of which `STAY_SHARE` may be lost if its process lives.
        """
        assert one.peer not in self._suspended, "whoever joins is suspended no longer"
        if self._times[one.peer] >= TIMES_MAX:
            return False
        self._times[one.peer] += 1
        usual_s = max(SUSPENDED_S, min(REDO_SHARE * redo_s, SUSPENDED_MAX_S))
        limit_s = 0.0 if silent else usual_s
        answered_s = min(ANSWERED_S, STAY_SHARE * stay_s)
        self._suspended[one.peer] = _Suspended(one, stage, limit_s, answered_s, usual_s)
        return True

    def of_peer(self, peer: bytes) -> tuple[Incarnation, int] | None:
        """The suspended incarnation of a peer, and its stage."""
        there = self._suspended.get(peer)
        return None if there is None else (there.incarnation, there.stage)

    def on_probe_answer(self, one: Incarnation) -> None:
        """The process of an incarnation lives, and is reached."""
        if one in self:
            there = self._suspended[one.peer]
            there.limit_s = max(there.limit_s, there.answered_s)

    def end(self, one: Incarnation) -> int:
        """Its sum has gone over to a new incarnation, or is void; returns its stage."""
        return self._suspended.pop(one.peer).stage

    def watch(self, served: Callable[[int], bool], now_s: float) -> None:
        """Let time run for those whose work another server could do; `served`: of a stage.

        A stage that has lost all its servers has time from when the first is back, silent ones too:
        they were lost to one cut, and come back within a moment of each other.
        """
        for one in self._suspended.values():
            if not served(one.stage):
                one.since_s, one.limit_s = None, max(one.limit_s, one.usual_s)
            elif one.since_s is None:
                one.since_s = now_s

    def overdue(self, now_s: float) -> list[Incarnation]:
        """Return whose sums are to be void now."""
        return [one.incarnation for due_s, one in self._due() if now_s >= due_s]

    def next_deadline_s(self) -> float | None:
        """Return when to ask whose sums are to be void."""
        return min((due_s for due_s, _ in self._due()), default=None)

    def next_step(self) -> None:
        """Another step begins, with empty sums."""
        assert not self._suspended, "the step had waited for them"
        self._times.clear()

    def _due(self) -> list[tuple[float, _Suspended]]:
        there = self._suspended.values()
        return [(one.since_s + one.limit_s, one) for one in there if one.since_s is not None]


FIRST_TERM = 1  # nobody has coordinated before it
ANOTHER_SUM_S = 0.5  # those that were behind one cut come back within so much of each other
FORMER_SUMS_MAX_S = 6.0  # after the first one, for all that come one after another
FORMER_SUMS_S = 1.5  # one that hears nothing asks twice a second who leads, and then dials


class FormerSums:
    """Sums from former coordinators: which servers should bring one, and whether any was taken.

    A new coordinator takes the sums that do not overlap, and of which it has launched nothing
    itself. So it launches nothing until the servers that should have sums are here, or a moment
    has passed. In the first step no record names them: anyone may bring one in that moment.
    """

    def __init__(self, term: int, era: int, named: Iterable[bytes]) -> None:
        """`named`: the peers that the record of the last step names."""
        self._term = term
        self._era = era
        self._named = frozenset(named)
        self._awaited = set(self._named)
        self._anyone = not self._named and term > FIRST_TERM
        """True if nobody knows who should bring one."""
        self._first_s: float | None = None
        """Time of the first join."""
        self._due_s = math.inf
        """Time after which nobody is waited for."""
        self._brought: set[bytes] = set()
        self._spoiled = False
        """True if one that served had wrong weights: what it gave may be in any sum."""
        self.taken = False
        """True if a sum of a former term is, or was, a part of this step."""
        self._taken_ahead = False
        """The same of the next step, with a delay."""

    def take(self, *, ahead: bool = False) -> None:
        """A sum of a former term is a part of this step; `ahead`: one of the next step, too."""
        self.taken = True
        self._taken_ahead |= ahead

    def on_join(self, peer: bytes, join: Join, now_s: float) -> bool:
        """A server has come; returns whether others were waited for, or this one."""
        waited = self._waits
        self._awaited.discard(peer)
        if self._first_s is None:
            self._first_s, self._due_s = now_s, now_s + FORMER_SUMS_S
        if self.may_take(join) and peer not in self._brought and len(self._brought) < MEMBERS_MAX:
            self._brought.add(peer)
            another_s = min(now_s + ANOTHER_SUM_S, self._first_s + FORMER_SUMS_MAX_S)
            self._due_s = max(self._due_s, another_s)
        return waited

    def on_launch(self) -> None:
        """What no sum has is launched: nobody is waited for any more."""
        self._awaited.clear()
        self._anyone = False

    def may_take(self, join: Join) -> HeldSum | None:
        """The sum of one that joins, if it was counted under a former coordinator of this era."""
        held = join.sum
        if self._spoiled or held is None or join.era != self._era:
            return None
        return held if term_of(held.incarnation) < self._term else None

    def trusts(self, one: Incarnation) -> bool:
        """Return whether a sum says that its server has served: a stranger can claim one, too."""
        return not self.taken or one.peer in self._named

    def on_wrong_state(self, peer: bytes) -> bool:
        """A server says other weights than its stage's; True if its work may be in sums taken.

        No further sum of this step is taken then. What others claim who never served is no matter.
        """
        if peer not in self._named and peer not in self._brought:
            return False
        self._spoiled = True
        return self.taken

    def awaited(self, now_s: float) -> bool:
        """Return whether a sum may come that holds what is not launched yet."""
        return self._waits and now_s < self._due_s

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when nobody is waited for any more."""
        return self._due_s if self.awaited(now_s) and self._due_s < math.inf else None

    def next_step(self) -> None:
        """Another step begins: its sums are empty, but for what was counted ahead."""
        self.on_launch()
        if not self._taken_ahead:
            self._brought.clear()
        self.taken, self._taken_ahead, self._spoiled = self._taken_ahead, False, False

    @property
    def _waits(self) -> bool:
        return self._anyone or bool(self._awaited)
