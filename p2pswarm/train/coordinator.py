"""The trainer's rules: when to launch, fence, reduce and commit, so that all count exactly once.

The coordinator is told what happened (`joined`, `counted`, `lost`, ...) and answers with actions.
Whatever it cannot be sure of it fences, and whoever cannot be reached is voided; docs/training.md
argues why that suffices.

Units:   `now_s` seconds on the caller's clock; steps, versions, microbatches as in the protocol.
Errors:  none of its own; a member that breaks the protocol is dismissed with the reason.
Source:  docs/training.md.
"""

import math
from enum import Enum

from p2pswarm.config import RunConfig
from p2pswarm.swarm.messages import (
    Assigned,
    Commit,
    Counted,
    Evaluated,
    Handed,
    Join,
    Ready,
    Reduce,
    Reduced,
    Undelivered,
)
from p2pswarm.swarm.schedule import learning_rate
from p2pswarm.swarm.view import Life, parts
from p2pswarm.train import actions as act
from p2pswarm.train.closing import Closing, Decided, Differ, NotFinite
from p2pswarm.train.flight import runs_window
from p2pswarm.train.ledger import Claim
from p2pswarm.train.membership import Membership
from p2pswarm.train.step import Step

REDUCE_S = 120.0  # covers a large stage over a slow link; death is noticed by the link, not by this
COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
BARE_STAGE_S = 30.0  # how long a stage without servers may wait for one that rejoins
REDUCE_RETRIES = 2  # a broken link between two members is dialled anew before one is blamed
WINDOW_PER_DOOR = 4  # a server of stage 0 has work while three others of its are on the wire
WINDOW_PER_SERVER = 2  # deep pipelines: one in each server's hand, one on its way there


