"""The weights that a server holds, and the reductions and commits that follow them.

Units:   version v = weights after v commits.
Errors:  NotServing for weights that cannot be kept, and for a commit of a step that another
         generation made.
Source:  docs/training.md.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum

from p2pswarm.base.errors import NotServing, SwarmError, Unusable
from p2pswarm.run.averaging.base import AveragedGradient, Sums
from p2pswarm.run.averaging.round import RoundId
from p2pswarm.run.chain.record import term_of
from p2pswarm.run.messages.membership import REDUCTIONS_MAX, HeldReduction
from p2pswarm.run.messages.step import Commit, Reduce
from p2pswarm.server.boundary_cache import BoundaryCache

SILENT_S = 5.0  # members send as soon as they have all, which is before the decision
STEPS_KEPT = 64  # of which it is known when they were decided; an older one was long ago
LONG_AGO_S = 0.0
MADE_MAX = 16  # commits that may be sent again; a trainer resends those that nobody answered
NO_ROUND = RoundId(-1, 0)


class WeightsLost(NotServing):
    """The stage has moved on, and the weights here cannot: they have to be fetched again."""


def lost_by(error: SwarmError, what: str) -> SwarmError:
    """The consequence of an error: the weights are lost, or the whole device, which is worse."""
    return error if isinstance(error, Unusable) else WeightsLost(f"{what}: {error}")


class ObserverPatience:
    """The reductions of one session, and how long an observer waits for their pieces."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()
        """The pieces of each step that are announced and have not come."""
        self._heard_s: dict[int, float] = {}
        """Time of the last piece, of the last steps."""
        self._decided_s: dict[int, float] = {}
        """Time of the news of its decision, of the last steps."""

    def piece_began(self, step: int) -> None:
        """A piece of a step is announced."""
        self._under_way[step] += 1

    def piece_ended(self, step: int, now_s: float, *, came: bool) -> None:
        """It has come, or will not: then anybody may have announced it, and it says nothing."""
        self._under_way[step] -= 1
        if not self._under_way[step]:
            del self._under_way[step]
        if came:
            _keep(self._heard_s, step, now_s)

    def decided(self, step: int, now_s: float) -> None:
        """The commit of a step has come: it and all before it are decided."""
        if step not in self._decided_s:
            _keep(self._decided_s, step, now_s)

    def give_up_s(self, step: int) -> float | None:
        """Time to wait no longer for the pieces of a step; None while there is no reason to."""
        decided_s = [at_s for decided, at_s in self._decided_s.items() if decided >= step]
        if not decided_s or self._under_way[step]:
            return None
        return max(min(decided_s), self._heard_s.get(step, LONG_AGO_S)) + SILENT_S


def _keep(times_s: dict[int, float], step: int, now_s: float) -> None:
    times_s[step] = now_s
    if len(times_s) > STEPS_KEPT:
        del times_s[min(times_s)]


class FirstWeights(Enum):
    """The origin of a session's weights."""

    KEPT = "the ones of the session before"
    DRAWN = "from the seed"
    FETCHED = "pieces of other members"


class CommitDecision(Enum):
    """The consequence of a commit for the weights here."""

    APPLY = "its reduction is here, and the weights are of its step"
    APPLIED = "the weights hold it already: it is answered with what it made"
    FOLLOW = "its reduction is here, the weights are not all: the pieces that are follow it"
    KEPT = "the pieces that were here have followed it already"
    MISSED = "its reduction will not come: the pieces have to be of a later version"
    LOST = "its reduction will not come, and the weights are of its step: they cannot follow"
    LATER = "its reduction comes slowly: it is noted, and decided when that is over"
    WAIT = "its reduction, or the commit before it, is on the way"


@dataclass(frozen=True, slots=True)
class ReducedGradient:
    """A gradient that a commit may apply."""

    round: RoundId
    sums: Sums
    outcome: AveragedGradient

    @property
    def name(self) -> HeldReduction:
        """Its name for the trainer."""
        return HeldReduction(self.round.step, self.round.generation, self.outcome.digest)


