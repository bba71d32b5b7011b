"""Attempts to average a step's gradients: each is a generation, with its members and a limit."""

import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from p2pswarm.run.averaging.shards import ShardShares
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import GROUP_MAX
from p2pswarm.run.messages.step import Commit, NearbySteps, Reduce, Reduced, TiedGroup, TiedReduced
from p2pswarm.run.schedule import sum_scale
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.trainer.balance.move_preparation import Movers
from p2pswarm.trainer.members.membership import StageGroup
from p2pswarm.trainer.reports import actions as act

Said = tuple[bytes, tuple[bytes, bytes] | None]
"""The digest of a reduced gradient; and of the tied tensor in it, and of that in the state."""
SQUARED_NORM_MAX = 1e300  # the sum over all stages stays a float; no gradient comes near


@dataclass(frozen=True, slots=True)
class Decided:
    """All stages agree: commit with this norm over all of them."""

    gradient_norm: float
    """Of the step's gradient, before clipping."""
    scale: float
    """The factor of the sums."""
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
    """One generation of one step's reduction.

    It is dropped when a member is lost. The next one starts afresh, because no sum changes before
    the commit.
    """

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
        self.stages = {m.incarnation: m.stage for group in groups for m in group.members}
        """The members that add their sums, with their stages."""
        self._optimizer = optimizer
        self._movers = movers or Movers()
        self._answers: dict[Incarnation, Reduced] = {}

    def group(self, stage: int) -> list[Incarnation]:
        """Return the members of one stage that add their sums, in the group's order."""
        return [incarnation for incarnation, where in self.stages.items() if where == stage]

    @property
    def gradients(self) -> dict[int, bytes]:
        """The digest of each stage's reduced gradient, once it is decided."""
        return {stage: self._answers[one].digest for one, stage in self.stages.items()}

    @property
    def rates(self) -> dict[Incarnation, float]:
        """Return what the links of each member that has answered carried, in bytes per second."""
        return {one: answer.bytes_per_s for one, answer in self._answers.items()}

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered."""
        return [incarnation for incarnation in self.stages if incarnation not in self._answers]

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

    def commits(
        self,
        run: bytes,
        decided: Decided,
        learning_rate: float,
        codecs: Callable[[int], NearbySteps] = lambda _stage: (),
    ) -> list[act.SendCommit]:
        """The commits for all that were told to reduce; no other member has the gradient.

        `codecs`: what a stage's servers are told of those of the next steps.
        """
        numbers = decided.scale, learning_rate
        commits = []
        for group in self._groups:
            stage, movers = self._observing(group)
            state = decided.states.get(stage, b"")
            told = [(one.incarnation, None) for one in (*group.members, *group.observers)]
            for to, observed in (*told, *((mover, stage) for mover in movers)):
                place = self._step, self.generation, to.number
                nearby = codecs(stage) if observed is None else ()  # it serves another stage yet
                message = Commit(run, *place, *numbers, state, observed, nearby)
                commits.append(act.SendCommit(to, message))
        return commits

    def sound(self, by: Incarnation, answer: Reduced) -> bool:
        """Return whether a member's stage can have that answer; an overflow is a norm of None."""
        squares = [answer.squared_norm]
        if answer.tied is not None:
            squares.append(answer.tied.squared_norm)
        if by in self.stages and (self.stages[by] in self._ends) != (answer.tied is not None):
            return False
        return all(square is None or 0.0 <= square <= SQUARED_NORM_MAX for square in squares)

    def awaits(self, incarnation: Incarnation) -> bool:
        """Return whether a member has yet to answer."""
        return incarnation in self.stages and incarnation not in self._answers

    def on_answer(self, incarnation: Incarnation, answer: Reduced) -> None:
        """A member holds the reduced gradient of its stage."""
        if incarnation in self.stages:
            self._answers[incarnation] = answer

    def verdict(
        self, tokens_per_target: float = 1.0
    ) -> Decided | Disagreed | EndsDiffer | NotFinite | None:
        """Return what follows, once all have answered; None before.

        `tokens_per_target`: of the step, by which its gradient is larger than the sum.
        """
        if len(self._answers) < len(self.stages):
            return None
        odd = tuple(incarnation for stage in self._stages() for incarnation in self._odd(stage))
        if odd:
            return Disagreed(odd, tuple(stage for stage in self._stages() if self._tied(stage)))
        if apart := self._ends_apart():
            return apart
        firsts = {stage: self._answers[self.group(stage)[0]] for stage in self._stages()}
        squares = [(stage, first.squared_norm) for stage, first in firsts.items()]
        squares += [(stage, said.squared_norm) for stage, said in self._tied_answers()[:1]]
        for stage, square in squares:
            if square is None:
                return NotFinite(stage)
        summed = math.sqrt(math.fsum(square for _, square in squares if square is not None))
        norm, scale = sum_scale(self._optimizer, summed, tokens_per_target)
        states = {stage: self._answers[one].state for one, stage in self.stages.items()}
        return Decided(norm, scale, states)

    def _stages(self) -> list[int]:
        return sorted(set(self.stages.values()))

    def _votes(self, stage: int) -> list[tuple[Said, int]]:
        """Return what a stage says, the commonest first; in a tie, the first in group order."""
        return Counter(self._said(one) for one in self.group(stage)).most_common()

    def _said(self, one: Incarnation) -> Said:
        """Return what all members of a stage have to say alike."""
        answer = self._answers[one]
        tied = answer.tied
        return answer.digest, None if tied is None else (tied.digest, tied.state)

    def _odd(self, stage: int) -> list[Incarnation]:
        (usual, _), *_ = self._votes(stage)
        return [one for one in self.group(stage) if self._said(one) != usual]

    def _tied_answers(self) -> list[tuple[int, TiedReduced]]:
        """Return what each end of a tied model says; within a stage all say the same by now."""
        firsts = ((stage, self._answers[self.group(stage)[0]].tied) for stage in self._ends)
        return [(stage, tied) for stage, tied in firsts if tied is not None]

    def _ends_apart(self) -> Disagreed | EndsDiffer | None:
        """Return what follows if the two ends of a tied model do not agree."""
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