class Stand(Enum):
    """Where the run stands."""

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
        self._stand = Stand.GATHERING
        self._runs_s = runs_window()
        self._step = Step(0, config, self._runs_s)
        self._generation = 0
        self._digests: dict[int, tuple[int, bytes]] = {}  # stage -> version, digest of its weights
        self._parked: dict[bytes, Join] = {}
        self._caught_up: dict[Life, bytes] = {}  # newcomers that hold the current version
        self._closing: Closing | None = None
        self._reduce_failures = 0
        self._acks: dict[Life, float] = {}
        self._bare_since_s: dict[int, float] = {}
        self._told_bare: list[int] = []
        self._published = 0
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
        """A server opened its exchange; answered by `Assign`, after the step if it is closing."""
        if former := self.members.of_peer(peer):
            self._end_life(former.life, "it joined anew", now_s)
        if self._stand is Stand.REDUCING:
            self._parked[peer] = join
        else:
            self._admit(peer, join)
        self._advance(now_s)

    def withdrawn(self, peer: bytes) -> None:
        """A server left before it was answered."""
        self._parked.pop(peer, None)

    def ready(self, life: Life, note: Ready, now_s: float) -> None:
        """A newcomer has caught up with a version of the weights."""
        member = self.members.alive(life)
        if member is None or member.ready or note.version != self.step:
            return
        self._caught_up[life] = note.digest
        self._advance(now_s)

    def lost(self, life: Life, reason: str, now_s: float) -> None:
        """A member's exchange ended, or it did not answer what must be answered."""
        self._dismiss(life, reason, now_s)
        self._advance(now_s)

    def handed(self, to: Life, note: Handed, now_s: float) -> None:
        """A server, or the trainer itself, handed a microbatch to the member `to`."""
        self._step.handed(to, note, alive=self.members.alive(to) is not None)
        self._advance(now_s)

    def counted(self, life: Life, note: Counted, now_s: float) -> None:
        """A server has a microbatch in its sum, or has passed its gradient on."""
        if member := self.members.alive(life):
            claim = self._step.counted(life, member.stage, note, now_s)
            self._punish(life, claim, now_s)
        self._advance(now_s)

    def evaluated(self, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        self._step.evaluated(note, now_s)
        self._advance(now_s)

    def undelivered(self, note: Undelivered, now_s: float) -> None:
        """An attempt got stuck: a road failed, or a server cannot work on it."""
        self._step.undelivered(note)
        self._advance(now_s)

    def fenced(self, life: Life, counted: tuple[int, ...], now_s: float) -> None:
        """A member has promised to count nothing more of the fenced attempts."""
        if member := self.members.alive(life):
            claim = self._step.fenced(life, member.stage, counted, now_s)
            self._punish(life, claim, now_s)
        self._advance(now_s)

    def reduced(self, life: Life, generation: int, answer: Reduced, now_s: float) -> None:
        """A member holds its stage's reduced gradient."""
        if self._closing is not None and generation == self._closing.generation:
            self._closing.reduced(life, answer)
            self._judge(now_s)
        self._advance(now_s)

    def reduce_failed(self, life: Life, generation: int, reason: str, now_s: float) -> None:
        """A member could not finish the reduction; it may not be its fault."""
        if self._closing is None or generation != self._closing.generation:
            return
        if life not in self._closing.silent:
            return  # a newcomer that only listens; it will fetch the weights instead
        self._reduce_failures += 1
        self._closing = None
        self._stand = Stand.FILLING
        self._step.probe()  # whom it could not average with may be dead, and we not know it yet
        if self._reduce_failures > REDUCE_RETRIES:
            self._reduce_failures = 0
            self._dismiss(life, f"it could not average: {reason}", now_s)
        self._advance(now_s)

    def committed(self, life: Life, version: int, digest: bytes, now_s: float) -> None:
        """A member has applied a commit; the digest is empty while it still lacks its weights."""
        self._acks.pop(life, None)
        member = self.members.alive(life)
        if member and member.ready and not self._agrees(member.stage, version, digest):
            self._dismiss(life, "its weights differ from those of its stage", now_s)
        self._advance(now_s)

    def next_deadline_s(self, now_s: float) -> float | None:
        """When to call `on_deadline`, if nothing happens before."""
        flight_s = self._step.next_deadline_s(now_s) if self._stand is Stand.FILLING else None
        bare_s = [since_s + BARE_STAGE_S for since_s in self._bare_since_s.values()]
        times = [self._step.fence_deadline_s, *self._acks.values(), *bare_s]
        times += [self._closing.deadline_s] if self._closing is not None else []
        times += [flight_s] if flight_s is not None else []
        soonest = min(times)
        return soonest if soonest < math.inf and self._stand is not Stand.ENDED else None

    def on_deadline(self, now_s: float) -> None:
        """Act on whatever is due."""
        if now_s >= self._step.fence_deadline_s:
            for life in self._step.silent:
                self._dismiss(life, "it did not answer a fence", now_s)
        if self._closing is not None and now_s >= self._closing.deadline_s:
            for life in self._closing.silent:
                self._dismiss(life, "it did not finish averaging in time", now_s)
        for life in [one for one, due_s in self._acks.items() if now_s >= due_s]:
            self._dismiss(life, "it did not commit in time", now_s)
        if self._stand is Stand.FILLING:
            self._step.late(now_s)
        for stage, since_s in self._bare_since_s.items():
            if now_s >= since_s + BARE_STAGE_S:
                self._finish(
                    f"stage {stage} has no server left that holds its weights", failed=True
                )
        self._advance(now_s)

    def _admit(self, peer: bytes, join: Join) -> None:
        keep = join.version == self.step and self._may_keep(join.stage, join.digest)
        member = self.members.admit(peer, join.address, join.stage, self.step)
        if keep:
            self._caught_up[member.life] = join.digest
        message = Assigned(member.stage, member.life.incarnation, self.step, keep)
        self._actions += [
            act.Assign(member.life, message),
            act.MemberJoined(member.life, member.stage, member.address),
        ]

    def _punish(self, life: Life, claim: Claim | None, now_s: float) -> None:
        """Two living members must not hold one contribution: the later one is out."""
        if claim is Claim.CLASH:
            self._dismiss(life, "it counted a microbatch that another had counted", now_s)

    def _dismiss(self, life: Life, reason: str, now_s: float) -> None:
        if self.members.alive(life):
            self._actions.append(act.Dismiss(life, reason))
            self._end_life(life, reason, now_s)

    def _end_life(self, life: Life, reason: str, now_s: float) -> None:
        """Void a life: what it counted and what went through it is done again."""
        member = self.members.end(life)
        if member is None:
            return
        self._caught_up.pop(life, None)
        self._acks.pop(life, None)
        voided = self._step.end_life(life, now_s)
        if self._stand is Stand.REDUCING and member.ready:
            self._stand, self._closing = Stand.FILLING, None
        if self._stand is not Stand.ENDED:  # everybody leaves then
            self._actions.append(act.MemberLost(life, member.stage, reason, voided))

    def _may_keep(self, stage: int | None, digest: bytes) -> bool:
        """Whether one that rejoins holds the current weights of its stage.

        Where the stage is empty and nobody has said what the last commit made of it, the one that
        comes back is the only one who knows.
        """
        if stage is None or stage >= self._config.stages:
            return False
        version, known = self._digests.get(stage, (-1, b""))
        if version == self.step:
            return known == digest
        return not self.members.ready(stage)

    def _agrees(self, stage: int, version: int, digest: bytes) -> bool:
        """Compare with what the stage is known to hold; the first word on a version is believed."""
        known = self._digests.get(stage)
        if known is None or known[0] < version:
            self._digests[stage] = (version, digest)
            return True
        return known[0] > version or known[1] == digest

    def _advance(self, now_s: float) -> None:
        """Do all that can be done now."""
        if self._stand is Stand.ENDED:
            return
        self._settle_fences(now_s)
        if self._stand in (Stand.GATHERING, Stand.FILLING):
            self._make_ready(now_s)
        if self._stand is Stand.GATHERING and not self._bare(self._config.min_replicas):
            self._stand = Stand.FILLING
            self._actions.append(act.Begun())
        if self._stand is Stand.FILLING:
            self._fill(now_s)
        self._watch_bare_stages(now_s)
        if self._published != self.members.number:
            self._published = self.members.number
            views = parts(self._published, self.members.records())
            self._actions += [act.Publish(view) for view in views]

    def _bare(self, at_least: int) -> list[int]:
        return self.members.bare_stages(at_least)

    def _settle_fences(self, now_s: float) -> None:
        """Close the round that all have answered, and open the next."""
        if settled := self._step.settle(now_s):
            self._actions.append(settled)
        if reason := self._step.hopeless():
            self._finish(reason, failed=True)
        lives = [m.life for m in self.members.ready()]
        work = self._step.fence(lives, now_s)
        if work is not None:
            self._actions += [act.SendFence(life, self.step, work) for life in lives]
            if not lives:
                self._settle_fences(now_s)

    def _make_ready(self, now_s: float) -> None:
        if self._step.fencing:
            return
        waiting, self._caught_up = self._caught_up, {}
        for life, digest in waiting.items():
            member = self.members.alive(life)
            assert member is not None, "a life that ends is no longer promoted"
            version = self._digests.get(member.stage, (-1, b""))[0]
            if version < self.step and self.members.ready(member.stage):
                self._caught_up[life] = digest  # until a member has said what the commit made
            elif self._agrees(member.stage, self.step, digest):
                self.members.make_ready(life)
                self._actions.append(act.MemberReady(life, member.stage))
            else:
                self._dismiss(life, "its weights differ from those of its stage", now_s)

    def _fill(self, now_s: float) -> None:
        """Launch what may be launched; when all is counted, close the step."""
        bare = self._bare(1)
        if not self._step.complete:
            if not bare:
                self._actions += self._step.launch(self._window(), now_s)
        elif self.step >= self._config.steps:
            self._report_evaluation()
            self._finish("all steps are done", failed=False)
        elif not bare:
            self._reduce(now_s)

    def _window(self) -> int:
        """Microbatches in flight at most."""
        doors, servers = len(self.members.ready(0)), len(self.members.ready())
        default = max(WINDOW_PER_DOOR * doors, WINDOW_PER_SERVER * servers)
        return self._config.batch.window or default

    def _report_evaluation(self) -> None:
        if (loss := self._step.held_out_loss) is not None:
            self._actions.append(act.EvaluationDone(self.step, loss))

    def _reduce(self, now_s: float) -> None:
        self._stand = Stand.REDUCING
        self._generation += 1
        ready = self.members.ready()
        optimizer = self._config.optimizer
        self._closing = Closing(self._generation, ready, optimizer, now_s + REDUCE_S)
        for member in [*ready, *self.members.waiting()]:
            message = Reduce(
                self._run,
                self.step,
                self._generation,
                member.life.incarnation,
                self._step.bitmap(member.life),
                tuple(m.life.peer for m in self.members.ready(member.stage)),
                tuple(m.life.peer for m in self.members.waiting(member.stage)),
            )
            self._actions.append(act.SendReduce(member.life, message))

    def _judge(self, now_s: float) -> None:
        """Look whether the reduction is decided."""
        match self._closing and self._closing.verdict():
            case Differ(lives):
                for life in lives:
                    self._dismiss(life, "it averaged to other bytes than its stage", now_s)
            case NotFinite(stage):
                reason = f"the gradient of step {self.step} is not finite in stage {stage}"
                self._finish(f"{reason}: lower the learning rate", failed=True)
            case Decided() as decided:
                self._commit(decided, now_s)
            case _:
                pass

    def _commit(self, decided: Decided, now_s: float) -> None:
        """The point of no return: tell all, and begin the next step."""
        rate = learning_rate(self._config.optimizer, self.step)
        for member in [*self.members.ready(), *self.members.waiting()]:
            message = Commit(
                self._run,
                self.step,
                self._generation,
                member.life.incarnation,
                decided.scale,
                rate,
            )
            self._actions.append(act.SendCommit(member.life, message))
            self._acks[member.life] = now_s + COMMIT_S
        self._report_evaluation()
        norm, size = decided.gradient_norm, self._config.batch.microbatches
        self._actions.append(act.StepDone(self.step, self._step.loss, norm, rate, size))
        self._closing = None
        self._stand = Stand.FILLING
        self._step = Step(self.step + 1, self._config, self._runs_s)
        self._reduce_failures = 0
        self._caught_up = {}  # who had caught up with the version before says so again
        parked, self._parked = self._parked, {}
        for peer, join in parked.items():
            self._admit(peer, join)

    def _watch_bare_stages(self, now_s: float) -> None:
        """Remember since when a stage has had no ready server, once the run has begun."""
        gathering = self._stand is Stand.GATHERING
        bare = self._bare(self._config.min_replicas if gathering else 1)
        if bare != self._told_bare:
            self._told_bare = bare
            self._actions.append(act.Bare(tuple(bare)))
        waiting = [] if gathering else bare
        self._bare_since_s = {stage: self._bare_since_s.get(stage, now_s) for stage in waiting}

    def _finish(self, reason: str, *, failed: bool) -> None:
        if self._stand is not Stand.ENDED:
            self._stand = Stand.ENDED
            self._actions.append(act.Ended(reason, failed))
