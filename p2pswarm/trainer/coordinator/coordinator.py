"""The trainer's rules: when to launch, fence, reduce, commit, so that a microbatch counts once.

The coordinator is told what happened (`joined`, `counted`, `lost`, ...) and answers with actions.
It fences an attempt whose outcome is uncertain, and ends the incarnation of a member that cannot be
reached; docs/training.md argues why that suffices.

Units:   `now_s` seconds on the caller's clock; steps, versions, microbatches as in the protocol.
Errors:  none; a member that breaks the protocol is evicted with the reason.
Source:  docs/training.md.
"""

import math
from collections.abc import Iterable

from p2pswarm.run.chain.record import members_that_fit
from p2pswarm.run.messages.membership import CannotPrepare, Ready
from p2pswarm.run.messages.step import Fence, Reduced
from p2pswarm.run.view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance import (
    Balance,
)
from p2pswarm.trainer.balance.move_preparation import StageDecided
from p2pswarm.trainer.balance.stage_coverage import Departures, Moves, UnservedStages
from p2pswarm.trainer.coordinator.admission import Admission
from p2pswarm.trainer.coordinator.decision import FROM_THE_FIRST, CoordinatorStart
from p2pswarm.trainer.coordinator.incarnations import Incarnations
from p2pswarm.trainer.coordinator.outputs import Action
from p2pswarm.trainer.coordinator.silence import Silence
from p2pswarm.trainer.members.answer_limits import AnswerLimits
from p2pswarm.trainer.members.blame import Blame
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.unreachable_pairs import UnreachablePairs
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.phase import Phase
from p2pswarm.trainer.step.averaging_attempts import AveragingAttempts, Decided, Reduction
from p2pswarm.trainer.step.fences import FENCE_MAX_S, FENCE_S
from p2pswarm.trainer.step.guards import Guards
from p2pswarm.trainer.step.in_flight import AttemptTimeout
from p2pswarm.trainer.step.stage_digests import OTHER_WEIGHTS
from p2pswarm.trainer.step.step import Step
from p2pswarm.trainer.step.sums import FormerSums, Suspensions
from p2pswarm.trainer.step.window import LaunchPace, launch_window

APART = "nothing passes between it and another of its stage, as both say"


