"""The trainer's rules: when to launch, fence, reduce and commit, so that every microbatch counts once.

The coordinator is told what happened (`joined`, `counted`, `lost`, ...) and answers with actions.
It holds the only picture of the step that matters: which living member counts what. Whatever it
cannot be sure of it fences, and whoever cannot be reached is voided; docs/training.md argues why
that suffices.

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
    Work,
)
from p2pswarm.swarm.schedule import learning_rate
from p2pswarm.swarm.view import Life, parts
from p2pswarm.train import actions as act
from p2pswarm.train.closing import Closing, Decided, Differ, NotFinite
from p2pswarm.train.fencing import Fencing
from p2pswarm.train.flight import EVALUATION_BASE, REFUSALS_MAX, Flight, Job, Phase, runs_window
from p2pswarm.train.ledger import Claim, StepLedger
from p2pswarm.train.membership import Membership

REDUCE_S = 120.0  # covers a large stage over a slow link; death is noticed by the link, not by this
COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
BARE_STAGE_S = 30.0  # how long a stage without servers may wait for one that rejoins
REDUCE_RETRIES = 2  # a broken link between two members is dialled anew before one is blamed
WINDOW_PER_SERVER = 4  # enough that a server has work while three others of its are on the wire


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
        self._members = Membership(config.stages)
        self._stand = Stand.GATHERING
        self._step = -1
        self._generation = 0
        self._runs_s = runs_window()
        self._digests: dict[int, tuple[int, bytes]] = {}  # stage -> version, digest of its weights
        self._parked: dict[bytes, Join] = {}
        self._promote: dict[Life, bytes] = {}
        self._fencing = Fencing()
        self._closing: Closing | None = None
        self._reduce_failures = 0
        self._acks: dict[Life, float] = {}
        self._bare_since_s: dict[int, float] = {}
        self._told_bare: list[int] = []
        self._published = 0
        self._actions: list[act.Action] = []
        self._open_step()

    @property
    def step(self) -> int:
        """The step in progress; equal to the number of steps while the last evaluation runs."""
        return self._step

    @property
    def members(self) -> Membership:
        """Who is in the run."""
        return self._members

    def actions(self) -> list[act.Action]:
        """What to do now; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def joined(self, peer: bytes, join: Join, now_s: float) -> None:
        """A server opened its exchange; answered by `Assign`, at the next step if one is closing."""
        if former := self._members.of_peer(peer):
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
        member = self._members.alive(life)
        if member is None or member.ready or note.version != self._step:
            return
        if self._stand in (Stand.REDUCING, Stand.ENDED):
            return  # the commit under way reaches it too, and it will say so again
        self._promote[life] = note.digest
        self._advance(now_s)

    def lost(self, life: Life, reason: str, now_s: float) -> None:
        """A member's exchange ended, or it did not answer what must be answered."""
        self._dismiss(life, reason, now_s)
        self._advance(now_s)

    def handed(self, to: Life, note: Handed, now_s: float) -> None:
        """A server, or the trainer itself, handed a microbatch to the member `to`."""
        job = self._flight.running(note.microbatch, note.attempt)
        if job is None or note.step != self._step:
            return
        if self._members.alive(to):
            job.path.append(to)
        else:
            self._give_up(job, "the server it was handed to is gone")
        self._advance(now_s)

    def counted(self, life: Life, note: Counted, now_s: float) -> None:
        """A server has a microbatch in its sum, or has passed its gradient on."""
        member = self._members.alive(life)
        if member is None or note.step != self._step:
            return
        if note.loss is not None:
            self._losses[note.microbatch] = note.loss
        if note.counted:
            self._enter(note.microbatch, member.stage, life, now_s)
        self._advance(now_s)

    def evaluated(self, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch."""
        job = self._flight.job(note.microbatch)
        if job is None or note.step != self._step or job.work is not Work.EVALUATE:
            return
        if job.phase is not Phase.DONE:
            self._losses[note.microbatch] = note.loss
            self._flight.finish(job, now_s)
        self._advance(now_s)

    def undelivered(self, note: Undelivered, now_s: float) -> None:
        """An attempt got stuck: a road failed, or a server cannot work on it."""
        job = self._flight.running(note.microbatch, note.attempt)
        if job is not None and note.step == self._step:
            job.refusals += 1
            self._give_up(job, note.reason)
        self._advance(now_s)

    def fenced(self, life: Life, counted: tuple[int, ...], now_s: float) -> None:
        """A member has promised to count nothing more of the fenced attempts."""
        member = self._members.alive(life)
        if member is None or not self._fencing.heard(life):
            return
        for microbatch in counted:
            self._enter(microbatch, member.stage, life, now_s)
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
        if self._reduce_failures > REDUCE_RETRIES:
            self._reduce_failures = 0
            self._dismiss(life, f"it could not average: {reason}", now_s)
        self._advance(now_s)

    def committed(self, life: Life, version: int, digest: bytes, now_s: float) -> None:
        """A member has applied a commit; the digest is empty while it still lacks its weights."""
        self._acks.pop(life, None)
        member = self._members.alive(life)
        if member and member.ready and not self._agrees(member.stage, version, digest):
            self._dismiss(life, "its weights differ from those of its stage", now_s)
        self._advance(now_s)

    def next_deadline_s(self, now_s: float) -> float | None:
        """When to call `on_deadline`, if nothing happens before."""
        flight_s = self._flight.next_deadline_s(now_s) if self._stand is Stand.FILLING else None
        bare_s = [since_s + BARE_STAGE_S for since_s in self._bare_since_s.values()]
        times = [self._fencing.deadline_s, *self._acks.values(), *bare_s]
        times += [self._closing.deadline_s] if self._closing is not None else []
        times += [flight_s] if flight_s is not None else []
        soonest = min(times)
        return soonest if soonest < math.inf and self._stand is not Stand.ENDED else None

    def on_deadline(self, now_s: float) -> None:
        """Act on whatever is due."""
        if now_s >= self._fencing.deadline_s:
            for life in self._fencing.silent:
                self._dismiss(life, "it did not answer a fence", now_s)
        if self._closing is not None and now_s >= self._closing.deadline_s:
            for life in self._closing.silent:
                self._dismiss(life, "it did not finish averaging in time", now_s)
        for life in [one for one, due_s in self._acks.items() if now_s >= due_s]:
            self._dismiss(life, "it did not commit in time", now_s)
        if self._stand is Stand.FILLING:
            for job in self._flight.late(now_s):
                self._give_up(job, "it was under way for too long")
        for stage, since_s in self._bare_since_s.items():
            if now_s >= since_s + BARE_STAGE_S:
                self._finish(
                    f"stage {stage} has no server left that holds its weights", failed=True
                )
        self._advance(now_s)

    def _open_step(self) -> None:
        """Lay out the next step's jobs; past the last one only the evaluation is left."""
        self._step += 1
        batch = self._config.batch
        last = self._step >= self._config.steps
        size = 0 if last else batch.microbatches
        first = self._step * batch.microbatches
        self._ledger = StepLedger(first, size, self._config.stages)
        every = batch.evaluate_every
        evaluate = every > 0 and (last or self._step % every == 0)
        held_out = range(batch.evaluate_microbatches if evaluate else 0)
        jobs = [Job(EVALUATION_BASE + i, Work.EVALUATE) for i in held_out]
        jobs += [Job(first + i, Work.FORWARD) for i in range(size)]
        self._flight = Flight(jobs, self._runs_s)
        self._losses: dict[int, float] = {}
        self._reduce_failures = 0
        self._promote = {}  # who had caught up with the version before says so again

    def _admit(self, peer: bytes, join: Join) -> None:
        keep = join.version == self._step and self._may_keep(join.stage, join.digest)
        member = self._members.admit(peer, join.address, join.stage, self._step)
        if keep:
            self._promote[member.life] = join.digest
        message = Assigned(member.stage, member.life.incarnation, self._step, keep)
        self._actions += [
            act.Assign(member.life, message),
            act.MemberJoined(member.life, member.stage, member.address),
        ]

    def _enter(self, microbatch: int, stage: int, life: Life, now_s: float) -> None:
        """Enter a contribution, and finish the job if it was the last one missing."""
        claim = self._ledger.count(microbatch, stage, life)
        if claim is Claim.CLASH:
            self._dismiss(life, f"it counted microbatch {microbatch} a second time", now_s)
        job = self._flight.job(microbatch)
        if claim is Claim.NEW and job and not self._ledger.missing(microbatch):
            self._flight.finish(job, now_s)

    def _give_up(self, job: Job, reason: str) -> None:
        job.reason = reason
        self._fencing.add(job)

    def _dismiss(self, life: Life, reason: str, now_s: float) -> None:
        if self._members.alive(life):
            self._actions.append(act.Dismiss(life, reason))
            self._end_life(life, reason, now_s)

    def _end_life(self, life: Life, reason: str, now_s: float) -> None:
        """Void a life: what it counted and what went through it is done again."""
        member = self._members.end(life)
        if member is None:
            return
        self._promote.pop(life, None)
        self._acks.pop(life, None)
        self._fencing.heard(life)
        for job in self._flight.touched_by(life):
            self._give_up(job, f"{life} is gone")
        voided = self._ledger.void(life)
        for microbatch in voided:
            job = self._flight.job(microbatch)
            assert job is not None, "a ledger and a flight are of one step"
            if job.phase is Phase.RUNNING:
                self._give_up(job, f"{life} is gone")
            elif job.phase is Phase.DONE:  # every stage had counted: nothing to fence
                self._flight.again(job, now_s)
        if self._stand is Stand.REDUCING and member.ready:
            self._stand, self._closing = Stand.FILLING, None
        if self._stand is not Stand.ENDED:  # everybody leaves then
            self._actions.append(act.MemberLost(life, member.stage, reason, len(voided)))

    def _may_keep(self, stage: int | None, digest: bytes) -> bool:
        """Whether one that rejoins holds the current weights of its stage.

        Where the stage is empty and nobody has said what the last commit made of it, the one that
        comes back is the only one who knows.
        """
        if stage is None or stage >= self._config.stages:
            return False
        version, known = self._digests.get(stage, (-1, b""))
        if version == self._step:
            return known == digest
        return not self._members.ready(stage)

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
        if self._published != self._members.number:
            self._published = self._members.number
            views = parts(self._published, self._members.records())
            self._actions += [act.Publish(view) for view in views]

    def _bare(self, at_least: int) -> list[int]:
        return self._members.bare_stages(at_least)

    def _settle_fences(self, now_s: float) -> None:
        """Close the round that all have answered, and open the next."""
        settled = self._fencing.settled()
        for job in settled:
            if job.work is not Work.EVALUATE and not self._ledger.missing(job.microbatch):
                self._flight.finish(job, now_s)
            elif job.refusals >= REFUSALS_MAX:
                where = f"microbatch {job.microbatch} of step {self._step}"
                self._finish(f"{where} failed {REFUSALS_MAX} times: {job.reason}", failed=True)
            else:
                self._flight.again(job, now_s)
        if settled:
            numbers = tuple(job.microbatch for job in settled)
            self._actions.append(act.Replayed(self._step, numbers, settled[0].reason))
        if not self._fencing.open and not self._fencing.idle:
            lives = [m.life for m in self._members.ready()]
            work = self._fencing.begin(lives, now_s)
            self._actions += [act.SendFence(life, self._step, work) for life in lives]
            if not lives:
                self._settle_fences(now_s)

    def _make_ready(self, now_s: float) -> None:
        if self._fencing.open:
            return
        waiting, self._promote = self._promote, {}
        for life, digest in waiting.items():
            member = self._members.alive(life)
            assert member is not None, "a life that ends is no longer promoted"
            version = self._digests.get(member.stage, (-1, b""))[0]
            if version < self._step and self._members.ready(member.stage):
                self._promote[life] = digest  # until a member has said what the commit made
            elif self._agrees(member.stage, self._step, digest):
                self._members.make_ready(life)
                self._actions.append(act.MemberReady(life, member.stage))
            else:
                self._dismiss(life, "its weights differ from those of its stage", now_s)

    def _fill(self, now_s: float) -> None:
        """Launch what may be launched; when all is counted, close the step."""
        if self._flight.finished and self._fencing.idle and self._ledger.complete:
            self._report_evaluation()
            if self._step >= self._config.steps:
                self._finish("all steps are done", failed=False)
            elif not self._bare(1):
                self._reduce(now_s)
            return
        if self._bare(1):
            return
        servers = len(self._members.ready(0))
        window = self._config.batch.window or WINDOW_PER_SERVER * servers
        while ready := self._flight.launch(window, now_s):
            training = ready.work is Work.FORWARD
            counting = self._ledger.missing(ready.microbatch) if training else ()
            self._actions.append(
                act.Launch(self._step, ready.microbatch, ready.attempt, ready.work, counting)
            )

    def _report_evaluation(self) -> None:
        losses = [loss for m, loss in self._losses.items() if m >= EVALUATION_BASE]
        if losses:
            self._actions.append(act.EvaluationDone(self._step, math.fsum(losses) / len(losses)))
            self._losses = {m: x for m, x in self._losses.items() if m < EVALUATION_BASE}

    def _reduce(self, now_s: float) -> None:
        self._stand = Stand.REDUCING
        self._generation += 1
        ready = self._members.ready()
        optimizer = self._config.optimizer
        self._closing = Closing(self._generation, ready, optimizer, now_s + REDUCE_S)
        for member in [*ready, *self._members.waiting()]:
            message = Reduce(
                self._run,
                self._step,
                self._generation,
                member.life.incarnation,
                self._ledger.bitmap(member.life),
                tuple(m.life.peer for m in self._members.ready(member.stage)),
                tuple(m.life.peer for m in self._members.waiting(member.stage)),
            )
            self._actions.append(act.SendReduce(member.life, message))

    def _judge(self, now_s: float) -> None:
        """Look whether the reduction is decided."""
        match self._closing and self._closing.verdict():
            case Differ(lives):
                for life in lives:
                    self._dismiss(life, "it averaged to other bytes than its stage", now_s)
            case NotFinite(stage):
                reason = f"the gradient of step {self._step} is not finite in stage {stage}"
                self._finish(f"{reason}: lower the learning rate", failed=True)
            case Decided() as decided:
                self._commit(decided, now_s)
            case _:
                pass

    def _commit(self, decided: Decided, now_s: float) -> None:
        """The point of no return: tell all, and begin the next step."""
        rate = learning_rate(self._config.optimizer, self._step)
        for member in [*self._members.ready(), *self._members.waiting()]:
            message = Commit(
                self._run,
                self._step,
                self._generation,
                member.life.incarnation,
                decided.scale,
                rate,
            )
            self._actions.append(act.SendCommit(member.life, message))
            self._acks[member.life] = now_s + COMMIT_S
        loss = math.fsum(self._losses.values()) / len(self._losses)
        self._actions.append(
            act.StepDone(self._step, loss, decided.gradient_norm, rate, len(self._losses))
        )
        self._closing = None
        self._stand = Stand.FILLING
        self._open_step()
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
