"""One step's microbatches: which member has counted what, what is under way, what is fenced.

Errors:  notes of another step or of attempts that are over change nothing.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from enum import Enum

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import CHECK_BASE, Counted, Evaluated, Handed, Undelivered
from p2pswarm.run.messages.step import FencedWork
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import FailedAttempt, Trouble
from p2pswarm.trainer.members.membership import AnswerLimits, Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Replayed, StepDone
from p2pswarm.trainer.step.in_flight import (
    EVALUATION_BASE,
    REFUSALS_MAX,
    AttemptTimeout,
    InFlight,
    JobPhase,
    LaunchPace,
    MicrobatchJob,
)
from p2pswarm.trainer.step.ledger import CountResult, StepLedger
from p2pswarm.trainer.step.result_checks import OPINIONS_MAX, Quarantine, ResultChecks, SpotChecks
from p2pswarm.trainer.step.stalls import StallSuspect, WorkStealing
from p2pswarm.trainer.step.sums import StepSums, mean_loss

FENCE_S = 10.0  # an event loop answers at once; a lost packet or two may come in between
FENCE_NEWCOMER_S = 3.0  # of one that has yet to prove itself: it holds little, and all wait
FENCE_MAX_S = 60.0  # of one that was slow before: a link that is full for so long carries nothing
FENCE_BATCH = 1024  # the limit of `Fence.work`


class Fences:
    """Attempts that are being given up, round by round, and who has not yet promised.

    A round may also be a probe: nothing is given up, but a member that does not answer counts as
    gone. Rounds do not overlap. While a member has not answered, no newcomer is made ready: that
    member could still push a fenced attempt to the newcomer, which was never asked. A suspended
    one, which is waited for too, cannot: it is told of no newcomers any more.
    """

    def __init__(self, limits: AnswerLimits) -> None:
        self._limits = limits
        self._newcomers: frozenset[Incarnation] = frozenset()
        """Those of the round that have less time."""
        self._next: dict[int, MicrobatchJob] = {}
        self._probe = False
        self._open: dict[int, MicrobatchJob] | None = None
        self._silent: dict[Incarnation, float] = {}
        """Time at which each member is overdue that has not answered."""
        self._absent: dict[Incarnation, None] = {}
        """Members that cannot be asked, and whose promise every round needs."""
        self._begun_s = 0.0
        self.deadline_s = math.inf
        """Time to ask which members are overdue."""

    @property
    def asking(self) -> bool:
        """True if a member that was asked in the open round has not answered."""
        return any(one not in self._absent for one in self._silent)

    @property
    def due(self) -> bool:
        """True if the next round is to be opened."""
        return self._open is None and not self.idle

    @property
    def idle(self) -> bool:
        """True if there is nothing to fence, now or next."""
        return self._open is None and not self._next and not self._probe

    @property
    def silent(self) -> list[Incarnation]:
        """The members that have not answered the round."""
        return list(self._silent)

    def unsure(self, job: MicrobatchJob) -> bool:
        """Return whether somebody may still count an attempt of it that was given up."""
        return job.microbatch in self._next or job.microbatch in (self._open or {})

    def add(self, job: MicrobatchJob) -> None:
        """Give up the running attempt of a job: it is fenced in the next round."""
        job.phase = JobPhase.FENCING
        self._next[job.microbatch] = job

    def probe(self) -> None:
        """Open the next round even if there is nothing to fence."""
        self._probe = True

    def limit_s(self, one: Incarnation) -> float:
        """Return how long a member may take to answer."""
        limit_s = self._limits.limit_s(one.peer)
        return FENCE_NEWCOMER_S if one in self._newcomers and limit_s <= FENCE_S else limit_s

    def begin(
        self,
        incarnations: list[Incarnation],
        now_s: float,
        newcomers: Iterable[Incarnation] = (),
    ) -> tuple[FencedWork, ...]:
        """Open a round over `incarnations`; returns what to tell each of them."""
        self._newcomers = frozenset(newcomers)
        self._probe = False
        self._open = dict(list(self._next.items())[:FENCE_BATCH])
        for microbatch in self._open:
            del self._next[microbatch]
        self._silent = {one: now_s + self.limit_s(one) for one in incarnations}
        self._silent |= dict.fromkeys(self._absent, math.inf)
        self._begun_s, self.deadline_s = now_s, min(self._silent.values(), default=now_s)
        return tuple(FencedWork(job.microbatch, job.attempt) for job in self._open.values())

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now."""
        return [one for one, due_s in self._silent.items() if now_s >= due_s]

    def wait_longer(self, now_s: float) -> None:
        """Give the members that are overdue and may still answer more time."""
        for one in self.overdue(now_s):
            self._silent[one] = now_s + self.limit_s(one)
        if self._open is not None:
            self.deadline_s = min(self._silent.values(), default=now_s)

    def suspend(self, incarnation: Incarnation) -> None:
        """A member cannot be asked now: wait for it, in the open round and in all that follow."""
        self._absent[incarnation] = None
        if incarnation in self._silent:
            self._silent[incarnation] = math.inf
            self.deadline_s = min(self._silent.values())

    def on_timeout(self, incarnation: Incarnation) -> None:
        """A member did not answer in time: its peer has longer the next time."""
        self._limits.on_timeout(incarnation.peer)

    def on_answer(self, incarnation: Incarnation, now_s: float) -> bool:
        """An incarnation has promised; True if it was asked."""
        asked = self.on_promise(incarnation)
        if asked:
            self._limits.on_answer(incarnation.peer, now_s - self._begun_s)
        return asked

    def on_promise(self, incarnation: Incarnation) -> bool:
        """An incarnation has promised, or has ended; True if it was asked."""
        self._absent.pop(incarnation, None)
        return self._silent.pop(incarnation, None) is not None

    def settle(self) -> list[MicrobatchJob]:
        """The jobs of a round that all members have answered; reading closes the round."""
        if self._silent or self._open is None:
            return []
        settled, self._open = self._open, None
        self.deadline_s = math.inf
        return [job for job in settled.values() if job.phase is JobPhase.FENCING]


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

    def __init__(self, number: int, config: RunConfig, secret: bytes, phase: Phase) -> None:
        """`secret`: chooses the spot checks."""
        self.phase = phase
        self._config = config
        self._stages = config.stages
        self._patient = config.on_stage_lost != "end"
        self.timeout = AttemptTimeout()
        """It learns over all steps."""
        self._fence_limits = AnswerLimits(FENCE_S, FENCE_MAX_S)
        self._quarantine = Quarantine(config.batch.microbatches)
        self._checks = SpotChecks(config, secret)
        self._spot_checks = config.spot_check_share > 0
        self.pace = LaunchPace()
        """It too."""
        self.stealing = WorkStealing(self._stages)
        """It too."""
        self._given_up: list[act.CancelLaunch] = []
        self._begin(number)

    def _begin(self, number: int) -> None:
        self.number = number
        batch = self._config.batch
        last = number >= self._config.steps
        size = 0 if last else batch.microbatches
        first = number * batch.microbatches
        self.ledger = StepLedger(first, size, self._stages)
        evaluate = batch.evaluate_every > 0 and (last or number % batch.evaluate_every == 0)
        held_out = range(batch.evaluate_microbatches if evaluate else 0)
        jobs = [MicrobatchJob(EVALUATION_BASE + i, Work.EVALUATE) for i in held_out]
        jobs += [MicrobatchJob(first + i, Work.FORWARD) for i in range(size)]
        self.in_flight = InFlight(jobs, self.timeout)
        self.sums = StepSums(number, self.ledger, self.in_flight)
        self.result_checks = ResultChecks(
            number, self.in_flight, self.ledger, self._quarantine, self._checks
        )
        self.fences = Fences(self._fence_limits)
        self.stealing.begin()
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
        return self.in_flight.finished and self.fences.idle and self.ledger.complete

    @property
    def loss(self) -> float:
        """Mean over the microbatches whose loss was told, nats per token; NaN if none was.

        A fence may tell of a microbatch that no note tells of; its loss is then unknown.
        """
        told, aside = self._losses.items(), self.result_checks.aside
        return mean_loss([loss for m, loss in told if m < EVALUATION_BASE and m not in aside])

    def never_given(self, one: Incarnation, microbatch: int) -> bool:
        """Return whether one that is not ready holds no sum here, and was handed nothing."""
        return one not in self.ledger.counting and one not in self.path(microbatch)

    def path(self, microbatch: int) -> list[Incarnation]:
        """Return whom the newest attempt of a microbatch was handed to."""
        return job.path if (job := self.in_flight.job(microbatch)) else []

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
        job = self._running(note.step, note.microbatch, note.attempt)
        if job is None:
            return
        if by is not None:
            holder = self.stealing.holder(job, by.stage)
            known = holder == by.incarnation
            if not known and (holder is not None or stage is None):
                return
            if stage is not None and stage != by.stage + 1:
                return
        if stage is not None and not note.granted:
            if by is not None:
                self.stealing.on_wait(job, by.incarnation, now_s)
        elif stage is not None:
            self.in_flight.on_handoff(job, to)
            self.stealing.on_handoff(job, stage, to, now_s, by.incarnation if by else None)
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
        job = self.in_flight.job(note.microbatch)
        if job is not None and job.attempt == note.attempt:
            self.stealing.on_gradient(job, stage, now_s)
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
        job = self.in_flight.job(note.microbatch) if note.step == self.number else None
        if job and job.work is Work.EVALUATE and job.phase is not JobPhase.DONE:
            self._losses[note.microbatch] = note.loss
            self.in_flight.finish(job, now_s)

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
        late = self.in_flight.late(now_s)
        return [self._failed(job, Trouble.LATE, reason, None) for job in late]

    def give_up_stalled(
        self, ready: Callable[[int], Sequence[Member]], now_s: float
    ) -> list[StallSuspect] | None:
        """Give up what idle servers do sooner; `ready`: those of a stage.

        Returns who may be at fault and whose sum is soon made again: in the time that the stall has
        lasted. So leaving them out costs the step as much again at most. None if nothing is given
        up.
        """
        stalled = self.stealing.stalled(self.in_flight.running, ready, now_s)
        for one in stalled:
            self._give_up(one.job, "a server had it for long, and another of its stage no work")
        holders = dict.fromkeys(one.holder for one in stalled if not one.blameless)
        suspects = self.stealing.suspects(holders, now_s)
        stages = {
            member.incarnation: stage for stage in range(self._stages) for member in ready(stage)
        }
        spared = [
            each
            for each in suspects
            if (stage := stages.get(each.one)) is not None
            and self.sums.redo_s(each.one, stage) <= each.cost_s
        ]
        return spared if stalled else None

    def on_fence_answer(
        self, incarnation: Incarnation, stage: int, counted: tuple[int, ...], now_s: float
    ) -> CountResult | None:
        """An incarnation has promised; CLASH if another has counted one of `counted` too."""
        if not self.fences.on_answer(incarnation, now_s):
            return None
        results = [self._enter(microbatch, stage, incarnation, now_s) for microbatch in counted]
        return CountResult.CLASH if CountResult.CLASH in results else None

    def suspend(self, incarnation: Incarnation) -> None:
        """An incarnation is over, and its sum is not void: fences and the step wait for it."""
        self.fences.suspend(incarnation)
        self._leave(incarnation)

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

    def end_incarnation(self, incarnation: Incarnation, now_s: float) -> int:
        """Void an incarnation: what it counted and what went through it is done again."""
        self._leave(incarnation)
        return self.void(incarnation, now_s)

    def _leave(self, incarnation: Incarnation) -> None:
        for job in self.in_flight.touched_by(incarnation):
            self._give_up(job, f"{incarnation} is gone")

    def void(self, incarnation: Incarnation, now_s: float) -> int:
        """Return what an incarnation had counted is done again; returns how much that is."""
        self.fences.on_promise(incarnation)
        voided = self.ledger.void(incarnation)
        for microbatch in voided:
            held = self.in_flight.job(microbatch)
            assert held is not None, "the ledger and the jobs are of one step"
            if held.phase is JobPhase.RUNNING:
                self._give_up(held, f"{incarnation} is gone")
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
        """One of the servers of a stage is new: it takes its share of what is under way to them."""
        if self.in_flight.all_launched:
            for job in self.stealing.surplus([self._to_count(one, stage) for one in servers]):
                self._give_up(job, "a server has come that shares the work")

    def _to_count(self, one: Incarnation, stage: int) -> list[MicrobatchJob]:
        jobs = [job for job in self.in_flight.touched_by(one) if job.counts]
        return [job for job in jobs if stage in self.ledger.missing(job.microbatch)]

    def who_counted(self, microbatch: int) -> tuple[Incarnation, ...]:
        """Return which members have a microbatch in their sums; of a check, the microbatch."""
        job = self.in_flight.job(microbatch)
        held_out = job is None or job.work is Work.EVALUATE
        return () if held_out else self.ledger.who_counted(microbatch % CHECK_BASE)

    def report(self, gradient_norm: float, learning_rate: float) -> StepDone:
        """The step is decided: what people hear of it."""
        aside, size = self._quarantine.on_decision(), self.ledger.size
        return StepDone(self.number, self.loss, gradient_norm, learning_rate, size, aside)

    def evaluation(self) -> list[HeldOut]:
        """Return the mean loss of the held-out batches, nats per token, if there were any."""
        losses = [loss for m, loss in self._losses.items() if m >= EVALUATION_BASE]
        losses += [math.nan for m in self.result_checks.aside if m >= EVALUATION_BASE]
        return [HeldOut(self.number, mean_loss(losses))] if losses else []

    def hopeless(self) -> str | None:
        """Return why the run cannot go on: one microbatch refused too often, or many set aside."""
        if self._quarantine.hopeless:
            return self._quarantine.hopeless
        job = self.in_flight.most_refused()
        if job is None or job.refusals < REFUSALS_MAX:
            return None
        where = f"microbatch {job.microbatch} of step {self.number}"
        return f"{where} failed {REFUSALS_MAX} times: {job.reason}"

    def cancellations(self) -> list[act.CancelLaunch]:
        """The attempts that were given up, so that we stop pushing them; drained by reading."""
        drained, self._given_up = self._given_up, []
        return drained

    def average_again(self) -> None:
        """An averaging has failed: find out which members still answer, and try another."""
        self.phase = Phase.FILLING
        self.fences.probe()  # the peer that it failed with may be dead, and we not know it yet

    def launch(self, window: int, now_s: float) -> list[act.Launch]:
        """Start what the window allows."""
        launches = []
        while (job := self.in_flight.launch(window, now_s)) is not None:
            counting = self._missing(job) if job.work is Work.FORWARD else ()
            keepers = self.ledger.keepers(job.microbatch) if job.may_use_kept else ()
            what = self.number, job.microbatch, job.attempt, job.work
            launches.append(act.Launch(*what, counting, keepers))
        return launches

    def _known(self, microbatch: int) -> bool:
        job = self.in_flight.job(microbatch)
        return job is not None and job.counts and not job.condemned

    def _missing(self, job: MicrobatchJob) -> tuple[int, ...]:
        """The stages that an attempt has to reach."""
        if job.counts:
            return self.ledger.missing(job.microbatch)
        return tuple(range(self._stages))

    def _finish(self, job: MicrobatchJob, now_s: float) -> None:
        self.pace.on_completion(job.launched_s, now_s)
        self.in_flight.finish(job, now_s)
        if self._spot_checks:
            self.result_checks.on_completion(job.microbatch, now_s)

    def _running(self, step: int, microbatch: int, attempt: int) -> MicrobatchJob | None:
        return self.in_flight.running(microbatch, attempt) if step == self.number else None

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
        self._give_up(job, reason)
        return FailedAttempt(self.number, job.microbatch, trouble, reason, by, path, missing)

    def _give_up(self, job: MicrobatchJob, reason: str) -> None:
        self.in_flight.give_up(job, reason)
        self._given_up.append(act.CancelLaunch(job.microbatch, job.attempt))
        self.fences.add(job)