@dataclass(frozen=True, slots=True)
class ClosedSum:
    """A gradient sum to which nothing is added any more: its incarnation is over."""

    incarnation: int
    step: int
    counted: frozenset[int]
    """The microbatches in it."""
    losses: Mapping[int, float] = field(default_factory=dict)
    """Of these, if this is the last stage."""
    boundaries: BoundaryCache | None = field(default=None, compare=False)
    """The results for the stages beside this one."""


@dataclass(frozen=True, slots=True)
class NamedWeights:
    """Weights by their digest, and the reduction that was or could be applied to them."""

    version: int
    digest: bytes
    reductions: tuple[HeldReduction, ...]


@dataclass(frozen=True, slots=True)
class HeldWeights:
    """Whole weights in memory, whether they are the stage's newest or not."""

    version: int
    digest: bytes
    """Empty until it is computed."""
    reduced: tuple[ReducedGradient, ...] = ()
    """The reductions of step `version` that are here: a commit of one would make the next version.

    One for each term in which the step was averaged, see `CommitLog`.
    """
    sum: ClosedSum | None = None
    """The sum of step `version` that the last session has left, if it is whole."""
    made_of: NamedWeights | None = field(default=None, compare=False)
    """The weights before the last commit, and its reduction."""

    @property
    def named(self) -> NamedWeights | None:
        """Their name for the trainer; None if that takes their digest, which lacks.

        Whoever has the digest of the weights before a commit, and of the gradient that it applied,
        can tell what it made. A sum is of the weights as they are, so it takes their own digest.
        """
        if self.digest:
            return NamedWeights(self.version, self.digest, self.reductions)
        return self.made_of if self.sum is None else None

    @property
    def reductions(self) -> tuple[HeldReduction, ...]:
        """The reductions' names for the trainer, the latest last."""
        return tuple(each.name for each in self.reduced)