FIRST_LIMIT_S = 120.0  # nothing is measured yet: a large stage over a slow link
LIMIT_MIN_S = 30.0  # below this a pause of a process or a link that is dialled again would count
LIMIT_NEWCOMER_S = 5.0  # with one that has yet to prove itself: all others wait for it
LIMIT_MAX_S = 3600.0
LIMIT_FACTOR = 4.0  # times the slowest of the last ones
MEASURED = 16  # averagings remembered
FAILED_RETRIES = 1  # a broken link between two members is dialled again before one is blamed
BOTH_ENDS = -1  # no stage: the group that averages a tied tensor
SLOW_RETRIES = 2  # each has twice the time of the one before


class AveragingLimit:
    """The time that one averaging may take, learned from what succeeded and from what did not."""

    def __init__(self, first_s: float = FIRST_LIMIT_S, max_s: float = LIMIT_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._took_s: deque[float] = deque(maxlen=MEASURED)
        self._too_slow = 0

    @property
    def seconds(self) -> float:
        """The limit of the next averaging."""
        slowest_s = max(self._took_s, default=None)
        usual_s = self._first_s if slowest_s is None else max(LIMIT_MIN_S, LIMIT_FACTOR * slowest_s)
        return min(self._max_s, usual_s * 2.0**self._too_slow)

    @property
    def measured(self) -> bool:
        """True if an averaging has succeeded: before that, nobody knows what is slow."""
        return bool(self._took_s)

    @property
    def newcomer_s(self) -> float:
        """The limit of the next averaging, if a newcomer takes part that may hold it up."""
        slowest_s = max(self._took_s, default=None)
        if slowest_s is None:
            return self.seconds
        return min(self.seconds, max(LIMIT_NEWCOMER_S, LIMIT_FACTOR * slowest_s))

    def on_success(self, seconds: float) -> None:
        """Learn from an averaging that succeeded."""
        self._took_s.append(seconds)
        self._too_slow = 0

    def on_timeout(self) -> None:
        """Learn from an averaging that was given up at the limit."""
        if self.seconds < self._max_s:
            self._too_slow += 1


class Reductions:
    """The reduction under way, if there is one; every other one is over.

    A generation that takes too long proves nothing: the stage may be large and its links slow. So
    the limit is a multiple of the slowest of the last averagings that succeeded, and doubles with
    each one that was too slow. What the members' links carried determines how large the shard of
    each is in the next.
    """

    def __init__(
        self,
        limit: AveragingLimit | None = None,
        former: int = 0,
        ends: tuple[int, int] | None = None,
    ) -> None:
        """`former`: the last number before; `ends`: the stages with a tied tensor in common."""
        self.limit = limit or AveragingLimit()
        self.reduction: Reduction | None = None
        self._shares = ShardShares()
        self._ends = ends
        self.numbered = former
        """The number of the newest generation."""
        self._failures = 0
        self._begun_s = 0.0

    def begin(
        self,
        step: int,
        groups: list[StageGroup],
        optimizer: OptimizerConfig,
        now_s: float,
        movers: Movers | None = None,
        limit_s: float | None = None,
    ) -> Reduction:
        """Start the next generation; `movers`: who observes a stage and serves another one.

        `limit_s`: how long it may take, if not as long as usual.
        """
        self.numbered += 1
        self._begun_s = now_s
        deadline_s = now_s + (self.limit.seconds if limit_s is None else limit_s)
        shared = self._tied([self._shared(group) for group in groups])
        self.reduction = Reduction(step, self.numbered, shared, optimizer, deadline_s, movers)
        return self.reduction

    def current(self, generation: int) -> Reduction | None:
        """The reduction under way, if it is this one."""
        found = self.reduction
        return found if found is not None and found.generation == generation else None

    def drop(self) -> None:
        """A member was lost: the next generation is another group's."""
        self.reduction = None

    def on_decision(self, now_s: float) -> None:
        """The reduction succeeded and its step is decided."""
        self.limit.on_success(now_s - self._begun_s)
        if self.reduction is not None:
            for one, bytes_per_s in self.reduction.rates.items():
                stage = self.reduction.stages[one]
                self._shares.measured(stage, one.peer, bytes_per_s)
                if self._ends is not None and stage in self._ends:
                    self._shares.measured(BOTH_ENDS, one.peer, bytes_per_s)
        self.reduction, self._failures = None, 0

    def on_failure(self) -> bool:
        """A member could not average; returns whether that member is to be blamed by now."""
        self.reduction = None
        return self._again(FAILED_RETRIES)

    def overdue(self, now_s: float) -> bool:
        """Return whether the reduction has reached its limit."""
        return self.reduction is not None and now_s >= self.reduction.deadline_s

    def silent_groups(self) -> list[list[Incarnation]]:
        """Return the members of each stage with several of which nobody has answered."""
        assert self.reduction is not None, "asked only when one is overdue"
        reduction, silent = self.reduction, set(self.reduction.silent)
        groups = [reduction.group(stage) for stage in sorted(set(reduction.stages.values()))]
        return [group for group in groups if silent.issuperset(group)]

    @property
    def retries_left(self) -> bool:
        """True if an averaging that takes too long is only tried anew."""
        return self._failures < SLOW_RETRIES

    def give_up(self) -> list[Incarnation]:
        """End the reduction at its limit; returns the members to blame, if any by now.

        Where a whole stage does not finish, nobody is to blame: it needs more time.
        """
        assert self.reduction is not None, "asked only when one is overdue"
        silent, stages = self.reduction.silent, self.reduction.stages
        sizes, missing = Counter(stages.values()), Counter(stages[one] for one in silent)
        alone = [one for one in silent if missing[stages[one]] < sizes[stages[one]]]
        self.reduction = None
        self.limit.on_timeout()
        self._shares.forget()
        return alone if self._again(SLOW_RETRIES) else []

    def _shared(self, group: StageGroup) -> StageGroup:
        peers = tuple(member.incarnation.peer for member in group.members)
        return replace(group, shares=self._shares.of_group(group.members[0].stage, peers))

    def _tied(self, groups: list[StageGroup]) -> list[StageGroup]:
        """The groups, those at the ends of a tied model with the group of both."""
        if self._ends is None:
            return groups
        first, last = (groups[stage] for stage in self._ends)
        both = tuple(member.incarnation.peer for member in (*first.members, *last.members))
        observers = (one.incarnation.peer for one in (*first.observers, *last.observers))
        shares = self._shares.of_group(BOTH_ENDS, both)
        tied = TiedGroup(both, tuple(observers), shares)
        return [
            replace(group, tied=tied) if stage in self._ends else group
            for stage, group in enumerate(groups)
        ]

    def _again(self, retries: int) -> bool:
        self._failures += 1
        if self._failures <= retries:
            return False
        self._failures = 0
        return True
