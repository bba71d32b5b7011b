"""The reductions of a run, generation by generation, and how long one may take.

A generation that takes too long is not proof of anything: the stage may be large and its links
slow. So the limit is a multiple of the slowest of the last averagings that succeeded. It doubles
with each one that was too slow, so that a slow averaging succeeds in the end. What the members'
links carried in those that succeeded determines how large the shard of each is in the next.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections import Counter, deque
from dataclasses import replace

from p2pswarm.run.averaging.plan import ShardShares
from p2pswarm.run.messages.step import TiedGroup
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import OptimizerConfig
from p2pswarm.trainer.balance.prepared_moves import Movers
from p2pswarm.trainer.members.membership import StageGroup
from p2pswarm.trainer.reduction.reduction import Reduction

FIRST_LIMIT_S = 120.0  # nothing is measured yet: a large stage over a slow link
LIMIT_MIN_S = 30.0  # below this a pause of a process or a link that is dialled again would count
LIMIT_MAX_S = 3600.0
LIMIT_FACTOR = 4.0  # times the slowest of the last ones
MEASURED = 16  # averagings remembered
FAILED_RETRIES = 1  # a broken link between two members is dialled again before one is blamed
BOTH_ENDS = -1  # no stage: the group that averages a tied tensor
SLOW_RETRIES = 2  # each has twice the time of the one before


class AveragingLimit:
    """How long one averaging may take, learned from what succeeded and from what did not."""

    def __init__(self, first_s: float = FIRST_LIMIT_S, max_s: float = LIMIT_MAX_S) -> None:
        self._first_s = first_s
        self._max_s = max_s
        self._took_s: deque[float] = deque(maxlen=MEASURED)
        self._too_slow = 0

    @property
    def seconds(self) -> float:
        """The limit of the next averaging."""
        usual_s = self._first_s
        if self._took_s:
            usual_s = max(LIMIT_MIN_S, LIMIT_FACTOR * max(self._took_s))
        limit_s = usual_s * 2.0**self._too_slow
        return min(self._max_s, limit_s)

    def took(self, seconds: float) -> None:
        """Learn from an averaging that succeeded."""
        self._took_s.append(seconds)
        self._too_slow = 0

    def too_slow(self) -> None:
        """Learn from an averaging that was given up at the limit."""
        if self.seconds < self._max_s:
            self._too_slow += 1


class Generations:
    """The reduction under way, if there is one; every other one is over."""

    def __init__(
        self,
        limit: AveragingLimit | None = None,
        former: int = 0,
        ends: tuple[int, int] | None = None,
    ) -> None:
        """Generations are numbered from `former` + 1 on.

        `ends`: the two stages that have a tied tensor in common.
        """
        self.limit = limit or AveragingLimit()
        self.reduction: Reduction | None = None
        self._shares = ShardShares()
        self._ends = ends
        self._number = former
        self._failures = 0
        self._begun_s = 0.0

    @property
    def numbered(self) -> int:
        """The number of the newest generation."""
        return self._number

    def begin(
        self,
        step: int,
        groups: list[StageGroup],
        optimizer: OptimizerConfig,
        now_s: float,
        movers: Movers | None = None,
    ) -> Reduction:
        """Start the next generation; `movers`: who observes a stage and serves another one."""
        self._number += 1
        self._begun_s = now_s
        deadline_s = now_s + self.limit.seconds
        shared = self._tied([self._shared(group) for group in groups])
        self.reduction = Reduction(step, self._number, shared, optimizer, deadline_s, movers)
        return self.reduction

    def current(self, generation: int) -> Reduction | None:
        """The reduction under way, if it is this one."""
        found = self.reduction
        return found if found is not None and found.generation == generation else None

    def drop(self) -> None:
        """A member was lost: the next generation is another group's."""
        self.reduction = None

    def decided(self, now_s: float) -> None:
        """The reduction succeeded and its step is decided."""
        self.limit.took(now_s - self._begun_s)
        if self.reduction is not None:
            for one, bytes_per_s in self.reduction.rates.items():
                stage = self.reduction.stages[one]
                self._shares.measured(stage, one.peer, bytes_per_s)
                if self._ends is not None and stage in self._ends:
                    self._shares.measured(BOTH_ENDS, one.peer, bytes_per_s)
        self.reduction, self._failures = None, 0

    def failed(self) -> bool:
        """A member could not average; returns whether that member is to be blamed by now."""
        self.reduction = None
        return self._again(FAILED_RETRIES)

    def overdue(self, now_s: float) -> bool:
        """Whether the reduction has reached its limit."""
        return self.reduction is not None and now_s >= self.reduction.deadline_s

    def give_up(self) -> list[Incarnation]:
        """End the reduction at its limit; returns the members to blame, if any by now.

        Who does not finish while others of its stage do is to blame, after some tries. Where a
        whole stage does not finish, nobody is: it needs more time.
        """
        assert self.reduction is not None, "asked only when one is overdue"
        silent, stages = self.reduction.silent, self.reduction.stages
        sizes, missing = Counter(stages.values()), Counter(stages[one] for one in silent)
        alone = [one for one in silent if missing[stages[one]] < sizes[stages[one]]]
        self.reduction = None
        self.limit.too_slow()
        self._shares.forget()
        return alone if self._again(SLOW_RETRIES) else []

    def _shared(self, group: StageGroup) -> StageGroup:
        """The group, with the shares by what its members' links carried."""
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
