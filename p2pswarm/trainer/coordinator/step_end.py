"""The end of a step: its reduction, attempt by attempt, the decision, and the commit.

Source:  docs/reduction.md, "The end of a step".
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from p2pswarm.run.chain.chain import CodecTable
from p2pswarm.run.chain.record import Contributor, StageCommit
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.step import Committed, Reduced
from p2pswarm.run.schedule import learning_rate
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance_reports import BalanceReport, OrderedMove
from p2pswarm.trainer.balance.move_preparation import StageDecided
from p2pswarm.trainer.coordinator.changes import Change, Effects
from p2pswarm.trainer.coordinator.incarnations import NO_GRADIENT, Incarnations, MemberRecords
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports.actions import Decide
from p2pswarm.trainer.reports.reports import AveragingSlow, DigestsTied, RunFinished
from p2pswarm.trainer.step.reduction import (
    Decided,
    Disagreed,
    EndsDiffer,
    NotFinite,
    Reduction,
    Reductions,
)
from p2pswarm.trainer.step.stage_digests import OTHER_GRADIENT, as_recorded
from p2pswarm.trainer.step.step import Phase, Step


def to_decide(
    step: Step, reduction: Reduction, decided: Decided, rate: float, codecs: CodecTable
) -> Decide:
    """Return what the voters are asked to accept; `codecs`: of a later step."""
    stages = []
    for stage, gradient in sorted(reduction.gradients.items()):
        group = reduction.group(stage)
        members = tuple(Contributor(one.peer, one.number) for one in group)
        state = as_recorded(decided.states.get(stage, b""))
        holders = step.ledger.holders(stage, group)
        targets = step.losses.targets if stage + 1 == len(codecs) else None
        digests = state, as_recorded(gradient)
        stages.append(StageCommit(members, holders, *digests, codecs[stage], targets))
    loss = None if math.isnan(step.loss) else step.loss
    norm, generation = decided.gradient_norm, reduction.generation
    return Decide(step.number, generation, decided.scale, rate, loss, norm, tuple(stages))


HOLDS_UP = "its stage does not average: does it without this server?"
MAY_HAVE_SPOILED = "its stage's gradient is not finite: is it without this server?"
APART = "nothing passes between it and another of its stage, as both say"


class StepEnd:
    """Closes a step once every stage has counted all of it, and begins the next."""

    def __init__(
        self,
        config: RunConfig,
        run: bytes,
        members: Membership,
        step: Step,
        reductions: Reductions,
        records: MemberRecords,
        incarnations: Incarnations,
    ) -> None:
        self._config = config
        self._run = run
        self._members = members
        self._step = step
        self._reductions = reductions
        self._incarnations = incarnations
        self._admission = records.admission
        self._blame = records.blame
        self._balance = records.balance
        self._pairs = records.pairs
        self._probation = records.probation
        self._codecs = records.codecs
        self._deciding: tuple[Reduction, Decided] | None = None

    def on_reduction(
        self, by: Incarnation, generation: int, answer: Reduced, now_s: float
    ) -> Effects:
        """A member holds its stage's reduced gradient."""
        effects = Effects(changes=Change.STATES)
        reduction = self._reductions.current(generation)
        if reduction is None or self._step.phase is not Phase.REDUCING:
            return effects
        if reduction.sound(by, answer):
            self._admission.on_state(by, self._step.number, answer.state)
            reduction.on_answer(by, answer)
        elif reduction.awaits(by):
            effects = self._incarnations.evict(by, NO_GRADIENT, now_s)
        return effects + self.judge(now_s) + Effects(changes=Change.STATES)

    def on_reduction_failure(
        self, by: Incarnation, generation: int, reason: str, now_s: float, beside: bytes | None
    ) -> Effects | None:
        """A member could not finish the reduction; None if nobody waits for that."""
        self._blame.on_unreachable(by, beside, now_s)
        reduction = self._reductions.current(generation)
        if reduction is None or not reduction.awaits(by):
            return None  # over, or a newcomer that only receives: it will fetch the weights instead
        failures = self._blame.on_averaging_failure(by, reason, now_s)
        effects = Effects([*failures], Change.BLAME | Change.PHASE)
        blamed = self._reductions.on_failure()
        self._step.average_again()
        if blamed:
            out = self._blame.leaver(by, beside, self._step.ledger.bitmap, now_s)
            if out is not None:
                effects += self._incarnations.evict(out, f"it could not average: {reason}", now_s)
        return effects

    def on_decision(self, step: int, now_s: float) -> Effects:
        """The voters have accepted the record of a step: it is committed, whoever dies."""
        deciding = self._deciding
        if deciding is None or step != self._step.number or self._step.phase is not Phase.DECIDING:
            return Effects()
        return self._commit(*deciding, now_s)

    def on_commit_answer(
        self, by: Incarnation, step: int, answer: Committed, now_s: float
    ) -> Effects:
        """A member has applied a commit, or keeps it while it still lacks its weights."""
        effects = Effects(changes=Change.STATES)
        if reason := self._admission.on_commit_answer(by, step, answer, now_s):
            effects += self._incarnations.evict(by, reason, now_s)
        return effects

    def on_commit_failure(self, by: Incarnation, step: int, reason: str, now_s: float) -> Effects:
        """A member did not apply a commit; a newcomer may skip some."""
        effects = Effects(changes=Change.STATES)
        if self._members.alive(by) and self._admission.commits.on_failure(by, step):
            effects += self._incarnations.evict(by, f"it did not commit: {reason}", now_s)
        return effects

    def reduce(self, now_s: float) -> Effects:
        """Every stage has counted all of the step: average the sums."""
        step = self._step
        step.phase = Phase.REDUCING
        groups = [self._members.group(stage) for stage in range(self._config.stages)]
        proven = self._probation.proven
        new = any(not proven(one.incarnation.peer) for each in groups for one in each.members)
        limit = self._reductions.limit
        limit_s = limit.newcomer_s if new else limit.seconds
        optimizer, movers = self._config.optimizer, self._balance.movers(step.number)
        reduction = self._reductions.begin(step.number, groups, optimizer, now_s, movers, limit_s)
        for one, stage in reduction.stages.items():
            self._admission.digests.expect(stage, step.number, [one])
        return Effects([*reduction.orders(self._run, step.ledger.bitmap, limit_s)], Change.PHASE)

    def end_unreachable(self, now_s: float) -> Effects:
        """End one of each two members that cannot average, once their stage has counted all.

        A stage whose members have all answered has averaged, whatever has become of its roads.
        """
        effects = Effects()
        if not self._pairs.any or self._step.number >= self._config.steps:
            return effects
        reduction, ledger = self._reductions.reduction, self._step.ledger
        leave = [
            one
            for stage in range(self._config.stages)
            if reduction is None or any(map(reduction.awaits, reduction.group(stage)))
            if ledger.stage_counted(stage)
            for one in self._pairs.leavers(stage, ledger.counted_by_one)
        ]
        for one in leave:
            self._blame.servers.avoid(one.peer, now_s)
            effects += self._incarnations.evict(one, APART, now_s)
        return effects

    def on_deadline(self, now_s: float) -> Effects:
        """Wait no longer for a word about weights, nor for an averaging that takes too long."""
        effects = Effects()
        digests = self._admission.digests
        if self._step.phase is Phase.REDUCING and digests.next_deadline_s() is not None:
            digests.settle(now_s)
            effects.changes |= Change.STATES
            effects += self.judge(now_s)
        if self._reductions.overdue(now_s):
            effects += self._average_later(now_s)
        return effects

    def judge(self, now_s: float) -> Effects:
        """Act on the reduction if it is decided, and all computed the step with one state."""
        effects = self._incarnations.end_misfits(now_s)
        reduction, digests = self._reductions.reduction, self._admission.digests
        if reduction is None or digests.disputed() or digests.next_deadline_s() is not None:
            return effects
        match reduction.verdict(self._step.losses.tokens_per_target):
            case Disagreed(incarnations, tied):
                made = self._step.number + 1
                effects.actions += [DigestsTied(stage, made) for stage in tied]
                for one in incarnations:
                    effects += self._incarnations.evict_and_blame(one, OTHER_GRADIENT, now_s)
            case EndsDiffer((first, last)):
                effects += self.finish(
                    f"the tied tensor of stages {first} and {last} is not the same at step "
                    f"{self._step.number}: the memory of a server is damaged; go on from the "
                    "newest checkpoint with --resume, and leave out a server that is alone in its "
                    "stage",
                    failed=True,
                )
            case NotFinite(stage):
                left_out = self._leave_out(reduction.group(stage), MAY_HAVE_SPOILED, now_s)
                reason = f"the gradient of step {self._step.number} is not finite in stage {stage}"
                effects += left_out or self.finish(
                    f"{reason}: lower the learning rate", failed=True
                )
            case Decided() as decided:
                effects += self._decide(reduction, decided, now_s)
        return effects

    def _suspicious(self, group: Sequence[Incarnation]) -> bool:
        known = self._blame.averaging.known(group, self._probation.proven)
        return known and self._reductions.limit.measured

    def _average_without(self, groups: Sequence[Sequence[Incarnation]], now_s: float) -> Effects:
        """Average anew without the member of each group that is trusted least."""
        self._reductions.drop()
        self._step.average_again()
        effects = Effects(changes=Change.PHASE)
        for group in groups:
            effects += self._leave_out(group, HOLDS_UP, now_s) or Effects()
        return effects

    def _leave_out(self, group: Sequence[Incarnation], why: str, now_s: float) -> Effects | None:
        """Leave out a member that may have spoiled an averaging; None if it was none of them."""
        member = self._members.alive(group[0])
        stage = -1 if member is None else member.stage
        suspect = self._blame.averaging.next(stage, group, self._probation.proven)
        if suspect is None:
            return None
        for peer in self._blame.averaging.cleared(stage):
            self._blame.servers.pardon(peer)
        self._blame.servers.avoid(suspect.peer, now_s)
        ended = self._incarnations.evict_dead(suspect, why, now_s)
        return ended + Effects(changes=Change.BLAME)

    def finish(self, reason: str, *, failed: bool) -> Effects:
        """The run is over."""
        if self._step.phase is Phase.ENDED:
            return Effects()
        self._step.phase = Phase.ENDED
        return Effects([RunFinished(reason, failed)], Change.PHASE)

    def _average_later(self, now_s: float) -> Effects:
        """Average anew, with more time, or without a member that may have held it up."""
        held_up = self._reductions.silent_groups()
        if suspected := [each for each in held_up if self._suspicious(each)]:
            return self._average_without(suspected, now_s)
        took_s = self._reductions.limit.seconds
        again = self._reductions.retries_left
        blamed = self._reductions.give_up()
        limit_s = self._reductions.limit.seconds
        slow = AveragingSlow(self._step.number, took_s, limit_s)
        effects = Effects([slow], Change.PHASE)
        self._step.average_again()
        for one in blamed:
            reason = "it did not finish averaging in time"
            effects += self._incarnations.evict(one, reason, now_s)
        if not again and not blamed:
            for group in held_up:
                effects += self._leave_out(group, HOLDS_UP, now_s) or Effects()
        return effects

    def _decide(self, reduction: Reduction, decided: Decided, now_s: float) -> Effects:
        """Ask the voters: whoever is lost meanwhile, all others hold what is decided."""
        step = self._step
        step.phase = Phase.DECIDING
        self._deciding = reduction, decided
        self._reductions.on_decision(now_s)
        suspects = self._blame.on_averaging(reduction.stages, step.who_counted)
        effects = Effects([*suspects], Change.PHASE)
        if self._blame.averaging.trials:
            for peer in self._blame.averaging.on_decision():
                self._blame.servers.pardon(peer)
        if self._blame.servers.pardoned():
            effects.changes |= Change.BLAME
        if self._pairs.stayed:
            self._pairs.on_averaging(one.peer for one in reduction.stages)
        self._probation.prove(one.peer for one in reduction.stages)
        rate = learning_rate(self._config, step.number)
        codecs: CodecTable = (b"",) * self._config.stages
        if self._codecs is not None:
            codecs = self._codecs.on_step_end(step.number, self._balance.server_rates())
        effects.actions.append(to_decide(step, reduction, decided, rate, codecs))
        return effects

    def _commit(self, reduction: Reduction, decided: Decided, now_s: float) -> Effects:
        """Tell all that have the gradient, and begin the next step."""
        step, done = self._step, self._step.number
        rate = learning_rate(self._config, done)
        agreement = self._admission.digests.agreement(done)
        chosen = [] if self._codecs is None else self._codecs.on_decision(done)
        commits = self._admission.on_decision(done, reduction, decided, rate, now_s)
        effects = Effects([*commits], Change.PHASE | Change.STATES)
        had = {
            stage: StageDecided(decided.states.get(stage, b""), gradient)
            for stage, gradient in reduction.gradients.items()
        }
        self._deciding = None
        ready, ledger = self._members.ready(), step.ledger
        counts = {m.incarnation: ledger.counted_by_one(m.incarnation) for m in ready}
        self._balance.on_counts(counts, ledger.size)
        effects.actions += chosen
        effects.actions += step.evaluation()
        told = replace(
            step.report(decided.gradient_norm, rate),
            counted=tuple(counts.items()),
            equal=agreement.equal,
            compared=agreement.compared,
        )
        effects.actions.append(told)
        step.begin_next()
        self._incarnations.begin_step()
        if step.number < self._config.steps:
            effects += self._rebalance(done, had, now_s)
        return effects

    def _rebalance(self, done: int, had: Mapping[int, StageDecided], now_s: float) -> Effects:
        """Send servers to other stages: right after a commit their sums are empty."""
        servers, step = self._blame.servers, self._step.number
        effects = self._send_on(self._balance.on_commit(done, had, now_s), now_s)
        asked = self._balance.order_moves(step, lambda peer: servers.avoided(peer, now_s), now_s)
        return effects + self._send_on(asked, now_s)

    def _send_on(self, reports: Sequence[BalanceReport], now_s: float) -> Effects:
        """End the sessions of those that are sent to another stage."""
        effects = Effects([*reports])
        for move in reports:
            if isinstance(move, OrderedMove):
                effects += self._incarnations.evict(move.incarnation, move.reason, now_s)
        return effects
