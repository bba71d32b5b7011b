"""One step's microbatches: who has counted what, what is under way, what is being fenced.

Units:   `now_s` seconds on the caller's clock; microbatches by their global number.
Errors:  notes of another step or of attempts that are over change nothing.
"""

import math
from collections.abc import Sequence
from enum import Enum

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import (
    CHECK_BASE,
    Counted,
    Evaluated,
    Handed,
    Sketch,
    Undelivered,
)
from p2pswarm.run.messages.step import FencedWork
from p2pswarm.run.messages.types import Work
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import Blame, FailedAttempt, Trouble
from p2pswarm.trainer.members.membership import AnswerLimits
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Replayed, StepDone
from p2pswarm.trainer.step.fences import Fences
from p2pswarm.trainer.step.guards import OPINIONS_MAX, GuardReport, Guards, StepGuards
from p2pswarm.trainer.step.in_flight import (
    EVALUATION_BASE,
    REFUSALS_MAX,
    AttemptTimeout,
    InFlight,
    JobPhase,
    LaunchPace,
    MicrobatchJob,
    WorkStealing,
)
from p2pswarm.trainer.step.ledger import CountResult, StepLedger
from p2pswarm.trainer.step.sums import StepSums, mean_loss


class Phase(Enum):
    """The phases of a run."""

    GATHERING = "waiting for servers"
    FILLING = "microbatches are on their way"
    REDUCING = "the step's gradients are being averaged"
    DECIDING = "all hold the gradient, and the voters are asked"
    ENDED = "over"


