"""The end of a step: who has reduced, whether all agree, and what is decided.

One `Reduction` is one generation of one step's reduction. It is dropped when a member is lost. The
next generation starts afresh, because no sum changes before the commit.

Units:   seconds on the caller's clock.
Errors:  none; answers of incarnations that take no part are ignored.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2pswarm.run.messages.step import Commit, Reduce, Reduced, TiedReduced
from p2pswarm.run.messages.types import GROUP_MAX
from p2pswarm.run.schedule import clip_scale
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.trainer.balance.prepared_moves import Movers
from p2pswarm.trainer.members.membership import StageGroup
from p2pswarm.trainer.reports import actions as act

Said = tuple[bytes, tuple[bytes, bytes] | None]
"""The digest of a reduced gradient; and of the tied tensor in it, and of that in the state."""
SQUARED_NORM_MAX = 1e300  # the sum over all stages stays a float; no gradient comes near


@dataclass(frozen=True, slots=True)
class Decided:
    """All stages agree: commit with this norm over all of them."""

    gradient_norm: float
    scale: float
    states: dict[int, bytes] = field(default_factory=dict)
    """The digest of the state of each stage that the step was computed with."""


@dataclass(frozen=True, slots=True)
class Disagreed:
    """The reduced gradients of these members differ from those of most of their stage."""

    incarnations: tuple[Incarnation, ...]
    tied: tuple[int, ...] = ()
    """The stages where no digest has the most votes; the first in the group's order stands."""


@dataclass(frozen=True, slots=True)
class NotFinite:
    """The reduced gradient of this stage overflowed, the same on every member."""

    stage: int


@dataclass(frozen=True, slots=True)
class EndsDiffer:
    """The two stages that have a tied tensor in common computed the step with different ones."""

    stages: tuple[int, int]


