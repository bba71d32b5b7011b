"""StepTimes: where the seconds of a step went, by the trainer's clock and by what servers claim.

A step lasts from the commit before it to its own. It is told in two ways. The table has a row for
each stage: the mean of what its servers say of their own time, in parts that do not overlap. The
chain names one thing after another that the step's end waited for.

Units:   seconds on the trainer's clock.
Source:  docs/slow.md, "A step's seconds".
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.waits import (
    JOURNEY_MAX,
    ChainLink,
    JourneyPart,
    StageSeconds,
    StepSeconds,
)
from p2pswarm.trainer.reports.step_seconds import StepTimed
from p2pswarm.trainer.step.stalls import JourneyHop

CLAIM_SHARE, CLAIM_S = 0.25, 0.25  # orders may come late: a claim may differ so much from the step
CHAIN_ENDS = 4  # parts of the chain beside those of the journey
NOBODY = b""


@dataclass(frozen=True, slots=True)
class LastJourney:
    """The way of the microbatch that was counted last."""

    launched_s: float
    hops: tuple[JourneyHop, ...]


NO_JOURNEY = LastJourney(0.0, ())


@dataclass(frozen=True, slots=True)
class _Answer:
    """A member's answer to the order to reduce."""

    one: Incarnation
    stage: int
    at_s: float


@dataclass(frozen=True, slots=True)
class _FittingClaim:
    """A member's claim that fits what the trainer saw."""

    one: Incarnation
    stage: int
    claim: StepSeconds

    @property
    def idle_s(self) -> float:
        """How long it computed, averaged and committed nothing."""
        return self.claim.waiting_s + self.claim.transfer_s


@dataclass(slots=True)
class _StepClaims:
    """A step that is decided, while its servers tell where their time went."""

    number: int
    stages: int
    """Of the run."""
    begun_s: float
    ended_s: float
    counted_s: float
    averaged_s: float
    journey: LastJourney
    last: _Answer | None
    """Who averaged last."""
    due: dict[Incarnation, int]
    """Members whose claims have not come, with their stages: those of the step before, too."""
    rows: list[_FittingClaim]
    doubtful: list[int]
    """The stages of members whose claims do not fit."""


class StepTimes:
    """The times of the step in progress, and of the one before until all have told theirs.

    A member claims how it spent the time between the orders to commit two steps. The trainer gave
    both orders, so a claim that differs from the step's time is left out and counted as doubtful. A
    member that did not average the step before has no such time: it came in between.
    """

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._counted_s = 0.0
        """Time of the order to reduce."""
        self._journey = NO_JOURNEY
        self._answers: dict[Incarnation, _Answer] = {}
        self._before: frozenset[Incarnation] = frozenset()
        """The members that averaged the step before."""
        self._averaged_s = 0.0
        self._decided: _StepClaims | None = None

    def on_reduce(self, journey: LastJourney, now_s: float) -> None:
        """All is counted, and the sums are averaged; again, if an averaging has failed."""
        self._counted_s, self._journey = now_s, journey
        self._answers = {}

    def on_answer(self, one: Incarnation, stage: int, now_s: float) -> None:
        """A member has averaged."""
        self._answers[one] = _Answer(one, stage, now_s)

    def on_averaging(self, now_s: float) -> None:
        """All have averaged, and the voters are asked."""
        self._averaged_s = now_s

    def on_commit(
        self, step: int, stages: int, launched_s: float | None, now_s: float
    ) -> list[StepTimed]:
        """The step is decided; nothing is told of a step whose beginning was not seen.

        What lacks of the step before will not come any more. `launched_s`: when the first
        microbatch of this one was launched.
        """
        told = self._told()
        begun_s = launched_s if self._begun_s is None else self._begun_s
        answers, before = self._answers, self._before
        self._begun_s, self._answers, self._before = now_s, {}, frozenset(answers)
        if begun_s is None:
            return told
        last = max(answers.values(), key=lambda answer: answer.at_s, default=None)
        due = {one: answer.stage for one, answer in answers.items() if one in before}
        times = begun_s, now_s, self._counted_s, self._averaged_s
        self._decided = _StepClaims(step, stages, *times, self._journey, last, due, [], [])
        return told if due else told + self._told()

    def on_claim(self, one: Incarnation, step: int, claim: StepSeconds) -> list[StepTimed]:
        """A member tells where its time went; the step is told once all have."""
        decided = self._decided
        if decided is None or step != decided.number or one not in decided.due:
            return []
        stage, span_s = decided.due.pop(one), decided.ended_s - decided.begun_s
        if abs(claim.sum_s - span_s) <= CLAIM_SHARE * span_s + CLAIM_S:
            decided.rows.append(_FittingClaim(one, stage, claim))
        else:
            decided.doubtful.append(stage)
        return [] if decided.due else self._told()

    def close(self) -> list[StepTimed]:
        """The run is over: what lacks of the last step will not come any more."""
        return self._told()

    def _told(self) -> list[StepTimed]:
        """The decided step, as far as its members have told."""
        decided, self._decided = self._decided, None
        if decided is None:
            return []
        rows, doubtful = decided.rows, decided.doubtful
        table = [_mean(stage, rows, doubtful.count(stage)) for stage in range(decided.stages)]
        duration_s = decided.ended_s - decided.begun_s
        return [StepTimed(decided.number, duration_s, tuple(table), _chain(decided))]