class CommitLog:
    """The version of the weights of one stage; outlives the sessions of the server.

    A replica is a state and the commits after it. A commit is applied once: if it is sent again,
    it is answered with what it made. What memory holds, and the reduction that could be applied to
    it, outlive the session: the next one may go on with both.

    While the pieces of a newcomer are on their way (`replica.py`), each commit is followed by the
    pieces that are here, and its reduced gradient is not kept whole. If the reduction of a step
    did not come, the newcomer needs pieces of a later version.

    **The last reduction of each term stays until the commit.** A coordinator that was stopped may
    have proposed a record of its own reduction, and one voter may have accepted it. After another
    has averaged the step again and was lost, the next leader may have to anchor that record. So
    whoever answered `Reduced` in a term can follow what was decided of it. Within a term only the
    last generation is ever proposed.

    A commit has few bytes and a reduction has many. Nobody waits for a newcomer, so a commit may
    come to it before the reduction that it applies. The commit then waits for its reduction.

    A newcomer takes part in the reductions of its stage as an observer: it is sent the result when
    the members have it. A member that does not reach it gives its pieces up, and tells nobody. So
    an observer that knows of the decision, and to which nothing comes, need not wait: it misses
    that step, and fetches the weights. A piece that is on its way may take as long as its link
    needs.
    """

    def __init__(self, made_max: int = MADE_MAX) -> None:
        self.held: HeldWeights | None = None
        """The weights in memory: kept through sessions until others take their place."""
        self.needed = 0
        """While weights come: the first step whose commit has not been decided on."""
        self._loading = False
        self._begun: RoundId | None = None
        self._over = NO_ROUND
        self._reduced: dict[int, ReducedGradient] = {}
        """By term, those of one step."""
        self._noted: Commit | None = None
        self._made: dict[int, int] = {}
        """The generation of each of the last commits, by step, that weights or pieces followed."""
        self._made_max = made_max

    @property
    def version(self) -> int | None:
        """The version of the weights to work with; None while they are not here."""
        return None if self.held is None or self._loading else self.held.version

    @property
    def newest(self) -> int | None:
        """The version that could be here without a download: the next one, if only a commit lacks.

        None while the weights are not here.
        """
        version = self.version
        return version if version is None or not self._reductions_of(version) else version + 1

    @property
    def digest(self) -> bytes:
        """The digest of the weights in memory; empty without any, and until it is known."""
        return b"" if self.held is None else self.held.digest

    def session_over(self, left: ClosedSum | None) -> None:
        """A session has left its sum; it is of use while the weights are those of its step."""
        if self.held is not None and not self._loading:
            fits = left is not None and left.step == self.held.version
            self.held = replace(self.held, sum=left if fits else None)

    def keep_sum(self, since: int) -> ClosedSum:
        """The session that begins keeps the sum of the last one."""
        left = None if self.held is None else self.held.sum
        if left is None or left.step != since:
            raise NotServing(f"no sum of step {since} is here")
        return left

    def begin(self, since: int, *, keep: bool, draws: bool = True) -> FirstWeights:
        """Start a session that takes part in the steps from `since` on; a sum is not kept twice.

        `draws`: version 0 is drawn from the seed, or read from files that are here; else it is a
        checkpoint's, or comes from members.
        """
        held = self.held
        if keep:
            version = None if held is None else held.version
            # one commit may lack, if its reduction is here
            before = held is not None and held.reduced and held.version == since - 1
            if version != since and not before:
                raise NotServing(f"the weights are of version {version}, not {since}")
        self._begun, self._noted, self.needed = None, None, since
        kept = held.reduced if keep and held is not None else ()
        self._reduced = {term_of(each.round.generation): each for each in kept}
        self._over = max((each.round for each in kept), default=NO_ROUND)
        self._loading = not keep
        if held is not None:
            self.held = replace(held, sum=None)
        if keep:
            return FirstWeights.KEPT
        if since == 0 and draws:
            self.held, self._made = None, {}
            return FirstWeights.DRAWN
        return FirstWeights.FETCHED

    def other_era(self, *, keep: bool) -> None:
        """The run has gone back: the same steps are made again, with other bits.

        `keep`: the weights in memory are the ones that it has gone back to.
        """
        self._made, self._reduced, self._begun, self._noted = {}, {}, None, None
        if self.held is not None:
            self.held = replace(self.held, reduced=(), sum=None, made_of=None) if keep else None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Guard a block that changes the weights: if it fails, they count as lost for now."""
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.held = None

    def became(self, version: int) -> None:
        """The weights in memory are all of `version` now, drawn or fetched; no digest yet."""
        self.held = HeldWeights(version, b"", self._reductions_of(version))
        self._loading = False
        self._drop_closed()

    def untouched(self, before: HeldWeights, digest: bytes) -> None:
        """A change has failed: what was held `before` is here still if its digest is."""
        if before.digest == digest:
            self.held = before

    def overwritten(self) -> None:
        """The weights in memory make way, piece by piece, for those that come."""
        self.held = None

    def unchanged(self, digest: bytes) -> None:
        """Give up weights that were kept and are not what they were, with NotServing."""
        if digest != self.digest:
            self.held = None
            raise NotServing("the weights in memory have changed by themselves: a fault of it")

    def hashed(self, digest: bytes) -> None:
        """The digest of the weights in memory is known."""
        assert self.held is not None, "what is hashed does not change"
        self.held = replace(self.held, digest=digest)

    def applied(self, order: Commit) -> None:
        """A commit was applied to the weights."""
        made_of = None
        if self.held is not None and self.held.digest:
            applied = tuple(
                each for each in self.held.reductions if each.generation == order.generation
            )
            made_of = (
                NamedWeights(self.held.version, self.held.digest, applied) if applied else None
            )
        self.held = HeldWeights(order.step + 1, b"", made_of=made_of)
        self._follow(order)
        self._drop_closed()

    def holds(self, step: int) -> bool:
        """Return whether the weights to work with hold the commit of a step."""
        return self.version is not None and self.version > step

    def reduction_begun(self, order: Reduce) -> None:
        """A reduction is under way; it takes the place of one that is not over."""
        self._begun = RoundId(order.step, order.generation)
        self._drop_closed()

    @property
    def averages(self) -> bool:
        """Return whether a reduction is under way."""
        return self._begun is not None

    def reduction_over(self, round_: RoundId, reduced: ReducedGradient | None) -> None:
        """A reduction has succeeded, or failed; the last of its term may be committed."""
        self._over = max(self._over, round_)
        if self._begun == round_:
            self._begun = None
        if reduced is not None:
            self._reduced[term_of(round_.generation)] = reduced
        self._drop_closed()
        for term in sorted(self._reduced)[:-REDUCTIONS_MAX]:
            del self._reduced[term]
        if reduced is not None and self.held is not None and self.held.version == round_.step:
            self.held = replace(self.held, reduced=self._reductions_of(round_.step))

    def noted(self, round_: RoundId) -> Commit | None:
        """The commit that was to be decided LATER, when its reduction is over; once."""
        order = self._noted
        if order is None or RoundId(order.step, order.generation) != round_:
            return None
        self._noted = None
        return order

    def must_commit_before(self, step: int) -> bool:
        """Return whether a reduction of an earlier step is here, or on the way, uncommitted."""
        pending = [self._begun, *(each.round for each in self._reduced.values())]
        return any(round_ is not None and round_.step < step for round_ in pending)

    def committed(self, order: Commit, *, patient: bool = True) -> CommitDecision:
        """Decide what to do about a commit; one that may APPLY is not yet applied.

        `patient`: its sender waits for an answer while a reduction is on the way. One that has
        begun is always waited for: a step may last longer than anybody waits for an answer.
        """
        if self.holds(order.step):
            self._require_same(order)
            return CommitDecision.APPLIED
        version = self.version
        if version is None and order.step < self.needed:  # decided while the weights come
            followed = self._made.get(order.step) == order.generation
            return CommitDecision.KEPT if followed else CommitDecision.MISSED
        round_ = RoundId(order.step, order.generation)
        here = any(each.round == round_ for each in self._reduced.values())
        has_overtaken = version is not None and order.step > version  # the commit before it
        if patient and (round_ > self._over or has_overtaken):
            return CommitDecision.WAIT
        if round_ == self._begun:
            self._noted = order
            return CommitDecision.LATER
        if version is not None:
            return CommitDecision.APPLY if here and version == order.step else CommitDecision.LOST
        self.needed = order.step + 1
        if here:
            self._follow(order)
        else:
            self._drop_closed()
        return CommitDecision.FOLLOW if here else CommitDecision.MISSED

    def take(self, order: Commit) -> Sums:
        """The reduced gradient that a commit applies, once; the others are for nothing then."""
        reduced = self._reduced.pop(term_of(order.generation))
        assert reduced.round.generation == order.generation, "it is applied where it is here"
        self._reduced.clear()
        return reduced.sums

    def _reductions_of(self, version: int) -> tuple[ReducedGradient, ...]:
        """The reductions that could be applied to weights of a version, the latest last."""
        here = (each for _, each in sorted(self._reduced.items()))
        return tuple(each for each in here if each.round.step == version)

    def _require_same(self, order: Commit) -> None:
        """Raise NotServing for a commit of a step that was made from another reduction."""
        made = self._made.get(order.step)
        if made is not None and made != order.generation:
            raise NotServing(
                f"step {order.step} was made here from generation {made}, not {order.generation}"
            )

    def _follow(self, order: Commit) -> None:
        """Enter a commit that weights or pieces follow."""
        self._made[order.step] = order.generation
        self._made.pop(order.step - self._made_max, None)

    def _drop_closed(self) -> None:
        """Forget reductions that no commit can apply any more: they would delay later steps."""
        first = self.needed if self.version is None else self.version
        if self._begun is not None and self._begun.step < first:
            self._begun = None
        self._reduced = {t: each for t, each in self._reduced.items() if each.round.step >= first}