class Reduction:
    """One try to reduce the step's gradients."""

    def __init__(
        self,
        step: int,
        generation: int,
        groups: list[StageGroup],
        optimizer: OptimizerConfig,
        deadline_s: float,
        movers: Movers | None = None,
    ) -> None:
        self.generation = generation
        self.deadline_s = deadline_s
        self._ends = [group.members[0].stage for group in groups if group.tied is not None]
        """The two stages that have a tied tensor in common, if any."""
        self._step = step
        self._groups = groups
        self._stage = {m.incarnation: m.stage for group in groups for m in group.members}
        self._optimizer = optimizer
        self._movers = movers or Movers()
        self._answers: dict[Incarnation, Reduced] = {}

    @property
    def stages(self) -> dict[Incarnation, int]:
        """The members that add their sums, with their stages."""
        return dict(self._stage)

    def group(self, stage: int) -> list[Incarnation]:
        """The members of one stage that add their sums, in the group's order."""
        return [incarnation for incarnation, where in self._stage.items() if where == stage]

    @property
    def gradients(self) -> dict[int, bytes]:
        """The digest of each stage's reduced gradient, once it is decided."""
        return {stage: self._answers[one].digest for one, stage in self._stage.items()}

    @property
    def rates(self) -> dict[Incarnation, float]:
        """What the links of each member that has answered carried, in bytes per second."""
        return {one: answer.bytes_per_s for one, answer in self._answers.items()}

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered."""
        return [incarnation for incarnation in self._stage if incarnation not in self._answers]

    def orders(
        self, run: bytes, ledger: Callable[[Incarnation], bytes], limit_s: float
    ) -> list[act.SendReduce]:
        """The orders to members and observers; `ledger` gives the bitmap of a member's counts.

        A mover gets one as an observer of its new stage, beside that of its own.
        """
        orders = []
        for group in self._groups:
            members = tuple(m.incarnation.peer for m in group.members)
            stage, movers = self._observing(group)
            observers = tuple(m.incarnation.peer for m in group.observers)
            prompt = [one.peer for one in movers if one in self._movers.prompt]
            others = [one.peer for one in movers if one not in self._movers.prompt]
            told = members, (*prompt, *observers, *others), group.shares
            for one in (*group.members, *group.observers):
                to = one.incarnation
                place = self._step, self.generation, to.number
                also = None, len(prompt), group.tied
                message = Reduce(run, *place, ledger(to), *told, *also)
                orders.append(act.SendReduce(to, message, limit_s))
            for to in movers:
                place = self._step, self.generation, to.number
                message = Reduce(run, *place, b"", *told, stage, len(prompt))
                orders.append(act.SendReduce(to, message, limit_s))
        return orders

    def _observing(self, group: StageGroup) -> tuple[int, Sequence[Incarnation]]:
        """The stage of a group, and the movers that observe it, as many as an order can name."""
        stage = group.members[0].stage
        return stage, self._movers.by_stage.get(stage, ())[: GROUP_MAX - len(group.observers)]

    def commits(self, run: bytes, decided: Decided, learning_rate: float) -> list[act.SendCommit]:
        """The commits for all that were told to reduce; no other member has the gradient."""
        numbers = decided.scale, learning_rate
        commits = []
        for group in self._groups:
            stage, movers = self._observing(group)
            state = decided.states.get(stage, b"")
            told = [(one.incarnation, None) for one in (*group.members, *group.observers)]
            for to, observed in (*told, *((mover, stage) for mover in movers)):
                place = self._step, self.generation, to.number
                message = Commit(run, *place, *numbers, state, observed)
                commits.append(act.SendCommit(to, message))
        return commits

    def sound(self, by: Incarnation, answer: Reduced) -> bool:
        """Whether a member's stage can have that answer.

        A squared norm is a sum of squares, or None if it overflowed; a tied tensor is at both ends.
        """
        squares = [answer.squared_norm]
        if answer.tied is not None:
            squares.append(answer.tied.squared_norm)
        if by in self._stage and (self._stage[by] in self._ends) != (answer.tied is not None):
            return False
        return all(square is None or 0.0 <= square <= SQUARED_NORM_MAX for square in squares)

    def awaits(self, incarnation: Incarnation) -> bool:
        """Whether a member has yet to answer."""
        return incarnation in self._stage and incarnation not in self._answers

    def reduced(self, incarnation: Incarnation, answer: Reduced) -> None:
        """A member holds the reduced gradient of its stage."""
        if incarnation in self._stage:
            self._answers[incarnation] = answer

    def verdict(self) -> Decided | Disagreed | EndsDiffer | NotFinite | None:
        """What follows, once all have answered; None before."""
        if len(self._answers) < len(self._stage):
            return None
        odd = tuple(incarnation for stage in self._stages() for incarnation in self._odd(stage))
        if odd:
            return Disagreed(odd, tuple(stage for stage in self._stages() if self._tied(stage)))
        if apart := self._ends_apart():
            return apart
        squares = [(stage, self._squared_norm(stage)) for stage in self._stages()]
        squares += [(stage, said.squared_norm) for stage, said in self._tied_answers()[:1]]
        for stage, square in squares:
            if square is None:
                return NotFinite(stage)
        norm = math.sqrt(math.fsum(square for _, square in squares if square is not None))
        states = {stage: self._answers[one].state for one, stage in self._stage.items()}
        return Decided(norm, clip_scale(self._optimizer, norm), states)

    def _stages(self) -> list[int]:
        return sorted(set(self._stage.values()))

    def _votes(self, stage: int) -> list[tuple[Said, int]]:
        """What a stage says, the commonest first; in a tie, the first in group order."""
        return Counter(self._said(one) for one in self.group(stage)).most_common()

    def _said(self, one: Incarnation) -> Said:
        """What all members of a stage have to say alike."""
        answer = self._answers[one]
        tied = answer.tied
        return answer.digest, None if tied is None else (tied.digest, tied.state)

    def _odd(self, stage: int) -> list[Incarnation]:
        (usual, _), *_ = self._votes(stage)
        return [one for one in self.group(stage) if self._said(one) != usual]

    def _tied_answers(self) -> list[tuple[int, TiedReduced]]:
        """What each end of a tied model says; within a stage all say the same by now."""
        firsts = ((stage, self._answers[self.group(stage)[0]].tied) for stage in self._ends)
        return [(stage, tied) for stage, tied in firsts if tied is not None]

    def _ends_apart(self) -> Disagreed | EndsDiffer | None:
        """What follows if the two ends of a tied model do not agree."""
        if not (answers := self._tied_answers()):
            return None
        (first, one), (last, other) = answers
        if one.digest != other.digest:
            groups = self.group(first), self.group(last)
            odd = min(reversed(groups), key=len)
            return Disagreed(tuple(odd), (last,) if len(groups[0]) == len(groups[1]) else ())
        return EndsDiffer((first, last)) if one.state != other.state else None

    def _tied(self, stage: int) -> bool:
        (_, most), *others = self._votes(stage)
        return any(votes == most for _, votes in others)

    def _squared_norm(self, stage: int) -> float | None:
        return self._answers[self.group(stage)[0]].squared_norm
