"""The end of a step: its reduction, generation by generation, the decision, and the commit.

Units:   `now_s` seconds on the caller's clock.
Errors:  none; a member that breaks the protocol is evicted with the reason.
Source:  docs/training.md, "The end of a step".
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from p2pswarm.run.messages.step import Committed, Reduced
from p2pswarm.run.schedule import learning_rate
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.balance.balance_reports import (
    BalanceReport,
    OrderedMove,
)
from p2pswarm.trainer.balance.move_preparation import StageDecided
from p2pswarm.trainer.coordinator.admission import Admission
from p2pswarm.trainer.coordinator.decision import to_decide
from p2pswarm.trainer.coordinator.step_notes import StepNotes
from p2pswarm.trainer.members.unreachable_pairs import UnreachablePairs
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.phase import Phase
from p2pswarm.trainer.step.averaging_attempts import (
    AveragingAttempts,
    Decided,
    Disagreed,
    EndsDiffer,
    NotFinite,
    Reduction,
)
from p2pswarm.trainer.step.stage_digests import OTHER_GRADIENT
from p2pswarm.trainer.step.sums import FormerSums, Suspensions


class StepEnd(StepNotes):
    """The part of the coordinator that closes a step and begins the next."""

    admission: Admission
    _apart: UnreachablePairs
    _run: bytes
    _phase: Phase
    _generations: AveragingAttempts
    _suspensions: Suspensions
    _former_sums: FormerSums
    _deciding: tuple[Reduction, Decided] | None

    @property
    def step(self) -> int:
        """The step in progress; equal to the number of steps while the last evaluation runs."""
        return self._step.number

    def reduced(self, by: Incarnation, generation: int, answer: Reduced, now_s: float) -> None:
        """A member holds its stage's reduced gradient."""
        reduction = self._generations.current(generation)
        if reduction is not None and self._phase is Phase.REDUCING:
            if reduction.sound(by, answer):
                self.admission.computed_with(by, self.step, answer.state)
                reduction.reduced(by, answer)
            elif reduction.awaits(by):
                self._evict(
                    by, "it answered a reduction with what no gradient of its stage can have", now_s
                )
            self._judge(now_s)
        self._advance(now_s)

    def reduce_failed(
        self,
        by: Incarnation,
        generation: int,
        reason: str,
        now_s: float,
        beside: bytes | None = None,
    ) -> None:
        """A member could not finish the reduction; it may not be its fault.

        `beside`: the other peer, if it says that nothing passes between the two.
        """
        self._blame.apart(by, beside, now_s)
        reduction = self._generations.current(generation)
        if reduction is None or not reduction.awaits(by):
            return  # over, or a newcomer that only receives: it will fetch the weights instead
        self._actions += self._blame.averaging_failed(by, reason, now_s)
        blamed = self._generations.failed()
        self._average_again()
        if blamed:
            out = self._blame.leaves(by, beside, self._step.bitmap, now_s)
            if out is not None:
                self._evict(out, f"it could not average: {reason}", now_s)
        self._advance(now_s)

    def decided(self, step: int, now_s: float) -> None:
        """The voters have accepted the record of a step: it is committed, whoever dies."""
        if self._deciding is not None and step == self.step and self._phase is Phase.DECIDING:
            self._commit(*self._deciding, now_s)
        self._advance(now_s)

    def committed(self, by: Incarnation, step: int, answer: Committed, now_s: float) -> None:
        """A member has applied a commit, or keeps it while it still lacks its weights."""
        if reason := self.admission.committed(by, step, answer, now_s):
            self._evict(by, reason, now_s)
        self._advance(now_s)

    def commit_failed(self, by: Incarnation, step: int, reason: str, now_s: float) -> None:
        """A member did not apply a commit; a newcomer may skip some."""
        if self.members.alive(by) and self.admission.commits.failed(by, step):
            self._evict(by, f"it did not commit: {reason}", now_s)
        self._advance(now_s)

    def _reduce(self, now_s: float) -> None:
        self._phase = Phase.REDUCING
        groups = [self.members.group(stage) for stage in range(self._config.stages)]
        limit_s = self._generations.limit.seconds
        optimizer, movers = self._config.optimizer, self._balance.movers(self.step)
        reduction = self._generations.begin(self.step, groups, optimizer, now_s, movers)
        self.admission.reducing(self.step, reduction.stages)
        self._actions += reduction.orders(self._run, self._step.bitmap, limit_s)

    def _average_again(self) -> None:
        """A reduction has failed: another generation follows."""
        self._phase = Phase.FILLING
        self._step.probe()  # the peer that it failed with may be dead, and we not know it yet

    def _average_later(self, now_s: float) -> None:
        """A reduction takes too long: give the next one more time."""
        took_s = self._generations.limit.seconds
        blamed = self._generations.give_up()
        limit_s = self._generations.limit.seconds
        self._actions.append(act.AveragingSlow(self.step, took_s, limit_s))
        self._average_again()
        for incarnation in blamed:
            self._evict(incarnation, "it did not finish averaging in time", now_s)

    def _settle_states(self, now_s: float) -> None:
        """While averaging, wait no longer for the word of those who should have come back."""
        if self._phase is Phase.REDUCING and self.admission.recalls():
            self.admission.settle(now_s)
            self._judge(now_s)

    def _judge(self, now_s: float) -> None:
        """Act on the reduction if it is decided, and all computed the step with one state."""
        self._end_misfits(now_s)
        reduction = self._generations.reduction
        if reduction is None or self.admission.disputed() or self.admission.recalls():
            return
        match reduction.verdict():
            case Disagreed(incarnations, tied):
                self._actions += [act.DigestsTied(stage, self.step + 1) for stage in tied]
                for incarnation in incarnations:
                    self._evict_and_blame(incarnation, OTHER_GRADIENT, now_s)
            case EndsDiffer((first, last)):
                self._finish(
                    f"the tied tensor of stages {first} and {last} is not the same at step "
                    f"{self.step}: the memory of a server is damaged; go on from the newest "
                    "checkpoint with --resume, and leave out a server that is alone in its stage",
                    failed=True,
                )
            case NotFinite(stage):
                reason = f"the gradient of step {self.step} is not finite in stage {stage}"
                self._finish(f"{reason}: lower the learning rate", failed=True)
            case Decided() as decided:
                self._decide(reduction, decided, now_s)

    def _decide(self, reduction: Reduction, decided: Decided, now_s: float) -> None:
        """Ask the voters: whoever is lost meanwhile, all others hold what is decided."""
        self._phase = Phase.DECIDING
        self._deciding = reduction, decided
        self._generations.decided(now_s)
        self._actions += self._blame.averaged(reduction.stages, self._step.who_counted)
        self._apart.averaged(one.peer for one in reduction.stages)
        rate = learning_rate(self._config, self.step)
        self._actions.append(to_decide(self._step, reduction, decided, rate))

    def _commit(self, reduction: Reduction, decided: Decided, now_s: float) -> None:
        """Tell all that have the gradient, and begin the next step."""
        rate = learning_rate(self._config, self.step)
        self._actions += self.admission.decided(self.step, reduction, decided, rate, now_s)
        had = {
            stage: StageDecided(decided.states.get(stage, b""), gradient)
            for stage, gradient in reduction.gradients.items()
        }
        self._deciding = None
        self._actions += self._step.evaluation()
        self._actions.append(self._step.done(decided.gradient_norm, rate))
        self._phase = Phase.FILLING
        self._step = self._step.following()
        self._suspensions.next_step()
        self._former_sums.next_step()
        if self.step < self._config.steps:
            self._rebalance(had, now_s)

    def _evict_and_blame(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        self._actions += self._blame.averaging_failed(incarnation, reason, now_s)
        self._evict(incarnation, reason, now_s)

    def _rebalance(self, had: Mapping[int, StageDecided], now_s: float) -> None:
        """Send servers to other stages: right after a commit their sums are empty."""
        servers = self._blame.servers
        self._send_on(self._balance.changes(self.step - 1, had, now_s), now_s)
        asked = self._balance.after_commit(
            self.step, lambda peer: servers.avoided(peer, now_s), now_s
        )
        self._send_on(asked, now_s)

    def _send_on(self, reports: Sequence[BalanceReport], now_s: float) -> None:
        """End the sessions of those that are sent to another stage."""
        self._actions += reports
        for move in reports:
            if isinstance(move, OrderedMove):
                self._evict(move.incarnation, move.reason, now_s)

    @abstractmethod
    def _end_misfits(self, now_s: float) -> None:
        """Evict the members that fail all the time, or hold other weights than most of a stage."""

    @abstractmethod
    def _finish(self, reason: str, *, failed: bool) -> None:
        """The run is over."""
