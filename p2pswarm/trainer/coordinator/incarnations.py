"""The beginning and the end of every incarnation, and what becomes of its sum.

A sum outlives its incarnation if its server is back with it at once, or if it was counted under a
former coordinator and nothing of it was launched since.

Units:   `now_s` seconds on the caller's clock.
Errors:  none.
Source:  docs/training.md, "A sum that outlives its link", "A sum that outlives its coordinator".
"""

from abc import abstractmethod

from p2pswarm.run.messages.membership import Assigned, HeldSum, Join
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.balance.stage_coverage import UnservedStages
from p2pswarm.trainer.coordinator.silence import Silence
from p2pswarm.trainer.coordinator.step_end import StepEnd
from p2pswarm.trainer.members.membership import Member
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.phase import Phase
from p2pswarm.trainer.step.sums import SumKept, SumVoided

WITHOUT_ITS_SUM = "it has joined without the sum that it had"


class Incarnations(StepEnd):
    """The part of the coordinator that admits members and loses them."""

    silence: Silence
    _unserved: UnservedStages

    def joined(self, peer: bytes, join: Join, now_s: float) -> None:
        """A server opened its stream; answered by `Assign`, after the step if it is reducing."""
        if self._phase is Phase.ENDED:
            return
        if former := self.members.of_peer(peer):
            self._end_incarnation(former.incarnation, "it joined anew", now_s, returns=True)
        self._former_sums.joined(peer, join, now_s)
        if self._phase in (Phase.REDUCING, Phase.DECIDING):
            self.admission.newcomers.park(peer, join)
        else:
            self._admit(peer, join, now_s)
        self._advance(now_s)

    def withdrawn(self, peer: bytes) -> None:
        """A server left before it was answered."""
        self.admission.newcomers.withdraw(peer)

    def lost(
        self, incarnation: Incarnation, reason: str, now_s: float, *, returns: bool = True
    ) -> None:
        """A member's stream ended, or it did not answer what must be answered.

        `returns`: it may be back in a moment, with its sum.
        """
        if self.members.alive(incarnation):
            self._actions.append(act.Evict(incarnation, reason))
            self._end_incarnation(incarnation, reason, now_s, returns=returns)
        self._advance(now_s)

    def probed(self, one: Incarnation, reason: str | None, now_s: float) -> None:
        """A server that was lost was dialled; `reason`: why it is not there, None if it answers."""
        if one in self._suspensions:
            if reason is None:
                self._suspensions.answered(one)
            else:
                self._void(one, f"it is not there any more: {reason}", now_s)
            self._advance(now_s)

    def holds(self, one: Incarnation) -> bool:
        """Whether the sum of an incarnation is, or may yet be, a part of the step."""
        return self.members.alive(one) is not None or one in self._suspensions

    def _evict(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        if self.members.alive(incarnation):
            self._actions.append(act.Evict(incarnation, reason))
            self._end_incarnation(incarnation, reason, now_s)
        elif incarnation in self._suspensions:
            self._void(incarnation, reason, now_s)

    def _end_incarnation(
        self, incarnation: Incarnation, reason: str, now_s: float, *, returns: bool = False
    ) -> None:
        """End an incarnation: what went through it is done again, and what it counted.

        `returns`: not what it counted, if it is back with it in a moment.
        """
        member = self.members.end(incarnation)
        assert member is not None, "only a living incarnation is ended"
        self.admission.end(member)
        silent = self.silence.silent(incarnation, now_s)
        self.silence.end(incarnation)
        self._apart.end(incarnation)
        self._departures.end(incarnation)
        self._balance.ended(incarnation, now_s)
        self._pace.lost(incarnation)
        voided = 0
        if returns and self._suspend(member, now_s, silent=silent):
            self._step.suspend(incarnation)
        else:
            voided = self._step.end_incarnation(incarnation, now_s)
        if member.ready:
            self._unserved.left(member)
        if self._phase is Phase.REDUCING and member.ready:
            self._generations.drop()
            self._average_again()  # servers count nothing from `Reduce` until the next fence
        if self._phase is not Phase.ENDED:  # all members leave then
            self._actions.append(act.MemberLost(incarnation, member.stage, reason, voided))

    def _suspend(self, member: Member, now_s: float, *, silent: bool) -> bool:
        """Whether a member's sum is kept for a moment; one that is being decided stays as it is."""
        if self._phase in (Phase.DECIDING, Phase.ENDED) or self._config.spot_check_share:
            return False
        one = member.incarnation
        if one not in self._step.counting:
            return False
        redo_s = self._step.sums.redo_s(one, member.stage, now_s)
        if not self._suspensions.begin(one, member.stage, silent=silent, redo_s=redo_s):
            return False
        self._actions.append(act.Probe(member.record))
        return True

    def _void(self, one: Incarnation, reason: str, now_s: float) -> None:
        """Void the sum of a suspended incarnation."""
        stage = self._suspensions.end(one)
        voided = self._step.void(one, now_s)
        self._actions.append(SumVoided(one, stage, reason, voided))

    def carded(self, peer: bytes, card: bytes) -> None:
        """A peer has another card: if it is a member, others are told."""
        if self.members.carded(peer, card):
            self._actions.append(act.Publish(self.members.changes()))

    def _admit(self, peer: bytes, join: Join, now_s: float) -> None:
        """Begin an incarnation; it takes over the sum that it had, or that is void."""
        join = self._balance.joined(peer, join, now_s)
        self._look_at_weights(peer, join, now_s)
        former = self._sum_of(peer, join, now_s)
        answer = self.admission.admit(
            *(peer, join, self.step, now_s),
            keep_sum=former is not None,
            proved=self._balance.proved(peer, join.stage),
        )
        self._actions += answer
        match former, answer, join.sum:
            case Incarnation() as one, [
                act.Assign(heir, Assigned(keep_sum=True) as told),
                *_,
            ], HeldSum():
                if one in self._suspensions:
                    self._suspensions.end(one)
                else:
                    self._former_sums.taken = True
                count = self._step.inherit(one, heir, told.stage, join.sum, now_s)
                self._actions.append(SumKept(self.step, one, heir, told.stage, count))
            case Incarnation() as one, _, _ if one in self._suspensions:
                self._void(one, WITHOUT_ITS_SUM, now_s)

    def _look_at_weights(self, peer: bytes, join: Join, now_s: float) -> None:
        """Void the step if one that served in it under a former coordinator has wrong weights."""
        known = None if join.stage is None else self.admission.agreed(join.stage, self.step)
        differs = known is not None and join.version == self.step and join.digest != known
        if differs and self._former_sums.found_wrong(peer):
            self._void_step(Incarnation(peer, join.sum.incarnation if join.sum else 0), now_s)

    @abstractmethod
    def _void_step(self, wrong: Incarnation, now_s: float) -> None:
        """Drop all sums of the step: what a member gave is in them, even if it is gone by now."""

    def _sum_of(self, peer: bytes, join: Join, now_s: float) -> Incarnation | None:
        """The incarnation whose sum a server that joins may keep; a suspended one is void else."""
        if suspended := self._suspensions.of_peer(peer):
            one, stage = suspended
            if join.stage == stage and self._step.sums.fits(join.sum, one, stage):
                return one
            self._void(one, WITHOUT_ITS_SUM, now_s)
        told = self._former_sums.may_take(join)
        if told is None or join.stage is None or self._config.spot_check_share:
            return None
        takes = join.stage < self._config.stages and self._step.sums.takes(told, join.stage)
        return Incarnation(peer, told.incarnation) if takes else None
