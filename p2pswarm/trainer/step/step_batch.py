"""The microbatches of one step: which member has counted what, what is under way or fenced.

Errors:  notes of attempts that are over change nothing; BadMessage for scores that cannot be.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import (
    Counted,
    Evaluated,
    Handed,
    Undelivered,
)
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import FailedAttempt, Trouble
from p2pswarm.trainer.members.membership import AnswerLimits, Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Replayed
from p2pswarm.trainer.step.in_flight import (
    EVALUATION_BASE,
    REFERENCE_BASE,
    REFUSALS_MAX,
    AttemptTimeout,
    Fences,
    InFlight,
    JobPhase,
    LaunchPace,
    MicrobatchJob,
)
from p2pswarm.trainer.step.ledger import CountResult, StepLedger
from p2pswarm.trainer.step.losses import StepLosses, check_scores
from p2pswarm.trainer.step.result_checks import OPINIONS_MAX, Quarantine, ResultChecks, SpotChecks
from p2pswarm.trainer.step.stalls import WorkStealing
from p2pswarm.trainer.step.sums import StepSums


@dataclass(frozen=True, slots=True)
class StepLearning:
    """All that is learned from step to step."""

    timeout: AttemptTimeout
    pace: LaunchPace
    stealing: WorkStealing
    fence_limits: AnswerLimits
    quarantine: Quarantine
    checks: SpotChecks


class StepBatch:
    """The microbatches of one step: who has counted what, what is under way, what is fenced."""

    def __init__(
        self,
        number: int,
        config: RunConfig,
        learned: StepLearning,
        *,
        evaluates: bool,
        references: Sequence[int] = (),
    ) -> None:
        """`evaluates`: the weights of this very version are here, to be measured.

        `references`: the batches of answers that come before all others, which carry their scores.
        """
        self.number = number
        self._config = config
        self._stages = config.stages
        self._patient = config.on_stage_lost != "end"
        self._learned = learned
        size = 0 if number >= config.steps else config.batch.microbatches
        first = number * config.batch.microbatches
        self.ledger = StepLedger(first, size, self._stages)
        self.losses = StepLosses(number, config, range(first, first + size))
        jobs = self._held_out() if evaluates else []
        jobs += [MicrobatchJob(first + i, Work.FORWARD) for i in range(size)]
        self._later: list[MicrobatchJob] = []
        """What waits for references."""
        self._unscored = dict.fromkeys(REFERENCE_BASE + number for number in references)
        if self._unscored:
            jobs, self._later = [MicrobatchJob(n, Work.EVALUATE) for n in self._unscored], jobs
        self.in_flight = InFlight(jobs, learned.timeout)
        self.sums = StepSums(number, self.ledger, self.in_flight)
        self.result_checks = ResultChecks(
            number, self.in_flight, self.ledger, learned.quarantine, learned.checks
        )
        self.fences = Fences(learned.fence_limits)
        self._gains: dict[int, tuple[float, ...]] = {}
        """Of held-out batches of pairs, by row."""
        self.last: tuple[int, float] | None = None
        """The microbatch that was counted last, and when it was launched."""
        self.given_up: list[act.CancelLaunch] = []
        """The attempts that were given up, until the trainer stops pushing them."""

    def _held_out(self) -> list[MicrobatchJob]:
        batch, last = self._config.batch, self.number >= self._config.steps
        due = batch.evaluate_every > 0 and (last or self.number % batch.evaluate_every == 0)
        numbers = range(batch.evaluate_microbatches if due else 0)
        held_out = [EVALUATION_BASE + i for i in numbers]
        self.losses.expect(held_out)
        return [MicrobatchJob(number, Work.EVALUATE) for number in held_out]

    @property
    def scores(self) -> bool:
        """True if references are still computed: nothing else is launched."""
        return bool(self._unscored)

    def evaluate(self) -> None:
        """Measure the weights, if that is due: those of this version are here now."""
        for job in self._held_out():
            self.in_flight.add(job)

    @property
    def complete(self) -> bool:
        """Every stage has counted every microbatch, nothing is under way, its targets are known."""
        done = self.in_flight.finished and self.fences.idle and self.ledger.complete
        return done and self.losses.counted

    @property
    def loss(self) -> float:
        """Mean nats per target, as far as they were told; NaN if none was."""
        return self.losses.mean(self.result_checks.aside)

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
            self.losses.add({note.microbatch: note.loss})
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

    def on_evaluation(self, note: Evaluated, now_s: float) -> list[act.KeepReferences]:
        """The last stage has the loss of a held-out batch, or the references of answers."""
        job = self.in_flight.job(note.microbatch)
        if not job or job.work is not Work.EVALUATE or job.phase is JobPhase.DONE:
            return []
        check_scores(self._config, note)
        self.in_flight.finish(job, now_s)
        if note.microbatch < REFERENCE_BASE:
            self.losses.add({note.microbatch: note.loss})
            self._gains[note.microbatch] = note.scores
            return []
        self._unscored.pop(note.microbatch, None)
        if not self._unscored:
            for later in self._later:
                self.in_flight.add(later)
            self._later = []
        return [act.KeepReferences(note.microbatch - REFERENCE_BASE, note.scores)]

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
            self.losses.inherit(self.sums.losses(held))
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
        """Return the mean loss of the held-out batches, nats per target, if there were any."""
        loss = self.losses.held_out(self.result_checks.aside)
        if loss is None:
            return []
        rows = [gain for gains in self._gains.values() for gain in gains]
        won = [chosen > rejected for chosen, rejected in zip(rows[::2], rows[1::2], strict=True)]
        return [HeldOut(self.number, loss, sum(won) / len(won) if won else None)]

    def hopeless(self) -> str | None:
        """Return why the run cannot go on: one microbatch is refused too often.

        So is a batch of answers that has no references: no step can be made of it.
        """
        for number in self.result_checks.aside:
            if number >= REFERENCE_BASE:
                return (
                    f"answers {(number - REFERENCE_BASE) * self._config.batch.rows} and after have "
                    "no finite references: look at the model's first weights"
                )
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
        self.last = job.microbatch, job.launched_s
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
