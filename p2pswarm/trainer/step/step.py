"""The step in progress, and with a delay the next beside it.

Errors:  notes of another step change nothing.
"""

from collections.abc import Callable, Mapping, Sequence
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
from p2pswarm.trainer.members.blame import FailedAttempt
from p2pswarm.trainer.members.membership import AnswerLimits, Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import StepDone
from p2pswarm.trainer.step.in_flight import (
    FENCE_MAX_S,
    FENCE_S,
    AttemptTimeout,
    LaunchPace,
    MicrobatchJob,
)
from p2pswarm.trainer.step.ledger import CountResult
from p2pswarm.trainer.step.losses import StepLosses
from p2pswarm.trainer.step.result_checks import Quarantine, SpotChecks
from p2pswarm.trainer.step.stalls import HeldMicrobatch, StallSuspect, WorkStealing
from p2pswarm.trainer.step.step_batch import StepBatch, StepLearning
from p2pswarm.trainer.step.step_times import NO_JOURNEY, LastJourney
from p2pswarm.trainer.step.sums import SumsUnderWay


class Phase(Enum):
    """The phases of a run."""

    GATHERING = "waiting for servers"
    FILLING = "microbatches are on their way"
    REDUCING = "the step's gradients are being averaged"
    DECIDING = "all hold the gradient, and the voters are asked"
    ENDED = "over"


class Step:
    """The step in progress, from its first launch until its commit; then it is the next one.

    After the last step comes one without microbatches: only the evaluation is left. With a delay
    the next step, `ahead`, is filled beside the end of this one: the weights that it is computed
    with are here (docs/delay.md).
    """

    def __init__(
        self,
        number: int,
        config: RunConfig,
        secret: bytes,
        phase: Phase,
        references: Sequence[int] = (),
    ) -> None:
        """`secret`: chooses the spot checks; `references`: see `StepBatch`."""
        self.phase = phase
        self._config = config
        self.timeout, self.pace = AttemptTimeout(), LaunchPace()  # they learn over all steps
        self.stealing = WorkStealing(config.stages)
        self._quarantine = Quarantine(config.batch.microbatches)
        self._learned = StepLearning(
            self.timeout,
            self.pace,
            self.stealing,
            AnswerLimits(FENCE_S, FENCE_MAX_S),
            self._quarantine,
            SpotChecks(config, secret),
        )
        first = StepBatch(number, config, self._learned, evaluates=True, references=references)
        self._begin(first)

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
        """See `StepBatch`."""
        return self._closing.complete

    @property
    def losses(self) -> StepLosses:
        """Of this step."""
        return self._closing.losses

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

    def to_count(self) -> list[act.CountTargets]:
        """What our text is to be asked, if rows say which tokens are targets."""
        return [asked for batch in self.batches for asked in batch.losses.to_count()]

    def on_targets(self, step: int, targets: Mapping[int, int]) -> None:
        """Our text has so many targets in these microbatches."""
        if batch := self._of(step):
            batch.losses.on_targets(targets)

    def on_sketch(self, by: Incarnation, stage: int, note: Sketch) -> None:
        """A server tells what it took and gave, in a run with spot checks."""
        if batch := self._of(note.step):
            batch.result_checks.on_sketch(by, stage, note)

    def on_evaluation(self, note: Evaluated, now_s: float) -> list[act.KeepReferences]:
        """The last stage has the loss of a held-out batch, or the references of answers."""
        return self._closing.on_evaluation(note, now_s) if note.step == self.number else []

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
        """See `StepBatch`."""
        return self._closing.evaluation()

    def last_journey(self) -> LastJourney:
        """Return the way of the microbatch of this step that was counted last."""
        if (last := self._closing.last) is None:
            return NO_JOURNEY
        microbatch, launched_s = last
        return LastJourney(launched_s, self.stealing.journey(microbatch))

    def under_way(self, now_s: float) -> list[HeldMicrobatch]:
        """Return who has which microbatches, those first that have had them longest."""
        return self.stealing.under_way(self._running, now_s)

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
            if batch.scores or not batch.in_flight.all_launched:
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