class Step:
    """The step in progress, from its first launch until its commit; then it is the next one.

    After the last step comes one without microbatches: only the evaluation is left.
    """

    def __init__(
        self,
        number: int,
        config: RunConfig,
        guards: Guards,
        fences: AnswerLimits,
        phase: Phase = Phase.FILLING,
    ) -> None:
        """`fences`: how long each member may take to answer one."""
        self.phase = phase
        self._config = config
        self._stages = config.stages
        self._patient = config.on_stage_lost != "end"
        self._timeout = AttemptTimeout()
        self._fence_limits = fences
        self._all_guards = guards
        self._spot_checks = config.spot_check_share > 0
        self.pace = LaunchPace()
        """How many microbatches may be on their way; learned over all steps."""
        self._given_up: list[act.CancelLaunch] = []
        self._begin(number)

    def _begin(self, number: int) -> None:
        self.number = number
        batch = self._config.batch
        last = number >= self._config.steps
        size = 0 if last else batch.microbatches
        first = number * batch.microbatches
        self._ledger = StepLedger(first, size, self._stages)
        evaluate = batch.evaluate_every > 0 and (last or number % batch.evaluate_every == 0)
        held_out = range(batch.evaluate_microbatches if evaluate else 0)
        jobs = [MicrobatchJob(EVALUATION_BASE + i, Work.EVALUATE) for i in held_out]
        jobs += [MicrobatchJob(first + i, Work.FORWARD) for i in range(size)]
        self._in_flight = InFlight(jobs, self._timeout)
        self.sums = StepSums(number, self._ledger, self._in_flight)
        """Which sums of former incarnations can be parts of the step."""
        self._guards = StepGuards(number, self._in_flight, self._ledger, self._all_guards)
        self._fences = Fences(self._fence_limits)
        self._stealing = WorkStealing()
        self._losses: dict[int, float] = {}
        self._given_up.clear()

    def begin_next(self) -> None:
        """The step is committed: begin the next, which knows what was learned in those before."""
        self.phase = Phase.FILLING
        self.pace.begin()
        self._begin(self.number + 1)

    @property
    def complete(self) -> bool:
        """Every stage has counted every microbatch, and nothing is under way."""
        return self._in_flight.finished and self._fences.idle and self._ledger.complete

    @property
    def all_launched(self) -> bool:
        """True if nothing waits to be launched for the first time: the end of the step is near."""
        return self._in_flight.all_launched

    @property
    def fencing(self) -> bool:
        """True if a member has not answered a fence."""
        return self._fences.asking

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered the open round."""
        return self._fences.silent

    @property
    def fence_deadline_s(self) -> float:
        """Return when to ask who should have answered."""
        return self._fences.deadline_s

    def fence_limit_s(self, one: Incarnation) -> float:
        """Return how long a member may take to answer a fence."""
        return self._fences.limit_s(one)

    def fence_overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered the open round by now."""
        return self._fences.overdue(now_s)

    def on_fence_timeout(self, one: Incarnation) -> None:
        """A member did not answer, and counts as gone."""
        self._fences.on_timeout(one)

    @property
    def loss(self) -> float:
        """Mean over the microbatches whose loss was told, nats per token; NaN if none was.

        A fence may tell of a microbatch that no note tells of; its loss is then unknown.
        """
        told, aside = self._losses.items(), self._guards.aside
        return mean_loss([loss for m, loss in told if m < EVALUATION_BASE and m not in aside])

    @property
    def held_out_loss(self) -> float | None:
        """Mean over the held-out batches, nats per token; None if there were none."""
        losses = [loss for m, loss in self._losses.items() if m >= EVALUATION_BASE]
        losses += [math.nan for m in self._guards.aside if m >= EVALUATION_BASE]
        return mean_loss(losses) if losses else None

    def path(self, microbatch: int) -> list[Incarnation]:
        """Return whom the newest attempt of a microbatch was handed to."""
        return job.path if (job := self._in_flight.job(microbatch)) else []

    def bitmap(self, of: Incarnation) -> bytes:
        """The ledger of one incarnation."""
        return self._ledger.bitmap(of)

    def holders(self, stage: int, group: Sequence[Incarnation]) -> bytes:
        """The place in `group` of the one that counts each microbatch in a stage."""
        return self._ledger.holders(stage, group)

    def on_handoff(self, to: Incarnation, note: Handed, *, alive: bool) -> None:
        """An attempt went to the incarnation `to`; it is given up if `to` is not alive."""
        job = self._running(note.step, note.microbatch, note.attempt)
        if job is None:
            return
        if alive:
            self._in_flight.on_handoff(job, to)
        else:
            self._give_up(job, "the server it was handed to is gone")

    def on_count(
        self, incarnation: Incarnation, stage: int, note: Counted, now_s: float
    ) -> CountResult:
        """An incarnation has a microbatch in its sum, or has passed its gradient on."""
        if note.step != self.number:
            return CountResult.STRAY
        if note.loss is not None and stage == self._stages - 1 and self._known(note.microbatch):
            self._losses[note.microbatch] = note.loss
        job = self._in_flight.job(note.microbatch)
        if job is not None and job.check:
            if stage == 0 and job.phase is JobPhase.RUNNING and job.attempt == note.attempt:
                self._guards.on_check(job, now_s)
                return CountResult.CHECK
            return CountResult.STRAY
        if not note.counted:
            return CountResult.STRAY
        return self._enter(note.microbatch, stage, incarnation, now_s)

    def on_evaluation(self, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        job = self._in_flight.job(note.microbatch) if note.step == self.number else None
        if job and job.work is Work.EVALUATE and job.phase is not JobPhase.DONE:
            self._losses[note.microbatch] = note.loss
            self._in_flight.finish(job, now_s)

    def on_delivery_failure(
        self, note: Undelivered, by: Incarnation | None
    ) -> FailedAttempt | None:
        """An attempt got stuck; None if it is not under way any more."""
        job = self._running(note.step, note.microbatch, note.attempt)
        if job is None:
            return None
        return self._failed(job, Trouble(note.obstacle), note.reason, by)

    def late(self, now_s: float) -> list[FailedAttempt]:
        """Give up what has been under way for too long."""
        reason = "it was under way for too long"
        late = self._in_flight.late(now_s)
        return [self._failed(job, Trouble.LATE, reason, None) for job in late]

    def on_fence_answer(
        self, incarnation: Incarnation, stage: int, counted: tuple[int, ...], now_s: float
    ) -> CountResult | None:
        """An incarnation has promised; CLASH if another has counted one of `counted` too."""
        if not self._fences.on_answer(incarnation, now_s):
            return None
        results = [self._enter(microbatch, stage, incarnation, now_s) for microbatch in counted]
        return CountResult.CLASH if CountResult.CLASH in results else None

    @property
    def counting(self) -> list[Incarnation]:
        """All whose sums hold something."""
        return self._ledger.counting

    def suspend(self, incarnation: Incarnation) -> None:
        """An incarnation is over, and its sum is not void: fences and the step wait for it."""
        self._fences.suspend(incarnation)
        self._leave(incarnation)

    def inherit(
        self, former: Incarnation, heir: Incarnation, stage: int, told: HeldSum, now_s: float
    ) -> int:
        """The sum of a former incarnation, which fits, is its heir's; returns how much it holds.

        Who joins has ended all that it did, so it has promised what any fence asks.
        """
        beyond = self._ledger.fits(told.counted, former, stage)
        assert beyond is not None, "a sum that does not fit is void"
        self._fences.on_promise(former)
        known = self._ledger.hand_over(former, heir)
        for microbatch in beyond:
            self._enter(microbatch, stage, heir, now_s)
        if stage == self._stages - 1:
            self._losses = self.sums.losses(told) | self._losses
        return known + len(beyond)

    def end_incarnation(self, incarnation: Incarnation, now_s: float) -> int:
        """Void an incarnation: what it counted and what went through it is done again."""
        self._leave(incarnation)
        return self.void(incarnation, now_s)

    def _leave(self, incarnation: Incarnation) -> None:
        """Give up all that goes through an incarnation."""
        for job in self._in_flight.touched_by(incarnation):
            self._give_up(job, f"{incarnation} is gone")

    def void(self, incarnation: Incarnation, now_s: float) -> int:
        """Return what an incarnation had counted is done again; returns how much that is."""
        self._fences.on_promise(incarnation)
        voided = self._ledger.void(incarnation)
        for microbatch in voided:
            held = self._in_flight.job(microbatch)
            assert held is not None, "the ledger and the jobs are of one step"
            if held.phase is JobPhase.RUNNING:
                self._give_up(held, f"{incarnation} is gone")
            elif held.phase is JobPhase.DONE and self._fences.unsure(held):
                self._in_flight.give_up(held, held.reason)  # the end of that round launches it
            elif held.phase is JobPhase.DONE:  # every stage had counted: nothing to fence
                self._in_flight.again(held, now_s)
        return len(voided)

    def settle(self, now_s: float) -> Replayed | None:
        """Close a round that all have answered: its jobs may be launched again."""
        settled = self._fences.settle()
        for job in settled:
            if job.counts and self._ledger.all_counted(job.microbatch):
                self._finish(job, now_s)
                self._guards.acquit(job)
            elif job.check and job.attempt + 1 >= OPINIONS_MAX:
                self._guards.on_check(job, now_s)
            else:
                self._in_flight.again(job, now_s)
        numbers = tuple(job.microbatch for job in settled)
        return Replayed(self.number, numbers, settled[0].reason) if numbers else None

    def share(self, stage: int, servers: Sequence[Incarnation]) -> None:
        """One of the servers of a stage is new: it takes its share of what is under way to them."""
        if self.all_launched:
            for job in self._stealing.surplus([self._to_count(one, stage) for one in servers]):
                self._give_up(job, "a server has come that shares the work")

    def _to_count(self, one: Incarnation, stage: int) -> list[MicrobatchJob]:
        """Return what was handed to a server that its stage has not counted."""
        jobs = [job for job in self._in_flight.touched_by(one) if job.counts]
        return [job for job in jobs if stage in self._ledger.missing(job.microbatch)]

    def who_counted(self, microbatch: int) -> tuple[Incarnation, ...]:
        """Return who has a microbatch in its sum, in any stage.

        Of a check, the microbatch itself.
        """
        job = self._in_flight.job(microbatch)
        held_out = job is None or job.work is Work.EVALUATE
        return () if held_out else self._ledger.who_counted(microbatch % CHECK_BASE)

    def on_sketch(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave."""
        self._guards.on_sketch(by, stage, note)

    def to_void(self, blame: Blame, now_s: float) -> list[tuple[Incarnation, str]]:
        """Return whose incarnation must end because of what its sum holds, and why."""
        return self._guards.to_void(blame, now_s)

    def guarded(self, now_s: float) -> list[GuardReport]:
        """The sums to be voided are void: what people are to know."""
        return self._guards.set_aside(now_s)

    def report(self, gradient_norm: float, learning_rate: float) -> StepDone:
        """The step is decided: what people hear of it."""
        aside, size = self._guards.on_decision(), self._ledger.size
        return StepDone(self.number, self.loss, gradient_norm, learning_rate, size, aside)

    def evaluation(self) -> list[HeldOut]:
        """Return what people hear of the held-out batches, if there were any."""
        loss = self.held_out_loss
        return [] if loss is None else [HeldOut(self.number, loss)]

    def hopeless(self) -> str | None:
        """Return why the run cannot go on: a microbatch was refused too often, or too many set
        aside.
        """
        if self._guards.hopeless:
            return self._guards.hopeless
        job = self._in_flight.most_refused()
        if job is None or job.refusals < REFUSALS_MAX:
            return None
        where = f"microbatch {job.microbatch} of step {self.number}"
        return f"{where} failed {REFUSALS_MAX} times: {job.reason}"

    def cancellations(self) -> list[act.CancelLaunch]:
        """The attempts that were given up, so that we stop pushing them; drained by reading."""
        drained, self._given_up = self._given_up, []
        return drained

    def wait_longer(self, now_s: float) -> None:
        """Some members of the round may still answer."""
        self._fences.wait_longer(now_s)

    def average_again(self) -> None:
        """An averaging has failed: find out which members still answer, and try another."""
        self.phase = Phase.FILLING
        self._fences.probe()  # the peer that it failed with may be dead, and we not know it yet

    @property
    def fence_due(self) -> bool:
        """True if the next round is to be opened."""
        return not (self._fences.open or self._fences.idle)

    def fence(self, incarnations: list[Incarnation], now_s: float) -> tuple[FencedWork, ...]:
        """Open the next round; what to fence."""
        return self._fences.begin(incarnations, now_s)

    def launch(self, window: int, now_s: float) -> list[act.Launch]:
        """Start what the window allows."""
        launches = []
        while (job := self._in_flight.launch(window, now_s)) is not None:
            counting = self._missing(job) if job.work is Work.FORWARD else ()
            keepers = self._ledger.keepers(job.microbatch) if job.may_use_kept else ()
            what = self.number, job.microbatch, job.attempt, job.work
            launches.append(act.Launch(*what, counting, keepers))
        return launches

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when a job is late or may go again."""
        return self._in_flight.next_deadline_s(now_s)

    def _known(self, microbatch: int) -> bool:
        job = self._in_flight.job(microbatch)
        return job is not None and job.counts and not job.condemned

    def _missing(self, job: MicrobatchJob) -> tuple[int, ...]:
        """The stages that an attempt has to reach."""
        if job.counts:
            return self._ledger.missing(job.microbatch)
        return tuple(range(self._stages))

    def _finish(self, job: MicrobatchJob, now_s: float) -> None:
        """Every stage has counted a microbatch."""
        self.pace.on_completion(job.launched_s, now_s)
        self._in_flight.finish(job, now_s)
        if self._spot_checks:
            self._guards.on_completion(job.microbatch, now_s)

    def _running(self, step: int, microbatch: int, attempt: int) -> MicrobatchJob | None:
        return self._in_flight.running(microbatch, attempt) if step == self.number else None

    def _enter(
        self, microbatch: int, stage: int, incarnation: Incarnation, now_s: float
    ) -> CountResult:
        """Enter a contribution, and finish the job if it was the last one missing."""
        result = self._ledger.count(microbatch, stage, incarnation)
        job = self._in_flight.job(microbatch)
        if result is CountResult.NEW and job and self._ledger.all_counted(microbatch):
            self._finish(job, now_s)
            return CountResult.LAST
        return result

    def _failed(
        self, job: MicrobatchJob, trouble: Trouble, reason: str, by: Incarnation | None
    ) -> FailedAttempt:
        """Give up an attempt; a patient run does not count broken roads, which may be mended."""
        job.stuck = True
        if (trouble is Trouble.WORK or not self._patient) and not job.check:
            self._in_flight.refuse(job)
        missing, path = self._missing(job), tuple(job.path)
        self._give_up(job, reason)
        return FailedAttempt(self.number, job.microbatch, trouble, reason, by, path, missing)

    def _give_up(self, job: MicrobatchJob, reason: str) -> None:
        self._in_flight.give_up(job, reason)
        self._given_up.append(act.CancelLaunch(job.microbatch, job.attempt))
        self._fences.add(job)
