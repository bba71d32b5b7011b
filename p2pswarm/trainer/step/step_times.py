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

CLAIM_SHARE, CLAIM_S = 0.25, 0.25  # a claim may differ so much from the time between two answers
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

    stage: int
    at_s: float
    claim: StepSeconds | None


@dataclass(frozen=True, slots=True)
class _Row:
    """A member's claim that fits what the trainer saw."""

    one: Incarnation
    stage: int
    claim: StepSeconds

    @property
    def idle_s(self) -> float:
        """How long it computed, averaged and committed nothing."""
        return self.claim.waiting_s + self.claim.transfer_s


class StepTimes:
    """The times of the step in progress.

    A member claims how it spent the time between its answers to two reductions. The trainer has
    seen both answers, so a claim that differs from that time is left out and counted as doubtful.
    A member that did not answer the step before has no such time: it came in between.
    """

    def __init__(self) -> None:
        self._begun_s: float | None = None
        self._counted_s = 0.0
        """Time of the order to reduce."""
        self._journey = NO_JOURNEY
        self._answers: dict[Incarnation, _Answer] = {}
        self._before: dict[Incarnation, float] = {}
        """Times of the answers of the step before."""
        self._averaged_s = 0.0

    def on_reduce(self, journey: LastJourney, now_s: float) -> None:
        """All is counted, and the sums are averaged; again, if an averaging has failed."""
        self._counted_s, self._journey = now_s, journey
        self._answers = {}

    def on_answer(
        self, one: Incarnation, stage: int, claim: StepSeconds | None, now_s: float
    ) -> None:
        """A member has averaged."""
        self._answers[one] = _Answer(stage, now_s, claim)

    def on_averaging(self, now_s: float) -> None:
        """All have averaged, and the voters are asked."""
        self._averaged_s = now_s

    def on_commit(
        self, step: int, stages: int, launched_s: float | None, now_s: float
    ) -> list[StepTimed]:
        """The step is decided; nothing is told of a step whose beginning was not seen.

        `launched_s`: when its first microbatch was launched.
        """
        begun_s = launched_s if self._begun_s is None else self._begun_s
        self._begun_s = now_s
        answers, before = self._answers, self._before
        self._before = {one: answer.at_s for one, answer in answers.items()}
        self._answers = {}
        if begun_s is None:
            return []
        rows, doubtful = _claims(answers, before)
        table = [_mean(stage, rows, doubtful.count(stage)) for stage in range(stages)]
        chain = self._chain(begun_s, rows, answers, now_s)
        return [StepTimed(step, now_s - begun_s, tuple(table), chain)]

    def _chain(
        self,
        begun_s: float,
        rows: Sequence[_Row],
        answers: dict[Incarnation, _Answer],
        now_s: float,
    ) -> tuple[ChainLink, ...]:
        """What the step's end waited for, one after another; the seconds add up to the step's."""
        busiest = min(rows, key=lambda row: (row.idle_s, row.one), default=None)
        last = max(answers.items(), key=lambda each: each[1].at_s, default=None)
        journey, hops = self._journey, self._journey.hops[: JOURNEY_MAX - 5]
        parts = [
            (JourneyPart.FILLING, _stage(busiest), _peer(busiest), begun_s),
            (JourneyPart.LAUNCH, None, NOBODY, journey.launched_s),
        ]
        for hop in hops:
            peer = hop.server.peer if hop.server is not None else NOBODY
            part = JourneyPart.BACKWARD if hop.returning else JourneyPart.FORWARD
            closing = JourneyPart.CLOSING, None, NOBODY, hop.at_s
            parts.append(closing if hop.stage < 0 else (part, hop.stage, peer, hop.at_s))
        slow = (None, NOBODY) if last is None else (last[1].stage, last[0].peer)
        parts.append((JourneyPart.AVERAGING, *slow, self._counted_s))
        parts.append((JourneyPart.DECIDING, None, NOBODY, self._averaged_s))
        chain, end_s = [], now_s
        for part, stage, peer, at_s in reversed(parts):  # with a delay some begin before the step
            start_s = min(end_s, max(begun_s, at_s))
            if end_s > start_s:
                chain.append(ChainLink(part, stage, peer, end_s - start_s))
            end_s = start_s
        return tuple(reversed(chain))


def _claims(
    answers: dict[Incarnation, _Answer], before: dict[Incarnation, float]
) -> tuple[list[_Row], list[int]]:
    """The claims that fit, and the stages of those that do not."""
    rows, doubtful = [], []
    for one, answer in answers.items():
        if answer.claim is None or one not in before:
            continue
        span_s = answer.at_s - before[one]
        if abs(answer.claim.sum_s - span_s) <= CLAIM_SHARE * span_s + CLAIM_S:
            rows.append(_Row(one, answer.stage, answer.claim))
        else:
            doubtful.append(answer.stage)
    return rows, doubtful


def _mean(stage: int, rows: Sequence[_Row], doubtful: int) -> StageSeconds:
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


def _stage(row: _Row | None) -> int | None:
    return None if row is None else row.stage


def _peer(row: _Row | None) -> bytes:
    return NOBODY if row is None else row.one.peer
