"""The trainer's rules: when to launch, fence, reduce, commit, so that a microbatch counts once.

The coordinator is told what happened (`joined`, `counted`, `lost`, ...) and answers with actions.
It fences an attempt whose outcome is uncertain, and ends the incarnation of a member that cannot be
reached; docs/training.md argues why that suffices.

Units:   `now_s` seconds on the caller's clock; steps, versions, microbatches as in the protocol.
Errors:  none; a member that breaks the protocol is evicted with the reason.
Source:  docs/training.md.
"""

import math
from enum import Enum

from p2pswarm.config import RunConfig
from p2pswarm.swarm.messages.membership import Join, Load, Ready
from p2pswarm.swarm.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.swarm.messages.step import Committed, Fence, Reduced
from p2pswarm.swarm.schedule import learning_rate
from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer import actions as act
from p2pswarm.trainer.admission import Admission
from p2pswarm.trainer.attempt_timeout import AttemptTimeout
from p2pswarm.trainer.blame import Blame
from p2pswarm.trainer.fencing import FENCE_S
from p2pswarm.trainer.generations import Generations
from p2pswarm.trainer.ledger import CountResult
from p2pswarm.trainer.membership import Membership
from p2pswarm.trainer.reduction import Decided, Disagreed, NotFinite, Reduction, sound
from p2pswarm.trainer.silence import Silence
from p2pswarm.trainer.step import Step
from p2pswarm.trainer.unserved import UnservedStages

WINDOW_PER_ENTRY = 4  # a server of stage 0 computes one while three are on the wire
WINDOW_PER_SERVER = 2  # deep pipelines: each server computes one while one is on its way there


class Phase(Enum):
    """What the run is doing."""

    GATHERING = "waiting for servers"
    FILLING = "microbatches are on their way"
    REDUCING = "the step's gradients are being averaged"
    ENDED = "over"


