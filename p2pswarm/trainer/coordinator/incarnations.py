"""The beginning and the end of every incarnation, and what becomes of its sum.

Source:  docs/recovery.md, "A sum that outlives its link", "A sum that outlives its coordinator".
"""

from dataclasses import dataclass

from p2pswarm.progress.events import Departure
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import Assigned, HeldSum, Join
from p2pswarm.run.messages.microbatch import Counted
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance import Balance
from p2pswarm.trainer.balance.codec_choice import CodecTables
from p2pswarm.trainer.balance.stage_coverage import StageCoverage
from p2pswarm.trainer.coordinator.admission import Admission, NewlyReady
from p2pswarm.trainer.coordinator.changes import Change, Effects
from p2pswarm.trainer.coordinator.silence import Silence
from p2pswarm.trainer.members.blame import Blame
from p2pswarm.trainer.members.membership import Member, Membership
from p2pswarm.trainer.members.probation import Probation
from p2pswarm.trainer.members.unreachable_pairs import UnreachablePairs
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MOVES, MemberLost, SumKept, SumVoided
from p2pswarm.trainer.step.reduction import Reductions
from p2pswarm.trainer.step.result_checks import BROKEN_WAY, CONTRADICTS, UNTOLD, sums_to_void
from p2pswarm.trainer.step.stage_digests import OTHER_GRADIENT, OTHER_WEIGHTS
from p2pswarm.trainer.step.step import Phase, Step
from p2pswarm.trainer.step.sums import FormerSums, Suspensions

CLASH = "it counted a microbatch that another had counted"
NEVER_GIVEN = "it says that it counted a microbatch, and was given none"
UNFENCED = "it did not answer a fence"
WITHOUT_ITS_SUM = "it has joined without the sum that it had"
SILENT = "it is silent, and the step waits for it"
NO_GRADIENT = "it answered a reduction with what no gradient of its stage can have"
WRONG = frozenset(
    {
        *(CLASH, NEVER_GIVEN, NO_GRADIENT, OTHER_GRADIENT, OTHER_WEIGHTS),
        *(BROKEN_WAY, CONTRADICTS, UNTOLD),
    }
)
"""Why those are put out that computed, or said, what no honest server does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecords:
    """All that knows something of a member: each is told when an incarnation is over."""

    admission: Admission
    silence: Silence
    blame: Blame
    pairs: UnreachablePairs
    coverage: StageCoverage
    balance: Balance
    probation: Probation
    codecs: CodecTables | None
    """None: they are the manifest's."""


def departure(reason: str, *, leaves: bool, silent: bool) -> Departure:
    """Return why a member is gone, as programs tell it; `reason`: as people are told."""
    if reason.startswith(MOVES):
        return Departure.MOVED
    if reason in WRONG:
        return Departure.WRONG
    if leaves:
        return Departure.ASKED
    late = silent or reason in (UNFENCED, SILENT) or reason.endswith(" in time")
    return Departure.SILENT if late else Departure.LOST