class Coordinator(Incarnations):
    """One run under one leader, from the first member to the last commit."""

    def __init__(
        self,
        config: RunConfig,
        run: bytes,
        start: CoordinatorStart = FROM_THE_FIRST,
        secret: bytes = b"",
    ) -> None:
        """`secret`: what members must not know, so that they cannot foresee spot checks."""
        self._config = config
        self._run = run
        members_max = members_that_fit(config.stages, config.batch.microbatches)
        self.members = Membership(config.stages, members_max=members_max, former=start.former)
        """Who is in the run."""
        self._phase = Phase.GATHERING if start.gathers else Phase.FILLING
        limits = AttemptTimeout(), Guards.of(config, secret), AnswerLimits(FENCE_S, FENCE_MAX_S)
        self._pace = LaunchPace()
        self._step = Step(start.version, config, *limits, self._pace)
        self._generations = AveragingAttempts(former=start.former, ends=config.tied_ends)
        self._deciding: tuple[Reduction, Decided] | None = None
        self._held = False
        self.admission = Admission(run, config.stages, self.members, start)
        """Who has which weights; who fetches them asks it for their digests."""
        self._balance = Balance(config, self.members)
        self._blame = Blame(self.members, config.stages, config.tied_ends)
        self._apart = UnreachablePairs(self.members)
        self.silence = Silence(self.members)
        """When each member was heard last; told before what a member says."""
        self._suspensions = Suspensions()
        self._former_sums = FormerSums(start.term, start.era, start.averaged)
        self._departures = Departures(self.members)
        self._moves = Moves(self.members)
        self._unserved = UnservedStages(config.on_stage_lost, config.rewind_after_s)
        self._loaded = start.version if start.loads or not start.version else -1
        self._now_s = -math.inf
        self._actions: list[Action] = []

    @property
    def may_go_back(self) -> bool:
        """Whether a stage has lost weights that nobody who comes can load or draw."""
        lost = self._phase is Phase.FILLING and self.members.unserved_stages(1)
        return bool(lost) and not self._held and self.step != self._loaded

    @property
    def beside(self) -> list[tuple[int, int]]:
        """Pairs of stages whose members have to know each other beside those of neighbours."""
        return self._balance.beside

    @property
    def numbered(self) -> int:
        """The highest number that was given to an incarnation or a generation."""
        return max(self.members.numbered, self._generations.numbered)

    def actions(self) -> list[Action]:
        """What to do now; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def closed(self) -> None:
        """The trainer leaves, or leads no more: no more actions, whatever happens."""
        self._phase = Phase.ENDED
        self._actions = []

    def hold(self) -> None:
        """Launch and reduce nothing more; what is being decided is decided still."""
        self._held = True

    def ready(self, incarnation: Incarnation, note: Ready, now_s: float) -> None:
        """A member holds a version of the weights, and says its digest."""
        if note.version == self.step:
            self.admission.holds(incarnation, note)
            self._advance(now_s)

    def proved(self, stage: int, digest: bytes | None, now_s: float) -> None:
        """What a stage's state has to be where the run begins; None: nobody can tell."""
        self._actions += self.admission.proved(stage, digest)
        self._judge(now_s)
        self._advance(now_s)

    def observed(self, by: Incarnation, step: int, answer: Reduced) -> None:
        """A member has a reduction of another stage, for which it prepares."""
        self._balance.observed(by, step, StageDecided(answer.state, answer.digest))

    def cannot_prepare(self, by: Incarnation, note: CannotPrepare, now_s: float) -> None:
        """A member cannot hold another stage beside its own."""
        self._actions += self._balance.cannot_prepare(by, note)
        self._advance(now_s)

    def apart(self, by: Incarnation, peers: Iterable[bytes], now_s: float) -> None:
        """A member says from which others of its stage nothing comes at present."""
        self._apart.told(by, peers)
        if self._phase is Phase.REDUCING:
            self._part(now_s)
        self._advance(now_s)

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline`, if nothing happens before."""
        if self._phase is Phase.ENDED:
            return None
        reduction = self._generations.reduction
        times = [
            self._step.fence_deadline_s,
            self.admission.next_deadline_s(),
            self._unserved.next_deadline_s(),
            self._suspensions.next_deadline_s(),
            self._former_sums.next_deadline_s(self._now_s),
            self._moves.next_deadline_s(self._now_s),
            self._blame.servers.next_deadline_s(self._now_s),
            self.silence.next_deadline_s(),
            reduction.deadline_s if reduction is not None else None,
            self._step.next_deadline_s(self._now_s) if self._phase is Phase.FILLING else None,
        ]
        soonest = min(time_s for time_s in times if time_s is not None)
        return soonest if soonest < math.inf else None

    def on_deadline(self, now_s: float) -> None:
        """Act on whatever is due."""
        if now_s >= self._step.fence_deadline_s:
            for incarnation in self._step.fence_overdue(now_s):
                if not self.silence.may_come_back(incarnation, now_s):
                    self._step.fence_missed(incarnation)
                    self._evict(incarnation, "it did not answer a fence", now_s)
            self._step.wait_longer(now_s)
        waiting_for = self._step, self._generations.reduction
        for incarnation in self.silence.to_evict(*waiting_for, self._spares, now_s):
            self._evict(incarnation, "it is silent, and the step waits for it", now_s)
        self._settle_states(now_s)
        if self._generations.overdue(now_s):
            self._average_later(now_s)
        for incarnation, reason in self.admission.overdue(now_s):
            self._evict(incarnation, reason, now_s)
        if self._phase is Phase.FILLING:
            for failed in self._step.late(now_s):
                self._actions += self._blame.attempt_failed(failed, now_s)
        if lost := self._unserved.hopeless(now_s):
            self._finish(lost, failed=True)
        self._actions += self._unserved.overdue(now_s, self.step)
        self._advance(now_s)

    def _spares(self, stage: int) -> list[Incarnation]:
        return self.admission.spares(stage, self.step)

    def _advance(self, now_s: float) -> None:
        """Do all that can be done now."""
        self._now_s = now_s
        if self._phase is Phase.ENDED:
            return
        self._end_misfits(now_s)
        for one in self._suspensions.overdue(now_s):
            self._void(one, "it did not come back in time", now_s)
        self._settle_fences(now_s)
        if self._phase in (Phase.GATHERING, Phase.FILLING):
            for peer, join in self.admission.newcomers.parked():
                self._admit(peer, join, now_s)
            self._make_ready(now_s)
        if self._phase is Phase.GATHERING and not self.members.unserved_stages(
            self._config.min_replicas
        ):
            self._phase = Phase.FILLING
            self._actions.append(act.RunBegun())
        if self._phase is Phase.FILLING:
            self._fill(now_s)
        self._suspensions.watch(lambda stage: self.members.ready_count(stage) > 0, now_s)
        self._watch_unserved_stages(now_s)
        self._actions += self._departures.actions(self.step, now_s)
        self._actions += self._balance.stopped()
        if changes := self.members.changes():
            self._actions.append(act.Publish(changes))

    def _settle_fences(self, now_s: float) -> None:
        """Close a round that all members have answered, and open the next."""
        self._actions += self._step.given_up()
        if settled := self._step.settle(now_s):
            self._actions.append(settled)
        if self._phase is not Phase.DECIDING:  # who is lost then changes nothing about the record
            for incarnation, why in self._step.to_void(self._blame, now_s):
                self._evict(incarnation, why, now_s)  # it holds what must not be counted
            self._actions += self._step.guarded(now_s)
        if reason := self._step.hopeless():
            self._finish(reason, failed=True)
        if not self._step.fence_due:
            return
        incarnations = [m.incarnation for m in self.members.ready()]
        work = self._step.fence(incarnations, now_s)
        for one in incarnations:
            fence = Fence(self._run, self.step, one.number, work)
            self._actions.append(act.SendFence(one, fence, self._step.fence_limit_s(one)))
        if not incarnations:
            self._settle_fences(now_s)

    def _make_ready(self, now_s: float) -> None:
        self.admission.settle(now_s)
        if self._step.fencing:
            return
        outcome = self.admission.make_ready(
            self.step,
            avoided=lambda peer: self._held_out(peer, now_s),
            returned=self._returned,
        )
        self._actions += outcome.ready
        for one in outcome.ready:
            self._balance.ready(one.incarnation.peer, now_s)
        if self._phase is Phase.FILLING and outcome.ready:
            for stage in {one.stage: None for one in outcome.ready}:
                servers = [member.incarnation for member in self.members.ready(stage)]
                self._step.share(stage, servers)
            self._settle_fences(now_s)
        for incarnation in outcome.differing:
            if self._served(incarnation):
                self._void_step(incarnation, now_s)
            else:
                self._evict(incarnation, OTHER_WEIGHTS, now_s)

    def _end_misfits(self, now_s: float) -> None:
        """Evict the members that fail all the time, or hold other weights than most of a stage."""
        for incarnation, reason in self._blame.to_end():
            self._evict(incarnation, reason, now_s)
        self._actions += self.admission.tied()
        for incarnation in self.admission.differing():
            self._void_step(incarnation, now_s)

    def _void_step(self, wrong: Incarnation, now_s: float) -> None:
        """Drop all sums of the step: what a member gave is in them, even if it is gone by now."""
        member = self.members.alive(wrong)
        served = member is None or member.ready or self._served(wrong)
        self._evict_and_blame(wrong, OTHER_WEIGHTS, now_s)
        if self.step < self._config.steps and served:  # all come back, with the weights they have
            everybody = [other.incarnation for other in self.members.ready()]
            for other in everybody + self._step.counting:
                self._evict(other, f"step {self.step} is done again", now_s)

    def _held_out(self, peer: bytes, now_s: float) -> bool:
        """Whether a newcomer is to wait as long as others serve its stage."""
        member = self.members.of_peer(peer)
        if member is None or member.incarnation in self._step.counting:
            return False  # the step waits for what it holds
        return self._blame.servers.avoided(peer, now_s) or bool(self._apart.apart(member))

    def _returned(self, one: Incarnation) -> bool:
        """Whether a newcomer has a sum of this step, and need not wait for its stage's digest."""
        return one in self._step.counting and self._former_sums.trusts(one)

    def _served(self, one: Incarnation) -> bool:
        """Whether a member that is not ready, and is wrong, may have served in this step before."""
        return self._former_sums.found_wrong(one.peer) or one in self._step.counting

    def _fill(self, now_s: float) -> None:
        """Launch what the window allows; when all is counted, close the step."""
        if self._held:
            return
        if self._part(now_s):
            self._settle_fences(now_s)
        unserved = self.members.unserved_stages(1)
        if not self._step.complete:
            if not (unserved or self._former_sums.awaited(now_s)):
                window = launch_window(self._config, self.members, self._pace)
                self._actions += self._step.launch(window, now_s)
        elif self.step >= self._config.steps:
            if self.admission.settled(self.step):  # else the last commit has yet to arrive
                self._actions += self._step.evaluation()
                self._finish("all steps are done", failed=False)
        elif not (unserved or self.admission.awaited() or self._holder_missing()):
            self._reduce(now_s)

    def _part(self, now_s: float) -> bool:
        """End one of each two members that cannot average, once their stage has counted all.

        Returns whether there were any. A stage whose members have all answered has averaged,
        whatever has become of its roads.
        """
        if self._apart.nobody or self.step >= self._config.steps:
            return False
        reduction, sums = self._generations.reduction, self._step.sums
        leave = [
            one
            for stage in range(self._config.stages)
            if reduction is None or any(map(reduction.awaits, reduction.group(stage)))
            if sums.all_counted(stage)
            for one in self._apart.to_leave(stage, sums.counted_by)
        ]
        for one in leave:
            self._blame.servers.avoid(one.peer, now_s)
            self._evict(one, APART, now_s)
        return bool(leave)

    def _holder_missing(self) -> bool:
        """Whether a part of the step is in a sum that is suspended, or whose server waits."""
        holders = map(self.members.alive, self._step.counting)
        return any(member is None or not member.ready for member in holders)

    def _watch_unserved_stages(self, now_s: float) -> None:
        """Remember since when a stage has had no ready server, once the run has begun."""
        gathering = self._phase is Phase.GATHERING
        at_least = self._config.min_replicas if gathering else 1
        unserved = self.members.unserved_stages(at_least)
        self._actions += self._unserved.watch(unserved, self.step, now_s, counting=not gathering)
        lost = self.members.unserved_stages(1) if self.step == self._loaded else []
        if move := self._moves.due(lost, at_least, self._blame.servers, now_s):
            self._evict(*move, now_s)

    def _finish(self, reason: str, *, failed: bool) -> None:
        if self._phase is not Phase.ENDED:
            self._phase = Phase.ENDED
            self._actions.append(act.RunFinished(reason, failed))