class Coordinator:
    """One run, from the first member to the last commit."""

    def __init__(self, config: RunConfig, run: bytes) -> None:
        self._config = config
        self._run = run
        self.members = Membership(config.stages)
        """Who is in the run."""
        self._phase = Phase.GATHERING
        self._timeout = AttemptTimeout()
        self._step = Step(0, config, self._timeout)
        self._generations = Generations()
        self._admission = Admission(run, config.stages, self.members)
        self._blame = Blame(self.members, config.stages)
        self.silence = Silence(self.members)
        """When each member was heard last; told before what a member says."""
        self._unserved = UnservedStages(config.on_stage_lost)
        self._now_s = -math.inf
        self._actions: list[act.Action] = []

    @property
    def step(self) -> int:
        """The step in progress; equal to the number of steps while the last evaluation runs."""
        return self._step.number

    def actions(self) -> list[act.Action]:
        """What to do now; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def joined(self, peer: bytes, join: Join, now_s: float) -> None:
        """A server opened its stream; answered by `Assign`, after the step if it is reducing."""
        if self._phase is Phase.ENDED:
            return
        if former := self.members.of_peer(peer):
            self._end_incarnation(former.incarnation, "it joined anew", now_s)
        if self._phase is Phase.REDUCING:
            self._admission.newcomers.park(peer, join)
        else:
            self._actions += self._admission.admit(peer, join, self.step, now_s)
        self._advance(now_s)

    def withdrawn(self, peer: bytes) -> None:
        """A server left before it was answered."""
        self._admission.newcomers.withdraw(peer)

    def closed(self) -> None:
        """The trainer leaves: no more actions, whatever happens."""
        self._phase = Phase.ENDED
        self._actions = []

    def loaded(self, incarnation: Incarnation, note: Load) -> None:
        """A member reports how busy it is."""
        if member := self.members.alive(incarnation):
            self._actions.append(act.Loaded(incarnation, member.stage, note))

    def ready(self, incarnation: Incarnation, note: Ready, now_s: float) -> None:
        """A newcomer has caught up with a version of the weights."""
        member = self.members.alive(incarnation)
        if member is None or member.ready or note.version != self.step:
            return
        self._admission.newcomers.caught_up(incarnation, note.digest)
        self._admission.commits.caught_up(incarnation)
        self._advance(now_s)

    def lost(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        """A member's stream ended, or it did not answer what must be answered."""
        self._evict(incarnation, reason, now_s)
        self._advance(now_s)

    def handed(self, to: Incarnation, note: Handed, now_s: float) -> None:
        """A server, or the trainer itself, handed a microbatch to the member `to`."""
        self._step.handed(to, note, alive=self.members.alive(to) is not None)
        self._advance(now_s)

    def counted(self, incarnation: Incarnation, note: Counted, now_s: float) -> None:
        """A server has a microbatch in its sum, or has passed its gradient on."""
        if member := self.members.alive(incarnation):
            result = self._step.counted(incarnation, member.stage, note, now_s)
            self._blame.counted(incarnation, self._step.path(note.microbatch))
            self._evict_on_clash(incarnation, result, now_s)
        self._advance(now_s)

    def evaluated(self, by: Incarnation, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        member = self.members.alive(by)
        if member is not None and member.stage == self._config.stages - 1:
            self._step.evaluated(note, now_s)
        self._advance(now_s)

    def undelivered(self, note: Undelivered, now_s: float, by: Incarnation | None = None) -> None:
        """An attempt got stuck: a push failed, or a server cannot compute it.

        `by`: the member that says so, which was handed nothing before it was ready; None: the
        trainer itself.
        """
        member = self.members.alive(by) if by is not None else None
        known = by is None or (member is not None and member.ready)
        if known and (failed := self._step.undelivered(note, by)):
            self._actions += self._blame.attempt_failed(failed, now_s)
        self._advance(now_s)

    def fenced(self, incarnation: Incarnation, counted: tuple[int, ...], now_s: float) -> None:
        """A member has promised to count nothing more of the fenced attempts."""
        if member := self.members.alive(incarnation):
            result = self._step.fenced(incarnation, member.stage, counted, now_s)
            self._evict_on_clash(incarnation, result, now_s)
        self._advance(now_s)

    def reduced(self, by: Incarnation, generation: int, answer: Reduced, now_s: float) -> None:
        """A member holds its stage's reduced gradient."""
        if reduction := self._generations.current(generation):
            if sound(answer):
                reduction.reduced(by, answer)
            elif reduction.awaits(by):
                self._evict(by, "the norm of its gradient is no number that a sum can have", now_s)
            self._judge(now_s)
        self._advance(now_s)

    def reduce_failed(self, by: Incarnation, generation: int, reason: str, now_s: float) -> None:
        """A member could not finish the reduction; it may not be its fault."""
        reduction = self._generations.current(generation)
        if reduction is None or not reduction.awaits(by):
            return  # over, or a newcomer that only receives: it will fetch the weights instead
        self._actions += self._blame.averaging_failed(by, reason, now_s)
        blamed = self._generations.failed()
        self._average_again()
        if blamed:
            self._evict(by, f"it could not average: {reason}", now_s)
        self._advance(now_s)

    def committed(self, by: Incarnation, step: int, answer: Committed, now_s: float) -> None:
        """A member has applied a commit; the digest is empty while it still lacks its weights."""
        if reason := self._admission.committed(by, step, answer, self.step):
            self._evict(by, reason, now_s)
        self._advance(now_s)

    def commit_failed(self, by: Incarnation, step: int, reason: str, now_s: float) -> None:
        """A member did not apply a commit; a newcomer may skip some."""
        if self.members.alive(by) and self._admission.commits.failed(by, step):
            self._evict(by, f"it did not commit: {reason}", now_s)
        self._advance(now_s)

    def next_deadline_s(self) -> float | None:
        """When to call `on_deadline`, if nothing happens before."""
        if self._phase is Phase.ENDED:
            return None
        reduction = self._generations.reduction
        times = [
            self._step.fence_deadline_s,
            self._admission.commits.next_deadline_s(),
            self._unserved.next_deadline_s(),
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
            for incarnation in self._step.silent:
                if not self.silence.may_come_back(incarnation, now_s):
                    self._evict(incarnation, "it did not answer a fence", now_s)
            self._step.wait_longer(now_s)
        for incarnation in self.silence.to_evict(self._step, self._generations.reduction, now_s):
            self._evict(incarnation, "it is silent, and the step waits for it", now_s)
        if self._generations.overdue(now_s):
            self._average_later(now_s)
        for incarnation in self._admission.commits.overdue(now_s):
            self._evict(incarnation, "it did not commit in time", now_s)
        if self._phase is Phase.FILLING:
            for failed in self._step.late(now_s):
                self._actions += self._blame.attempt_failed(failed, now_s)
        stage = self._unserved.hopeless(now_s)
        if stage is not None:
            self._finish(f"stage {stage} has no server left that holds its weights", failed=True)
        self._advance(now_s)

    def _evict_on_clash(
        self, incarnation: Incarnation, result: CountResult | None, now_s: float
    ) -> None:
        """Evict the later of two living members that have counted one microbatch."""
        if result is CountResult.CLASH:
            self._evict(incarnation, "it counted a microbatch that another had counted", now_s)

    def _evict(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        if self.members.alive(incarnation):
            self._actions.append(act.Evict(incarnation, reason))
            self._end_incarnation(incarnation, reason, now_s)

    def _end_incarnation(self, incarnation: Incarnation, reason: str, now_s: float) -> None:
        """Void an incarnation: what it counted and what went through it is done again."""
        member = self.members.end(incarnation)
        assert member is not None, "only a living incarnation is ended"
        self._admission.end(incarnation)
        self.silence.end(incarnation)
        voided = self._step.end_incarnation(incarnation, now_s)
        if member.ready:
            self._unserved.left(member)
        if self._phase is Phase.REDUCING and member.ready:
            self._phase = Phase.FILLING
            self._generations.drop()
            self._step.probe()  # servers count nothing from `Reduce` until the next fence
        if self._phase is not Phase.ENDED:  # all members leave then
            self._actions.append(act.MemberLost(incarnation, member.stage, reason, voided))

    def _advance(self, now_s: float) -> None:
        """Do all that can be done now."""
        self._now_s = now_s
        if self._phase is Phase.ENDED:
            return
        self._end_misfits(now_s)
        self._settle_fences(now_s)
        if self._phase in (Phase.GATHERING, Phase.FILLING):
            for peer, join in self._admission.newcomers.parked():
                self._actions += self._admission.admit(peer, join, self.step, now_s)
            self._make_ready(now_s)
        if self._phase is Phase.GATHERING and not self.members.unserved_stages(
            self._config.min_replicas
        ):
            self._phase = Phase.FILLING
            self._actions.append(act.RunBegun())
        if self._phase is Phase.FILLING:
            self._fill(now_s)
        self._watch_unserved_stages(now_s)
        if changes := self.members.changes():
            self._actions.append(act.Publish(changes))

    def _settle_fences(self, now_s: float) -> None:
        """Close a round that all members have answered, and open the next."""
        self._actions += self._step.given_up()
        if settled := self._step.settle(now_s):
            self._actions.append(settled)
        if reason := self._blame.hopeless or self._step.hopeless():
            self._finish(reason, failed=True)
        if not self._step.fence_due:
            return
        incarnations = [m.incarnation for m in self.members.ready()]
        work = self._step.fence(incarnations, now_s)
        for one in incarnations:
            fence = Fence(self._run, self.step, one.number, work)
            self._actions.append(act.SendFence(one, fence, FENCE_S))
        if not incarnations:
            self._settle_fences(now_s)

    def _make_ready(self, now_s: float) -> None:
        if self._step.fencing:
            return
        servers = self._blame.servers
        outcome = self._admission.make_ready(self.step, lambda peer: servers.avoided(peer, now_s))
        for incarnation in outcome.ready:
            if member := self.members.alive(incarnation):
                self._actions.append(act.MemberReady(incarnation, member.stage))
        for incarnation in outcome.differing:
            self._evict(incarnation, "its weights differ from those of its stage", now_s)

    def _end_misfits(self, now_s: float) -> None:
        """Evict the members that fail all the time, or hold other weights than most of a stage."""
        for incarnation, reason in self._blame.to_end():
            self._evict(incarnation, reason, now_s)
        self._actions += self._admission.tied()
        for incarnation in self._admission.differing():
            self._evict(incarnation, "its weights differ from those of its stage", now_s)

    def _fill(self, now_s: float) -> None:
        """Launch what the window allows; when all is counted, close the step."""
        unserved = self.members.unserved_stages(1)
        if not self._step.complete:
            if not unserved:
                self._actions += self._step.launch(self._window(), now_s)
        elif self.step >= self._config.steps:
            if self._admission.settled(self.step):  # else the last commit has yet to arrive
                self._report_evaluation()
                self._finish("all steps are done", failed=False)
        elif not unserved and not self._admission.awaited():
            self._reduce(now_s)

    def _window(self) -> int:
        """How many microbatches may be on their way."""
        entries, servers = self.members.ready_count(0), self.members.ready_count()
        default = max(WINDOW_PER_ENTRY * entries, WINDOW_PER_SERVER * servers)
        return self._config.batch.window or default

    def _report_evaluation(self) -> None:
        if (loss := self._step.held_out_loss) is not None:
            self._actions.append(act.EvaluationDone(self.step, loss))

    def _reduce(self, now_s: float) -> None:
        self._phase = Phase.REDUCING
        groups = [self.members.group(stage) for stage in range(self._config.stages)]
        limit_s = self._generations.limit.seconds
        reduction = self._generations.begin(self.step, groups, self._config.optimizer, now_s)
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

    def _judge(self, now_s: float) -> None:
        """Act on the reduction if it is decided."""
        reduction = self._generations.reduction
        if reduction is None:
            return
        match reduction.verdict():
            case Disagreed(incarnations, tied):
                self._actions += [act.DigestsTied(stage, self.step + 1) for stage in tied]
                for incarnation in incarnations:
                    reason = "its reduced gradient differs from its stage's"
                    self._actions += self._blame.averaging_failed(incarnation, reason, now_s)
                    self._evict(incarnation, reason, now_s)
            case NotFinite(stage):
                reason = f"the gradient of step {self.step} is not finite in stage {stage}"
                self._finish(f"{reason}: lower the learning rate", failed=True)
            case Decided() as decided:
                self._commit(reduction, decided, now_s)
            case _:
                pass

    def _commit(self, reduction: Reduction, decided: Decided, now_s: float) -> None:
        """Decide the step: tell all that have the gradient, and begin the next step."""
        rate = learning_rate(self._config, self.step)
        self._actions += self._admission.decided(self.step, reduction, decided, rate, now_s)
        self._generations.decided(now_s)
        self._blame.averaged(list(reduction.stages))
        self._report_evaluation()
        norm, size = decided.gradient_norm, self._config.batch.microbatches
        self._actions.append(act.StepDone(self.step, self._step.loss, norm, rate, size))
        self._phase = Phase.FILLING
        self._step = Step(self.step + 1, self._config, self._timeout)

    def _watch_unserved_stages(self, now_s: float) -> None:
        """Remember since when a stage has had no ready server, once the run has begun."""
        gathering = self._phase is Phase.GATHERING
        unserved = self.members.unserved_stages(self._config.min_replicas if gathering else 1)
        self._actions += self._unserved.watch(unserved, self.step, now_s, counting=not gathering)

    def _finish(self, reason: str, *, failed: bool) -> None:
        if self._phase is not Phase.ENDED:
            self._phase = Phase.ENDED
            self._actions.append(act.RunFinished(reason, failed))
