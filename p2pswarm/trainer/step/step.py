"""One step's microbatches: which member has counted what, what is under way, what is fenced.

Errors:  notes of another step or of attempts that are over change nothing.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import (
    CHECK_BASE,
    Counted,
    Evaluated,
    Handed,
    Sketch,
    Undelivered,
)
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import FailedAttempt, Trouble
from p2pswarm.trainer.members.membership import AnswerLimits, Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Replayed, StepDone
from p2pswarm.trainer.step.in_flight import (
    EVALUATION_BASE,
    FENCE_MAX_S,
    FENCE_S,
    REFUSALS_MAX,
    AttemptTimeout,
    Fences,
    InFlight,
    JobPhase,
    LaunchPace,
    MicrobatchJob,
)
from p2pswarm.trainer.step.ledger import CountResult, StepLedger
from p2pswarm.trainer.step.result_checks import OPINIONS_MAX, Quarantine, ResultChecks, SpotChecks
from p2pswarm.trainer.step.stalls import StallSuspect, WorkStealing
from p2pswarm.trainer.step.sums import StepSums, SumsUnderWay, mean_loss


class Phase(Enum):
    """The phases of a run."""

    GATHERING = "waiting for servers"
    FILLING = "microbatches are on their way"
    REDUCING = "the step's gradients are being averaged"
    DECIDING = "all hold the gradient, and the voters are asked"
    ENDED = "over"


@dataclass(frozen=True, slots=True)
class _Learned:
    """What is known from step to step."""

    timeout: AttemptTimeout
    pace: LaunchPace
    stealing: WorkStealing
    fence_limits: AnswerLimits
    quarantine: Quarantine
    checks: SpotChecks


class StepBatch:
    """The microbatches of one step: who has counted what, what is under way, what is fenced."""

    def __init__(
        self, number: int, config: RunConfig, learned: _Learned, *, evaluates: bool
    ) -> None:
        """`evaluates`: the weights of this very version are here, to be measured."""
        self.number = number
        self._config = config
        self._stages = config.stages
        self._patient = config.on_stage_lost != "end"
        self._learned = learned
        size = 0 if number >= config.steps else config.batch.microbatches
        first = number * config.batch.microbatches
        self.ledger = StepLedger(first, size, self._stages)
        jobs = self._held_out() if evaluates else []
        jobs += [MicrobatchJob(first + i, Work.FORWARD) for i in range(size)]
        self.in_flight = InFlight(jobs, learned.timeout)
        self.sums = StepSums(number, self.ledger, self.in_flight)
        self.result_checks = ResultChecks(
            number, self.in_flight, self.ledger, learned.quarantine, learned.checks
        )
        self.fences = Fences(learned.fence_limits)
        self._losses: dict[int, float] = {}
        self.given_up: list[act.CancelLaunch] = []
        """The attempts that were given up, until the trainer stops pushing them."""

    def _held_out(self) -> list[MicrobatchJob]:
        batch, last = self._config.batch, self.number >= self._config.steps
        due = batch.evaluate_every > 0 and (last or self.number % batch.evaluate_every == 0)
        held_out = range(batch.evaluate_microbatches if due else 0)
        return [MicrobatchJob(EVALUATION_BASE + i, Work.EVALUATE) for i in held_out]

    def evaluate(self) -> None:
        """Measure the weights, if that is due: those of this version are here now."""
        for job in self._held_out():
            self.in_flight.add(job)

    @property
    def complete(self) -> bool:
        """Every stage has counted every microbatch, and nothing is under way."""
        return self.in_flight.finished and self.fences.idle and self.ledger.complete

    @property
    def loss(self) -> float:
        """Mean over the microbatches whose loss was told, nats per token; NaN if none was.

        A fence may tell of a microbatch that no note tells of; its loss is then unknown.
        """
        told, aside = self._losses.items(), self.result_checks.aside
        return mean_loss([loss for m, loss in told if m < EVALUATION_BASE and m not in aside])

    def on_handoff(
        self, to: Incarnation, stage: int | None, note: Handed, now_s: float, by: Member | None
    ) -> None:
        """See `Step`."""
        job = self.in_flight.running(note.microbatch, note.attempt)
        if job is None:
            return
        stealing = self._learned.stealing
        if by is not None:
            holder = stealing.holder(job, by.stage)
            known = holder == by.incarnation
            if not known and (holder is not None or stage is None):
                return
            if stage is not None and stage != by.stage + 1:
                return
        if stage is not None and not note.granted:
            if by is not None:
                stealing.on_wait(job, by.incarnation, now_s)
        elif stage is not None:
            self.in_flight.on_handoff(job, to)
            stealing.on_handoff(job, stage, to, now_s, by.incarnation if by else None)
        else:
            self.give_up(job, "the server it was handed to is gone")

    def on_count(
        self, incarnation: Incarnation, stage: int, note: Counted, now_s: float
    ) -> CountResult:
        """See `Step`."""
        if note.loss is not None and stage == self._stages - 1 and self._known(note.microbatch):
            self._losses[note.microbatch] = note.loss
        job = self.in_flight.job(note.microbatch)
        if job is not None and job.attempt == note.attempt:
            self._learned.stealing.on_gradient(job, stage, now_s)
        if job is not None and job.check:
            if stage == 0 and job.phase is JobPhase.RUNNING and job.attempt == note.attempt:
                self.result_checks.on_check(job, now_s)
                return CountResult.CHECK
            return CountResult.STRAY
        if not note.counted:
            return CountResult.STRAY
        return self._enter(note.microbatch, stage, incarnation, now_s)

    def on_evaluation(self, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        job = self.in_flight.job(note.microbatch)
        if job and job.work is Work.EVALUATE and job.phase is not JobPhase.DONE:
            self._losses[note.microbatch] = note.loss
            self.in_flight.finish(job, now_s)

    def on_delivery_failure(
        self, note: Undelivered, by: Incarnation | None
    ) -> FailedAttempt | None:
        """An attempt got stuck; None if it is not under way any more."""
        job = self.in_flight.running(note.microbatch, note.attempt)
        if job is None:
            return None
        return self._failed(job, Trouble(note.obstacle), note.reason, by)

    def late(self, now_s: float) -> list[FailedAttempt]:
        """Give up what has been under way for too long."""
        reason = "it was under way for too long"
        late = self.in_flight.late(now_s)
        return [self._failed(job, Trouble.LATE, reason, None) for job in late]

    def on_fence_answer(
        self, incarnation: Incarnation, stage: int, counted: tuple[int, ...], now_s: float
    ) -> CountResult | None:
        """See `Step`."""
        if not self.fences.on_answer(incarnation, now_s):
            return None
        results = [self._enter(microbatch, stage, incarnation, now_s) for microbatch in counted]
        return CountResult.CLASH if CountResult.CLASH in results else None

    def suspend(self, incarnation: Incarnation) -> None:
        """An incarnation is over, and its sum is not void: fences and the step wait for it."""
        self.fences.suspend(incarnation)
        self.leave(incarnation)

    def inherit(
        self, former: Incarnation, heir: Incarnation, stage: int, held: HeldSum, now_s: float
    ) -> int:
        """The sum of a former incarnation, which fits, is its heir's; returns how much it holds.

        A server that joins has ended all that it did: that is what a fence asks.
        """
        beyond = self.ledger.fits(held.counted, former, stage)
        assert beyond is not None, "a sum that does not fit is void"
        self.fences.on_promise(former)
        known = self.ledger.hand_over(former, heir)
        for microbatch in beyond:
            self._enter(microbatch, stage, heir, now_s)
        if stage == self._stages - 1:
            self._losses = self.sums.losses(held) | self._losses
        return known + len(beyond)

    def leave(self, incarnation: Incarnation) -> None:
        """Give up what went through an incarnation that is over."""
        for job in self.in_flight.touched_by(incarnation):
            self.give_up(job, f"{incarnation} is gone")

    def void(self, incarnation: Incarnation, now_s: float) -> int:
        """Return what an incarnation had counted is done again; returns how much that is."""
        self.fences.on_promise(incarnation)
        voided = self.ledger.void(incarnation)
        for microbatch in voided:
            held = self.in_flight.job(microbatch)
            assert held is not None, "the ledger and the jobs are of one step"
            if held.phase is JobPhase.RUNNING:
                self.give_up(held, f"{incarnation} is gone")
            elif held.phase is JobPhase.DONE and self.fences.unsure(held):
                self.in_flight.give_up(held, held.reason)  # the end of that round launches it
            elif held.phase is JobPhase.DONE:  # every stage had counted: nothing to fence
                self.in_flight.again(held, now_s)
        return len(voided)

    def settle(self, now_s: float) -> Replayed | None:
        """Close a round that all have answered: its jobs may be launched again."""
        settled = self.fences.settle()
        for job in settled:
            if job.counts and self.ledger.all_counted(job.microbatch):
                self._finish(job, now_s)
                self.result_checks.acquit(job)
            elif job.check and job.attempt + 1 >= OPINIONS_MAX:
                self.result_checks.on_check(job, now_s)
            else:
                self.in_flight.again(job, now_s)
        numbers = tuple(job.microbatch for job in settled)
        return Replayed(self.number, numbers, settled[0].reason) if numbers else None

    def share(self, stage: int, servers: Sequence[Incarnation]) -> None:
        """See `Step`."""
        if self.in_flight.all_launched:
            loads = [self._to_count(one, stage) for one in servers]
            for job in self._learned.stealing.surplus(loads):
                self.give_up(job, "a server has come that shares the work")

    def _to_count(self, one: Incarnation, stage: int) -> list[MicrobatchJob]:
        jobs = [job for job in self.in_flight.touched_by(one) if job.counts]
        return [job for job in jobs if stage in self.ledger.missing(job.microbatch)]

    def evaluation(self) -> list[HeldOut]:
        """Return the mean loss of the held-out batches, nats per token, if there were any."""
        losses = [loss for m, loss in self._losses.items() if m >= EVALUATION_BASE]
        losses += [math.nan for m in self.result_checks.aside if m >= EVALUATION_BASE]
        return [HeldOut(self.number, mean_loss(losses))] if losses else []

    def hopeless(self) -> str | None:
        """Return why the run cannot go on: one microbatch is refused too often."""
        job = self.in_flight.most_refused()
        if job is None or job.refusals < REFUSALS_MAX:
            return None
        where = f"microbatch {job.microbatch} of step {self.number}"
        return f"{where} failed {REFUSALS_MAX} times: {job.reason}"

    def launch(self, window: int, now_s: float) -> list[act.Launch]:
        """Start what the window allows."""
        launches = []
        while (job := self.in_flight.launch(window, now_s)) is not None:
            counting = self._missing(job) if job.work is Work.FORWARD else ()
            keepers = self.ledger.keepers(job.microbatch) if job.may_use_kept else ()
            what = self.number, job.microbatch, job.attempt, job.work
            launches.append(act.Launch(*what, counting, keepers))
        return launches

    def give_up(self, job: MicrobatchJob, reason: str) -> None:
        """Give up the running attempt of a job: it is fenced."""
        self.in_flight.give_up(job, reason)
        self.given_up.append(act.CancelLaunch(job.microbatch, job.attempt))
        self.fences.add(job)

    def _known(self, microbatch: int) -> bool:
        job = self.in_flight.job(microbatch)
        return job is not None and job.counts and not job.condemned

    def _missing(self, job: MicrobatchJob) -> tuple[int, ...]:
        """The stages that an attempt has to reach."""
        if job.counts:
            return self.ledger.missing(job.microbatch)
        return tuple(range(self._stages))

    def _finish(self, job: MicrobatchJob, now_s: float) -> None:
        self._learned.pace.on_completion(job.launched_s, now_s)
        self.in_flight.finish(job, now_s)
        if self._config.spot_check_share:
            self.result_checks.on_completion(job.microbatch, now_s)

    def _enter(
        self, microbatch: int, stage: int, incarnation: Incarnation, now_s: float
    ) -> CountResult:
        """Enter a contribution, and finish the job if it was the last one missing."""
        result = self.ledger.count(microbatch, stage, incarnation)
        job = self.in_flight.job(microbatch)
        if result is CountResult.NEW:
            self.sums.counted_s[stage] = now_s
        if result is CountResult.NEW and job and self.ledger.all_counted(microbatch):
            self._finish(job, now_s)
            return CountResult.LAST
        return result

    def _failed(
        self, job: MicrobatchJob, trouble: Trouble, reason: str, by: Incarnation | None
    ) -> FailedAttempt:
        """Give up an attempt; a patient run does not count broken roads, which may be mended."""
        job.stuck = True
        if (trouble is Trouble.WORK or not self._patient) and not job.check:
            self.in_flight.refuse(job)
        missing, path = self._missing(job), tuple(job.path)
        self.give_up(job, reason)
        return FailedAttempt(self.number, job.microbatch, trouble, reason, by, path, missing)


class Step:
    """The step in progress, from its first launch until its commit; then it is the next one.

    After the last step comes one without microbatches: only the evaluation is left. With a delay
    the next step, `ahead`, is filled beside the end of this one: the weights that it is computed
    with are here (docs/delay.md).
    """

    def __init__(self, number: int, config: RunConfig, secret: bytes, phase: Phase) -> None:
        """`secret`: chooses the spot checks."""
        self.phase = phase
        self._config = config
        self.timeout, self.pace = AttemptTimeout(), LaunchPace()  # they learn over all steps
        self.stealing = WorkStealing(config.stages)
        self._quarantine = Quarantine(config.batch.microbatches)
        self._learned = _Learned(
            self.timeout,
            self.pace,
            self.stealing,
            AnswerLimits(FENCE_S, FENCE_MAX_S),
            self._quarantine,
            SpotChecks(config, secret),
        )
        self._begin(StepBatch(number, config, self._learned, evaluates=True))

    def _begin(self, batch: StepBatch) -> None:
        self._closing = batch
        self.number = number = batch.number
        self.ledger, self.in_flight = batch.ledger, batch.in_flight
        self.result_checks, self.fences = batch.result_checks, batch.fences
        self.ahead: StepBatch | None = None
        if self._config.delay and number + 1 < self._config.steps:
            self.ahead = StepBatch(number + 1, self._config, self._learned, evaluates=False)
        self.batches = [batch] if self.ahead is None else [batch, self.ahead]
        """The microbatches of this step; with a delay also of the next."""
        self.sums = SumsUnderWay([each.sums for each in self.batches])

    def begin_next(self) -> None:
        """The step is committed: begin the next, which knows what was learned in those before."""
        self.phase = Phase.FILLING
        ahead = self.ahead
        loaded = ahead is not None and ahead.in_flight.under_way > 0
        self.pace.begin(loaded=loaded)
        self.stealing.begin(loaded=loaded)
        if ahead is None:
            ahead = StepBatch(self.number + 1, self._config, self._learned, evaluates=True)
        else:
            ahead.evaluate()
        self._begin(ahead)

    @property
    def filled(self) -> list[StepBatch]:
        """Of these, what is launched and counted in this phase."""
        if self.phase is Phase.FILLING:
            return self.batches
        overlaps = self.phase in (Phase.REDUCING, Phase.DECIDING) and self.ahead is not None
        return self.batches[1:] if overlaps else []

    @property
    def complete(self) -> bool:
        """Every stage has counted every microbatch of this step, and nothing is under way."""
        return self._closing.complete

    @property
    def loss(self) -> float:
        """See `StepBatch`."""
        return self._closing.loss

    def never_given(self, one: Incarnation, microbatch: int) -> bool:
        """Return whether one that is not ready holds no sum here, and was handed nothing."""
        return one not in self.counting and one not in self.path(microbatch)

    def path(self, microbatch: int) -> list[Incarnation]:
        """Return whom the newest attempt of a microbatch was handed to."""
        job = self._with(microbatch).in_flight.job(microbatch)
        return job.path if job else []

    def holder(self, microbatch: int, stage: int) -> Incarnation | None:
        """Return who has counted a microbatch in a stage."""
        return self._with(microbatch).ledger.holder(microbatch, stage)

    def awaits_promise(self, one: Incarnation) -> bool:
        """Return whether a round of fencing waits for an incarnation."""
        return any(one in batch.fences.silent for batch in self.batches)

    def on_handoff(
        self,
        to: Incarnation,
        stage: int | None,
        note: Handed,
        now_s: float,
        by: Member | None = None,
    ) -> None:
        """An attempt went to the incarnation `to` of a stage; None: it ended, so it is given up.

        `by`: the member that says so; None: the trainer. It hands on only to the next stage, and
        only what it has itself. Its note may overtake the one that tells that it has it.
        """
        if batch := self._of(note.step):
            batch.on_handoff(to, stage, note, now_s, by)

    def on_count(
        self, incarnation: Incarnation, stage: int, note: Counted, now_s: float
    ) -> CountResult:
        """An incarnation has a microbatch in its sum, or has passed its gradient on."""
        if batch := self._of(note.step):
            return batch.on_count(incarnation, stage, note, now_s)
        return CountResult.STRAY

    def on_sketch(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave, in a run with spot checks."""
        if batch := self._of(note.step):
            batch.result_checks.on_sketch(by, stage, note)

    def on_evaluation(self, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        if note.step == self.number:
            self._closing.on_evaluation(note, now_s)

    def on_delivery_failure(
        self, note: Undelivered, by: Incarnation | None
    ) -> FailedAttempt | None:
        """An attempt got stuck; None if it is not under way any more."""
        batch = self._of(note.step)
        return None if batch is None else batch.on_delivery_failure(note, by)

    def late(self, now_s: float) -> list[FailedAttempt]:
        """Give up what has been under way for too long."""
        return [failed for batch in self.filled for failed in batch.late(now_s)]

    def give_up_stalled(
        self,
        ready: Callable[[int], Sequence[Member]],
        pauses: Callable[[bytes], int],
        now_s: float,
    ) -> list[StallSuspect] | None:
        """Give up what idle servers do sooner; `ready`: those of a stage.

        `pauses`: how often a peer was left out before.

        Returns who may be at fault and whose sum is soon made again: in the time that the stall has
        lasted. So leaving them out costs the step as much again at most. None if nothing is given
        up.
        """
        stalled = self.stealing.stalled(self._running, ready, now_s)
        for one in stalled:
            reason = "a server had it for long, and another of its stage no work"
            batch = self._with(one.job.microbatch)
            if batch.ledger.holder(one.job.microbatch, one.stage) == one.holder:
                one.job.stuck = True  # it was to give what it had kept, and does not
            batch.give_up(one.job, reason)
        holders = dict.fromkeys(one.holder for one in stalled if not one.blameless)
        suspects = self.stealing.suspects(holders, now_s, pauses)
        members = [(member, s) for s in range(self._config.stages) for member in ready(s)]
        stages = {member.incarnation: stage for member, stage in members}
        spared = [
            each
            for each in suspects
            if (stage := stages.get(each.one)) is not None
            and self.sums.redo_s(each.one, stage) <= each.cost_s
        ]
        return spared if stalled else None

    def on_fence_answer(
        self,
        incarnation: Incarnation,
        stage: int,
        counted: tuple[int, ...],
        now_s: float,
        step: int | None = None,
    ) -> CountResult | None:
        """An incarnation has promised; CLASH if another has counted one of `counted` too.

        `step`: the one that was fenced; None: this one.
        """
        batch = self._of(self.number if step is None else step)
        if batch is None:
            return None
        return batch.on_fence_answer(incarnation, stage, counted, now_s)

    @property
    def counting(self) -> list[Incarnation]:
        """All that have counted anything in this step; with a delay also in the next."""
        each = (one for batch in self.batches for one in batch.ledger.counting)
        return list(dict.fromkeys(each))

    def suspend(self, incarnation: Incarnation) -> None:
        """An incarnation is over, and its sums are not void: fences and steps wait for it."""
        for batch in self.batches:
            batch.suspend(incarnation)

    def inherit(
        self, former: Incarnation, heir: Incarnation, stage: int, held: HeldSum, now_s: float
    ) -> int:
        """Sums of a former incarnation, which fit, are its heir's; returns how much they hold."""
        each = ((batch, held.of_step(batch.number)) for batch in self.batches)
        return sum(batch.inherit(former, heir, stage, part, now_s) for batch, part in each)

    def end_incarnation(self, incarnation: Incarnation, now_s: float) -> int:
        """Void an incarnation: what it counted and what went through it is done again."""
        for batch in self.batches:
            batch.leave(incarnation)
        return self.void(incarnation, now_s)

    def void(self, incarnation: Incarnation, now_s: float) -> int:
        """Return what an incarnation had counted is done again; returns how much that is."""
        return sum(batch.void(incarnation, now_s) for batch in self.batches)

    def share(self, stage: int, servers: Sequence[Incarnation]) -> None:
        """One of the servers of a stage is new: it takes its share of what is under way to them."""
        for batch in self.batches:
            batch.share(stage, servers)

    def who_counted(self, microbatch: int) -> tuple[Incarnation, ...]:
        """Return which members have a microbatch in their sums; of a check, the microbatch."""
        batch = self._with(microbatch)
        job = batch.in_flight.job(microbatch)
        held_out = job is None or job.work is Work.EVALUATE
        return () if held_out else batch.ledger.who_counted(microbatch % CHECK_BASE)

    def report(self, gradient_norm: float, learning_rate: float) -> StepDone:
        """The step is decided: what people hear of it."""
        aside, size = self._quarantine.on_decision(self.number), self.ledger.size
        return StepDone(self.number, self.loss, gradient_norm, learning_rate, size, aside)

    def evaluation(self) -> list[HeldOut]:
        """Return the mean loss of the held-out batches, nats per token, if there were any."""
        return self._closing.evaluation()

    def hopeless(self) -> str | None:
        """Return why the run cannot go on: one microbatch refused too often, or many set aside."""
        if self._quarantine.hopeless:
            return self._quarantine.hopeless
        return next((why for batch in self.batches if (why := batch.hopeless())), None)

    def cancellations(self) -> list[act.CancelLaunch]:
        """The attempts that were given up, so that we stop pushing them; drained by reading."""
        drained = []
        for batch in self.batches:
            drained += batch.given_up
            batch.given_up = []
        return drained

    def average_again(self) -> None:
        """An averaging has failed: find out which members still answer, and try another."""
        self.phase = Phase.FILLING
        self.fences.probe()  # the peer that it failed with may be dead, and we not know it yet

    def launch(self, window: int, now_s: float) -> list[act.Launch]:
        """Start what the window allows: of the next step once all of this one is under way."""
        launches: list[act.Launch] = []
        for batch in self.filled:
            others = sum(each.in_flight.under_way for each in self.batches if each is not batch)
            launches += batch.launch(window - others, now_s)
            if not batch.in_flight.all_launched:
                break
        return launches

    def _of(self, step: int) -> StepBatch | None:
        """The microbatches of a step, if it is this one or the next."""
        return next((batch for batch in self.batches if batch.number == step), None)

    def _with(self, microbatch: int) -> StepBatch:
        """The batch that has a microbatch; this step's if none has."""
        there = (batch for batch in self.batches if batch.in_flight.job(microbatch) is not None)
        return next(there, self._closing)

    def _running(self, microbatch: int, attempt: int) -> MicrobatchJob | None:
        return self._with(microbatch).in_flight.running(microbatch, attempt)