class Incarnations:
    """The incarnations of a run, each from its `Join` to the end of its stream, and their sums.

    A sum outlives its incarnation if its server is back with it at once, or if it was counted
    under a former coordinator and nothing of it was launched since.
    """

    def __init__(
        self,
        config: RunConfig,
        members: Membership,
        step: Step,
        reductions: Reductions,
        records: MemberRecords,
        suspensions: Suspensions,
        former_sums: FormerSums,
    ) -> None:
        """`reductions`: an averaging that loses a member begins anew."""
        self._config = config
        self._members = members
        self._step = step
        self._reductions = reductions
        self._records = records
        self._admission = records.admission
        self._blame = records.blame
        self._balance = records.balance
        self._suspensions = suspensions
        self._former_sums = former_sums
        self._sums_outlive = not config.spot_check_share
        """Whether sums outlive the incarnations that counted them."""

    def on_join(self, peer: bytes, join: Join, now_s: float) -> Effects:
        """A server opened its stream; answered by `Assign`, after the step if it is reducing."""
        effects = Effects()
        if former := self._members.of_peer(peer):
            effects = self._end(former.incarnation, "it joined anew", now_s, returns=True)
        if self._former_sums.on_join(peer, join, now_s):
            effects.changes |= Change.SUMS
        if self._step.phase in (Phase.REDUCING, Phase.DECIDING):
            self._admission.newcomers.parked[peer] = join
        else:
            self._admit(peer, join, effects, now_s)
        return effects

    def on_stream_end(
        self, one: Incarnation, reason: str, now_s: float, *, returns: bool
    ) -> Effects:
        """A member's stream ended; `returns`: it may be back in a moment, with its sum."""
        member = self._members.alive(one)
        if member is None:
            return Effects()
        if member.ready and one not in self._members.leaving:
            self._on_death(one, now_s)
        ended = self._end(one, reason, now_s, returns=returns, leaves=not returns)
        return Effects([act.Evict(one, reason)]) + ended

    def on_probe_answer(self, one: Incarnation, reason: str | None, now_s: float) -> Effects | None:
        """A server was dialled; `reason`: why it is not there. None if nobody waits for it."""
        if one not in self._suspensions:
            return None
        if reason is None:
            self._suspensions.on_probe_answer(one)
            return Effects(changes=Change.SUMS)
        return self._void(one, f"it is not there any more: {reason}", now_s)

    def holder_missing(self) -> bool:
        """Return whether a part of a step is in a suspended sum, or at a server that waits."""
        holders = map(self._members.alive, self._step.counting)
        return any(member is None or not member.ready for member in holders)

    def evict(self, one: Incarnation, reason: str, now_s: float) -> Effects:
        """End an incarnation, if it is alive; void its sum, if that is suspended."""
        if self._members.alive(one):
            return Effects([act.Evict(one, reason)]) + self._end(one, reason, now_s)
        return self._void(one, reason, now_s) if one in self._suspensions else Effects()

    def evict_dead(self, one: Incarnation, reason: str, now_s: float) -> Effects:
        """End an incarnation from which nothing comes any more."""
        self._on_death(one, now_s)
        return self.evict(one, reason, now_s)

    def evict_and_blame(self, one: Incarnation, reason: str, now_s: float) -> Effects:
        """End an incarnation that has spoiled an averaging."""
        failures = self._blame.on_averaging_failure(one, reason, now_s)
        return Effects([*failures], Change.BLAME) + self.evict(one, reason, now_s)

    def end_clash(self, by: Incarnation, stage: int, note: Counted, now_s: float) -> Effects:
        """End one of two that have counted a microbatch: the one that it was not handed to.

        Whoever lies could else have all others put out, by being the first to say so.
        """
        path = self._step.path(note.microbatch)
        holder = self._step.holder(note.microbatch, stage)
        false = holder if holder is not None and by in path and holder not in path else by
        handed = false in path
        ended = self.evict(false, CLASH, now_s) if handed else self.end_false(false, CLASH, now_s)
        effects = Effects(changes=Change.WORK) + ended
        if false != by:
            self._step.on_count(by, stage, note, now_s)
        return effects

    def end_false(self, one: Incarnation, why: str, now_s: float) -> Effects:
        """End a member that says what no honest one does; it gets no work for a while."""
        found = self._blame.on_breach(one, why, now_s)
        return Effects([*found], Change.BLAME) + self.evict(one, why, now_s)

    def end_unfenced(self, now_s: float) -> Effects:
        """Evict the members that have not answered a fence, unless they may come back.

        One that says a word each half second, and does not answer, has no slow road. If others can
        do its work, it has no longer the next time, and gets none for a while.
        """
        effects = Effects()
        for fences in [batch.fences for batch in self._step.batches]:
            for one in fences.overdue(now_s):
                if not self._records.silence.may_come_back(one, now_s):
                    speaks = self._records.silence.speaks(one, now_s)
                    cost_s = fences.limit_s(one)
                    found = self._blame.on_breach(one, UNFENCED, now_s, cost_s) if speaks else []
                    if not found:
                        fences.on_timeout(one)
                    effects += Effects([*found], Change.BLAME)
                    effects += self.evict_dead(one, UNFENCED, now_s)
            fences.wait_longer(now_s)
        return effects

    def set_aside(self, now_s: float) -> Effects:
        """End those whose sums hold what must not be counted; set that aside."""
        effects = Effects()
        checks = [batch.result_checks for batch in self._step.batches]
        for one, why in sums_to_void(checks, self._blame, now_s):
            effects += self.evict(one, why, now_s)
            effects.changes |= Change.BLAME
        for each in checks:
            if guarded := each.set_aside(now_s):
                effects.actions += guarded
                effects.changes |= Change.WORK
        return effects

    def end_misfits(self, now_s: float) -> Effects:
        """Evict the members that fail all the time, or hold other weights than their stage."""
        effects = Effects()
        for one, reason in self._blame.to_end():
            effects += self.evict(one, reason, now_s)
        effects.actions += self._admission.tied()
        differing = self._admission.digests.differing()
        outvoted = self._admission.digests.outvoted()
        for one in differing:
            effects += self.void_step(one, now_s, sure=one.peer in outvoted)
        return effects

    def void_step(self, wrong: Incarnation, now_s: float, *, sure: bool) -> Effects:
        """Drop all sums of the step: what a member gave is in them, even if it is gone by now.

        `sure`: it is this member that is wrong, and not the other one of two.
        """
        member = self._members.alive(wrong)
        served = member is None or member.ready or self._served(wrong)
        effects = Effects()
        if sure and served:
            found = self._blame.on_wrong_state(wrong, OTHER_WEIGHTS, now_s)
            effects += Effects([*found], Change.BLAME)
        effects += self.evict_and_blame(wrong, OTHER_WEIGHTS, now_s)
        if self._step.number < self._config.steps and served:
            # all come back, with the weights they have
            everybody = [other.incarnation for other in self._members.ready()]
            for other in everybody + self._step.counting:
                reason = f"step {self._step.number} is done again"
                effects += self.evict(other, reason, now_s)
        return effects

    def void_late(self, now_s: float) -> Effects:
        """Void the suspended sums whose servers did not come back in time."""
        effects = Effects()
        for one in self._suspensions.overdue(now_s):
            effects += self._void(one, "it did not come back in time", now_s)
        return effects

    def watch_suspended(self, now_s: float) -> None:
        """Let the time of a suspended sum run while another server could do its work."""
        self._suspensions.watch(lambda stage: self._members.ready_count(stage) > 0, now_s)

    def admit_parked(self, now_s: float) -> Effects:
        """Answer the joins that came while a step was reduced."""
        effects = Effects()
        if self._step.phase not in (Phase.GATHERING, Phase.FILLING):
            return effects
        newcomers = self._admission.newcomers
        joins, newcomers.parked = newcomers.parked, {}
        for peer, join in joins.items():
            self._admit(peer, join, effects, now_s)
        return effects

    def make_ready(self, now_s: float) -> NewlyReady:
        """Let routers choose the newcomers that hold what their stage holds."""
        newly = self._admission.make_ready(
            self._step.number,
            avoided=lambda peer: self._held_out(peer, now_s),
            returned=self._returned,
        )
        for one in newly.ready:
            self._balance.on_ready(one.incarnation.peer, now_s)
        return newly

    def end_unfit(self, newcomers: list[Incarnation], now_s: float) -> Effects:
        """Evict newcomers that caught up with other weights than their stage's."""
        effects = Effects()
        for one in newcomers:
            if self._served(one):
                member = self._members.alive(one)
                sure = member is not None and self._is_sure(member.stage)
                effects += self.void_step(one, now_s, sure=sure)
            else:
                effects += self.evict(one, OTHER_WEIGHTS, now_s)
        return effects

    def begin_step(self) -> None:
        """Another step begins, with empty sums."""
        self._suspensions.next_step()
        self._former_sums.next_step()

    def _end(
        self,
        one: Incarnation,
        reason: str,
        now_s: float,
        *,
        returns: bool = False,
        leaves: bool = False,
    ) -> Effects:
        """End an incarnation, and void its sum unless it `returns` with it in a moment.

        `leaves`: it has said that it goes.
        """
        leaves = leaves or one in self._members.leaving
        member = self._members.end(one)
        assert member is not None, "only a living incarnation is ended"
        records, step = self._records, self._step
        records.admission.on_end(member)
        silent, stay_s = records.silence.silent(one, now_s), records.silence.stay_s(one)
        records.silence.on_end(one)
        records.pairs.on_end(one)
        records.coverage.on_end(member)
        records.balance.on_end(one, now_s)
        step.pace.on_end(one)
        effects, voided = Effects(changes=Change.ENDED), 0
        if returns and self._suspend(member, silent=silent, stay_s=stay_s):
            effects.actions.append(act.Probe(member.record))
            step.suspend(one)
        else:
            voided = step.end_incarnation(one, now_s)
        if step.phase is Phase.REDUCING and member.ready:
            self._reductions.drop()
            step.average_again()  # servers count nothing from `Reduce` until the next fence
            effects.changes |= Change.PHASE
        if step.phase is not Phase.ENDED:  # all members leave then
            why = departure(reason, leaves=leaves, silent=silent)
            effects.actions.append(MemberLost(one, member.stage, reason, voided, why))
        return effects

    def _suspend(self, member: Member, *, silent: bool, stay_s: float) -> bool:
        """Return whether a member's sum is kept for a moment; one being decided stays as it is."""
        if self._step.phase in (Phase.DECIDING, Phase.ENDED) or not self._sums_outlive:
            return False
        one = member.incarnation
        if one not in self._step.counting:
            return False
        redo_s = self._step.sums.redo_s(one, member.stage)
        return self._suspensions.begin(
            one, member.stage, silent=silent, redo_s=redo_s, stay_s=stay_s
        )

    def _void(self, one: Incarnation, reason: str, now_s: float) -> Effects:
        stage = self._suspensions.end(one)
        voided = self._step.void(one, now_s)
        return Effects([SumVoided(one, stage, reason, voided)], Change.SUMS)

    def _admit(self, peer: bytes, join: Join, effects: Effects, now_s: float) -> None:
        """Begin an incarnation; it takes over the sum that it had, or that is void."""
        join = self._balance.on_join(peer, join, now_s)
        if self._has_spoiled_step(peer, join):
            wrong = Incarnation(peer, join.sum.incarnation if join.sum else 0)
            effects += self.void_step(wrong, now_s, sure=self._is_sure(join.stage))
        former = self._sum_of(peer, join, effects, now_s)
        admitted = self._admission.admit(
            *(peer, join, self._step.number, now_s),
            keep_sum=former is not None,
            proved=self._balance.proved(peer, join.stage),
        )
        effects.actions += admitted.actions
        effects.changes |= admitted.changes
        match former, admitted.actions, join.sum:
            case Incarnation() as one, [
                act.Assign(heir, Assigned(keep_sum=True) as told),
                *_,
            ], HeldSum():
                if one in self._suspensions:
                    self._suspensions.end(one)
                else:
                    self._former_sums.take(ahead=bool(join.sum.ahead))
                number, stage = self._step.number, told.stage
                count = self._step.inherit(one, heir, stage, join.sum, now_s)
                effects.actions.append(SumKept(number, one, heir, stage, count))
                effects.changes |= Change.SUMS | Change.WORK
            case Incarnation() as one, _, _ if one in self._suspensions:
                effects += self._void(one, WITHOUT_ITS_SUM, now_s)

    def _has_spoiled_step(self, peer: bytes, join: Join) -> bool:
        """Return whether it served under a former coordinator, and has wrong weights."""
        number = self._step.number
        known = None if join.stage is None else self._admission.digests.known(join.stage, number)
        differs = known is not None and join.version == number and join.digest != known
        return differs and self._former_sums.on_wrong_state(peer)

    def _is_sure(self, stage: int | None) -> bool:
        """Return whether the digest of a stage is more than the word of one against another's."""
        digests = self._admission.digests
        return stage is not None and digests.sure(stage, self._step.number)

    def _sum_of(
        self, peer: bytes, join: Join, effects: Effects, now_s: float
    ) -> Incarnation | None:
        """The incarnation whose sum a server that joins may keep; a suspended one is void else."""
        if suspended := self._suspensions.of_peer(peer):
            one, stage = suspended
            if join.stage == stage and self._step.sums.fits(join.sum, one, stage):
                return one
            effects += self._void(one, WITHOUT_ITS_SUM, now_s)
        told = self._former_sums.may_take(join)
        if told is None or join.stage is None or not self._sums_outlive:
            return None
        takes = join.stage < self._config.stages and self._step.sums.takes(told, join.stage)
        return Incarnation(peer, told.incarnation) if takes else None

    def _held_out(self, peer: bytes, now_s: float) -> bool:
        """Return whether a newcomer is to wait as long as others serve its stage."""
        member = self._members.of_peer(peer)
        if member is None or member.incarnation in self._step.counting:
            return False  # the step waits for what it holds
        return (
            self._blame.servers.avoided(peer, now_s)
            or self._blame.averaging.left_out(peer)
            or self._records.silence.silent(member.incarnation, now_s)
            or bool(self._records.pairs.unreachable_from(member))
            or self._on_probation(member, now_s)
        )

    def _on_probation(self, member: Member, now_s: float) -> bool:
        silent = self._records.silence.silent
        here = [one.incarnation for one in self._members.ready(member.stage)]
        ready = [one.peer for one in here if not silent(one, now_s)]
        ledger = self._step.ledger
        counted = ledger.counted_in(member.stage) / max(1, ledger.size)
        stay_s = self._records.silence.stay_s(member.incarnation)
        peer = member.incarnation.peer
        return self._records.probation.holds(peer, stay_s, ready, counted, now_s)

    def _on_death(self, one: Incarnation, now_s: float) -> None:
        stay_s = self._records.silence.stay_s(one)
        self._records.probation.on_death(one.peer, stay_s, now_s)

    def _returned(self, one: Incarnation) -> bool:
        """Return whether a newcomer has a sum, and waits for no digest."""
        return one in self._step.counting and self._former_sums.trusts(one)

    def _served(self, one: Incarnation) -> bool:
        """Return whether a wrong member that is not ready may have served in this step before."""
        return self._former_sums.on_wrong_state(one.peer) or one in self._step.counting