def _chain(decided: _StepClaims) -> tuple[ChainLink, ...]:
    """What the step's end waited for, one after another; the seconds add up to the step's."""
    busiest = min(decided.rows, key=lambda row: (row.idle_s, row.one), default=None)
    journey, last = decided.journey, decided.last
    hops = journey.hops[: JOURNEY_MAX - CHAIN_ENDS]
    parts = [
        (JourneyPart.FILLING, _stage(busiest), _peer(busiest), decided.begun_s),
        (JourneyPart.LAUNCH, None, NOBODY, journey.launched_s),
    ]
    for hop in hops:
        peer = hop.server.peer if hop.server is not None else NOBODY
        part = JourneyPart.BACKWARD if hop.returning else JourneyPart.FORWARD
        closing = JourneyPart.CLOSING, None, NOBODY, hop.at_s
        parts.append(closing if hop.stage < 0 else (part, hop.stage, peer, hop.at_s))
    slow = (None, NOBODY) if last is None else (last.stage, last.one.peer)
    parts.append((JourneyPart.AVERAGING, *slow, decided.counted_s))
    parts.append((JourneyPart.DECIDING, None, NOBODY, decided.averaged_s))
    chain, end_s = [], decided.ended_s
    for part, stage, peer, at_s in reversed(parts):  # with a delay some begin before the step
        start_s = min(end_s, max(decided.begun_s, at_s))
        if end_s > start_s:
            chain.append(ChainLink(part, stage, peer, end_s - start_s))
        end_s = start_s
    return tuple(reversed(chain))


def _mean(stage: int, rows: Sequence[_FittingClaim], doubtful: int) -> StageSeconds:
    """A row of the table."""
    here = [row for row in rows if row.stage == stage]
    if not here:
        return StageSeconds(0, StepSeconds(), NOBODY, doubtful)
    count = len(here)
    claims = [row.claim for row in here]
    mean = StepSeconds(
        sum(claim.forward_s for claim in claims) / count,
        sum(claim.backward_s for claim in claims) / count,
        sum(claim.commit_s for claim in claims) / count,
        sum(claim.averaging_s for claim in claims) / count,
        sum(claim.transfer_s for claim in claims) / count,
        sum(claim.waiting_s for claim in claims) / count,
    )
    slowest = min(here, key=lambda row: (row.idle_s, row.one))
    return StageSeconds(count, mean, slowest.one.peer, doubtful)


def _stage(row: _FittingClaim | None) -> int | None:
    return None if row is None else row.stage


def _peer(row: _FittingClaim | None) -> bytes:
    return NOBODY if row is None else row.one.peer
