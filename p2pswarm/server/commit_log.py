"""Which weights a server holds, and which reductions and commits follow them.

A replica is a snapshot and the commits after it. While the snapshot of a newcomer is on its way,
the log keeps the commits of the steps that pass, with their reduced gradients; they are applied in
order when the snapshot is here. A newcomer that missed a reduction needs a later snapshot instead.

A commit has few bytes and a reduction has many. Nobody waits for a newcomer, so a commit may come
to it before the reduction that it applies. The commit then waits for its reduction.

Units:   version v = weights after v commits.
Errors:  NotServing for a commit that was applied before; BadMessage for a snapshot
         that the kept commits do not follow.
Source:  docs/training.md.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

from p2pswarm.allreduce.base import AveragedGradient, Sums
from p2pswarm.allreduce.round import RoundId
from p2pswarm.errors import BadMessage, NotServing
from p2pswarm.swarm.messages.step import Commit, Reduce

BACKLOG_MAX = 64  # reductions kept while weights come, each of the stage's size
NO_ROUND = RoundId(-1, 0)


class FirstWeights(Enum):
    """Where the weights of a session come from."""

    KEPT = "the ones of the session before"
    DRAWN = "from the seed"
    FETCHED = "a snapshot of another member"


class CommitDecision(Enum):
    """What a commit means for the weights here."""

    APPLY = "its reduction is here, and the weights are of its step"
    KEPT = "its reduction is here, the weights are not yet: it is applied when they are"
    MISSED = "its reduction will not come: the weights have to be of a later version"
    LOST = "its reduction will not come, and the weights are of its step: they cannot follow"
    WAIT = "its reduction, or the commit before it, is on the way"


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """A gradient that a commit may apply."""

    round: RoundId
    sums: Sums
    outcome: AveragedGradient


@dataclass(frozen=True, slots=True)
class KeptCommit:
    """A commit and what it applies."""

    order: Commit
    sums: Sums


class CommitLog:
    """The version of the weights of one stage; outlives the sessions of the server."""

    def __init__(self, backlog_max: int = BACKLOG_MAX) -> None:
        self.version: int | None = None
        """None while the weights are not here."""
        self.digest = b""
        """The digest of the weights of `version`."""
        self.needed = 0
        """A snapshot has to be of this version or a later one."""
        self._backlog_max = backlog_max
        self._backlog: list[KeptCommit] = []
        self._begun: RoundId | None = None
        self._over = NO_ROUND
        self._reduced: ReducedGradient | None = None

    def begin(self, since: int, *, keep: bool) -> FirstWeights:
        """Start a session that takes part in the steps from `since` on."""
        if keep and self.version != since:
            raise NotServing(f"the weights are of version {self.version}, not {since}")
        self._backlog, self._begun, self._over, self._reduced = [], None, NO_ROUND, None
        self.needed = since
        if keep:
            return FirstWeights.KEPT
        self.version = None
        return FirstWeights.DRAWN if since == 0 else FirstWeights.FETCHED

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Guard a block that changes the weights: if it fails, they count as lost."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.version = None

    def became(self, version: int, digest: bytes) -> None:
        """The weights are of `version` now."""
        self.version, self.digest = version, digest
        self._drop_closed()

    def reduction_begun(self, order: Reduce) -> None:
        """A reduction is under way; it takes the place of an earlier one."""
        self._begun = RoundId(order.step, order.generation)
        self._drop_closed()

    def reduction_over(self, round_: RoundId, reduced: ReducedGradient | None) -> None:
        """A reduction has succeeded, or failed; the last that succeeded may be committed."""
        self._over = max(self._over, round_)
        if self._begun == round_:
            self._begun = None
        if reduced is not None:
            self._reduced = reduced
        self._drop_closed()

    def must_commit_before(self, step: int) -> bool:
        """Whether a reduction of an earlier step is here, or on the way, without its commit."""
        pending = [self._begun, self._reduced.round if self._reduced else None]
        return any(round_ is not None and round_.step < step for round_ in pending)

    def committed(self, order: Commit, *, patient: bool = True) -> CommitDecision:
        """Decide what to do about a commit; one that may APPLY is not yet applied.

        `patient`: it may wait for a reduction that is on the way.
        """
        round_ = RoundId(order.step, order.generation)
        here = self._reduced is not None and self._reduced.round == round_
        if patient and (round_ > self._over or self._is_ahead(order)):
            return CommitDecision.WAIT
        if self.version is None:
            return self._kept_or_missed(order, here=here)
        if self.version > order.step:
            raise NotServing(f"a commit of step {order.step} to version {self.version}")
        return CommitDecision.APPLY if here and self.version == order.step else CommitDecision.LOST

    def take(self) -> Sums:
        """The reduced gradient that a commit applies, once."""
        assert self._reduced is not None, "a commit is applied only where its reduction is here"
        sums, self._reduced = self._reduced.sums, None
        return sums

    def follow(self, snapshot_version: int) -> list[KeptCommit] | None:
        """The kept commits that follow a snapshot, in order; None if a later one is needed."""
        if snapshot_version < self.needed:
            return None
        following = [kept for kept in self._backlog if kept.order.step >= snapshot_version]
        for version, kept in enumerate(following, snapshot_version):
            if kept.order.step != version:
                raise BadMessage(f"weights of version {version}, commits from {kept.order.step} on")
        self._backlog = []
        return following

    def _is_ahead(self, order: Commit) -> bool:
        """Whether a commit has overtaken the one before it."""
        return self.version is not None and order.step > self.version

    def _kept_or_missed(self, order: Commit, *, here: bool) -> CommitDecision:
        if here and len(self._backlog) < self._backlog_max:
            self._backlog.append(KeptCommit(order, self.take()))
            return CommitDecision.KEPT
        self._backlog = []
        self.needed = max(self.needed, order.step + 1)
        self._drop_closed()
        return CommitDecision.MISSED

    def _drop_closed(self) -> None:
        """Forget reductions that no commit can apply any more: they would delay later steps."""
        first = self.needed if self.version is None else self.version
        if self._begun is not None and self._begun.step < first:
            self._begun = None
        if self._reduced is not None and self._reduced.round.step < first:
            self._reduced = None
