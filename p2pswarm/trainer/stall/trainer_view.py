"""TrainerView: what the trainer knows of a step that does not end, as one value."""

from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE
from p2pswarm.trainer.step.reduction import Reductions
from p2pswarm.trainer.step.stalls import HeldMicrobatch
from p2pswarm.trainer.step.step import Phase, Step

ASKED_MAX = 32  # servers that are asked about one stall: a call each, all at once


@dataclass(frozen=True, slots=True)
class TrainerView:
    """The step in progress at one moment."""

    step: int
    """Counted from 0."""
    phase: Phase
    stages: dict[bytes, int]
    """Of each member, ready or not, its stage."""
    unheard_s: dict[bytes, float]
    """For how long nothing has come from each ready member."""
    unserved: tuple[int, ...]
    """Stages without a ready server."""
    held: tuple[HeldMicrobatch, ...] = ()
    """Who has which microbatches; those first that have had them longest."""
    promises: tuple[bytes, ...] = ()
    """Members that have not answered a fence."""
    averaging: tuple[bytes, ...] = ()
    """Members that have not averaged; none while nothing is averaged."""
    owing: tuple[bytes, ...] = ()
    """Members that have not applied the last commit."""
    sums: int = 0
    """Servers that were lost, and whose sums are waited for."""
    waits_by_plan: bool = False
    """True while weights are fetched, or references are computed: no step is to end then."""

    @property
    def evaluates(self) -> bool:
        """Return whether held-out batches are under way: their steps take longer than others."""
        return any(one.microbatch >= EVALUATION_BASE for one in self.held)

    @property
    def suspects(self) -> list[bytes]:
        """Return whom to ask: those that the step waits for, then all others; not too many."""
        waited = [*self.averaging, *self.promises, *self.owing]
        waited += [peer for one in self.held for peer in _ends(one)]
        silent_first = sorted(self.unheard_s, key=lambda peer: -self.unheard_s[peer])
        return list(dict.fromkeys([*waited, *silent_first]))[:ASKED_MAX]


def _ends(one: HeldMicrobatch) -> tuple[bytes, ...]:
    giver = () if one.giver is None else (one.giver.peer,)
    return (one.holder.peer, *giver)


class CommitDebts(Protocol):
    """The commits that are under way."""

    def owing(self) -> list[Incarnation]:
        """Return the members that have not applied the last one."""


class AdmissionState(Protocol):
    """Members and their states, as far as a step waits for them."""

    still: int
    """How many fetch the weights, so that no step is reduced."""

    @property
    def commits(self) -> CommitDebts:
        """Return the commits that are under way."""


class CoordinatorViews:
    """Makes the view, out of the parts of a coordinator."""

    def __init__(
        self,
        members: Membership,
        step: Step,
        reductions: Reductions,
        unheard_s: Callable[[Incarnation, float], float],
        admission: AdmissionState,
        lost_sums: Sized,
    ) -> None:
        """`unheard_s`: how long a member has been silent.

        `lost_sums`: those servers that may come back with sums that the step needs.
        """
        self._members = members
        self._step = step
        self._reductions = reductions
        self._unheard_s = unheard_s
        self._admission = admission
        self._lost_sums = lost_sums

    def view(self, now_s: float) -> TrainerView:
        """Return what is known now."""
        step, members, reduction = self._step, self._members, self._reductions.reduction
        ready = members.ready()
        alive = [*ready, *members.waiting()]
        averages = reduction is not None and step.phase is Phase.REDUCING
        promises = [one.peer for batch in step.batches for one in batch.fences.silent]
        return TrainerView(
            step.number,
            step.phase,
            {one.incarnation.peer: one.stage for one in alive},
            {one.incarnation.peer: self._unheard_s(one.incarnation, now_s) for one in ready},
            tuple(members.unserved_stages(1)),
            tuple(step.under_way(now_s)),
            tuple(dict.fromkeys(promises)),
            tuple(one.peer for one in reduction.silent) if averages and reduction else (),
            tuple(one.peer for one in self._admission.commits.owing()),
            len(self._lost_sums),
            bool(self._admission.still) or any(batch.scores for batch in step.batches),
        )
