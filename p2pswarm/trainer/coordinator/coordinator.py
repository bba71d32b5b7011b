"""The trainer's rules: when to launch, fence, reduce, commit, so that a microbatch counts once.

Errors:  a member that breaks the protocol is evicted with the reason.
Source:  docs/training.md argues why it suffices to fence an attempt whose effect is uncertain, and
         to end the incarnation of a member that cannot be reached.
"""

import math
from collections.abc import Iterable, Mapping
from functools import partial

from p2pswarm.run.chain.record import members_that_fit
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import CannotPrepare, Join, Load, Ready
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Sketch, Undelivered
from p2pswarm.run.messages.step import Committed, Fence, Reduced
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.balance.balance import Balance
from p2pswarm.trainer.balance.codec_choice import CodecTables
from p2pswarm.trainer.balance.move_preparation import StageDecided
from p2pswarm.trainer.balance.stage_coverage import StageCoverage
from p2pswarm.trainer.coordinator.admission import Admission
from p2pswarm.trainer.coordinator.changes import Change, Effects, Rule
from p2pswarm.trainer.coordinator.decision import FROM_THE_FIRST, CoordinatorStart
from p2pswarm.trainer.coordinator.incarnations import (
    CLASH,
    NEVER_GIVEN,
    SILENT,
    Incarnations,
    MemberRecords,
)
from p2pswarm.trainer.coordinator.silence import Silence
from p2pswarm.trainer.coordinator.step_end import StepEnd
from p2pswarm.trainer.members.blame import Blame, FailedAttempt
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.probation import Probation
from p2pswarm.trainer.members.quarantine import Quarantines
from p2pswarm.trainer.members.unreachable_pairs import UnreachablePairs
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Loaded, RunBegun
from p2pswarm.trainer.step.ledger import CountResult
from p2pswarm.trainer.step.reduction import Reductions
from p2pswarm.trainer.step.step import Phase, Step
from p2pswarm.trainer.step.step_batch import StepBatch
from p2pswarm.trainer.step.sums import FormerSums, Suspensions


class Coordinator:
    """One run under one leader, from the first member to the last commit.

    The coordinator is told what happened by its inputs (`on_join`, `on_count`, ...) and answers
    with actions. Each input goes to the part of the run that it is about. What follows from it
    elsewhere is in the rules: each names the changes that it depends on, and is asked after these
    alone.
    """

    def __init__(
        self,
        config: RunConfig,
        run: bytes,
        start: CoordinatorStart = FROM_THE_FIRST,
        secret: bytes = b"",
        codecs: CodecTables | None = None,
        quarantines: Quarantines | None = None,
    ) -> None:
        """`secret`: for spot checks, unknown to members; `codecs`: None if they are fixed."""
        self._config = config
        self._run = run
        members_max = members_that_fit(config.stages, config.batch.microbatches)
        self.members = Membership(config.stages, members_max=members_max, former=start.former)
        phase = Phase.GATHERING if start.gathers else Phase.FILLING
        self._step = Step(start.version, config, secret, phase, start.references)
        self.timeout = self._step.timeout
        """How long attempts take."""
        self._reductions = Reductions(former=start.former, ends=config.tied_ends)
        self.admission = Admission(run, config.stages, self.members, start, codecs)
        self._probation = Probation(start.averaged)
        self.silence = Silence(self.members, self._probation)
        """It hears of each word before the word is acted on."""
        self._balance = Balance(config, self.members)
        self._blame = Blame(self.members, config.stages, config.tied_ends, quarantines)
        self._pairs = UnreachablePairs(self.members)
        loaded = start.version if start.loads or not start.version else -1
        self._coverage = StageCoverage(config, self.members, self._blame.servers, loaded)
        self._suspensions = Suspensions()
        self._former_sums = FormerSums(start.term, start.era, start.averaged)
        records = MemberRecords(
            admission=self.admission,
            silence=self.silence,
            blame=self._blame,
            pairs=self._pairs,
            coverage=self._coverage,
            balance=self._balance,
            probation=self._probation,
            codecs=codecs,
        )
        parts = self.members, self._step, self._reductions, records
        self._incarnations = Incarnations(config, *parts, self._suspensions, self._former_sums)
        self._step_end = StepEnd(config, run, *parts, self._incarnations)
        self._held = False
        self._actions: list[act.Action] = []
        self._asked = True
        """True if any rule is asked."""
        self._now_s = -math.inf
        """Time at which the rules were applied last."""
        self._due_s: float | None = None
        """The first deadline of all parts but the silence of members; None: it may have changed."""
        self._rules = self._in_order()

    def _in_order(self) -> list[Rule]:
        """The rules in the order in which they are applied, each with all that it depends on.

        What a rule changes is seen by those after it, and by those before it with the next input.
        """
        c, someone_else_serves = Change, Change.READY | Change.ENDED
        return [
            Rule(self._incarnations.end_misfits, c.BLAME | c.STATES | c.ENDED),
            Rule(self._incarnations.void_late, c.TIME),
            Rule(self._settle_fences, c.ATTEMPTS | c.ENDED | c.SUMS | c.BLAME | c.PHASE),
            Rule(self._incarnations.admit_parked, c.PHASE),
            Rule(
                self._make_ready,
                someone_else_serves
                | (c.STATES | c.ATTEMPTS | c.SUMS | c.BLAME | c.PAIRS | c.PHASE | c.TIME),
            ),
            Rule(self._begin_run, someone_else_serves),
            Rule(
                self._end_unreachable,
                someone_else_serves | c.PAIRS | c.WORK | c.ATTEMPTS | c.SUMS | c.PHASE,
            ),
            Rule(
                self._go_on,
                someone_else_serves | (c.WORK | c.ATTEMPTS | c.SUMS | c.STATES | c.PHASE | c.TIME),
            ),
            Rule(self._incarnations.watch_suspended, someone_else_serves | c.SUMS),
            Rule(
                self._watch_stages,
                someone_else_serves | c.LEAVING | c.BLAME | c.BEGUN | c.TIME,
            ),
            Rule(
                lambda now_s: Effects([*self._coverage.departures.answers(self.step, now_s)]),
                someone_else_serves | c.LEAVING,
            ),
            Rule(lambda _: Effects([*self._balance.stopped()]), c.MOVES | c.ENDED),
            Rule(
                lambda _: Effects([act.Publish(new)]) if (new := self.members.changes()) else None,
                someone_else_serves | c.JOINED,
            ),
        ]

    # What others ask.

    @property
    def step(self) -> int:
        """The step in progress; equal to the number of steps while the last evaluation runs."""
        return self._step.number

    @property
    def phase(self) -> Phase:
        """Return what the run is doing."""
        return self._step.phase

    @property
    def may_go_back(self) -> bool:
        """True if a stage has lost weights that nobody who comes can load or draw."""
        filling = self._step.phase is Phase.FILLING and not self._held
        return filling and bool(self._coverage.lost(self.step))

    @property
    def beside(self) -> list[tuple[int, int]]:
        """Pairs of stages whose members have to know each other beside those of neighbours."""
        return self._balance.beside

    @property
    def numbered(self) -> int:
        """The highest number that was given to an incarnation or a generation."""
        return max(self.members.numbered, self._reductions.numbered)

    def holds(self, one: Incarnation) -> bool:
        """Return whether the sum of an incarnation is, or may yet be, a part of the step."""
        return self.members.alive(one) is not None or one in self._suspensions

    # Inputs about members.

    def on_join(self, peer: bytes, join: Join, now_s: float) -> None:
        """A server opened its stream; answered by `Assign`, after the step if it is reducing."""
        if self._step.phase is not Phase.ENDED:
            self._follow(self._incarnations.on_join(peer, join, now_s), now_s)

    def on_withdrawal(self, peer: bytes) -> None:
        """A server left before it was answered."""
        self.admission.newcomers.parked.pop(peer, None)

    def on_stream_end(
        self, incarnation: Incarnation, reason: str, now_s: float, *, returns: bool = True
    ) -> None:
        """A member's stream ended, or it did not answer what must be answered.

        `returns`: it may be back in a moment, with its sum.
        """
        effects = self._incarnations.on_stream_end(incarnation, reason, now_s, returns=returns)
        self._follow(effects, now_s)

    def on_probe_answer(self, one: Incarnation, reason: str | None, now_s: float) -> None:
        """A server that was lost was dialled; `reason`: why it is not there, None if it answers."""
        effects = self._incarnations.on_probe_answer(one, reason, now_s)
        if effects is not None:
            self._follow(effects, now_s)

    def on_card(self, peer: bytes, card: bytes) -> None:
        """A peer has another card: if it is a member, others are told."""
        if self.members.on_card(peer, card):
            self._actions.append(act.Publish(self.members.changes()))

    def on_ready(self, by: Incarnation, note: Ready, now_s: float) -> None:
        """A member holds a version of the weights, and says its digest."""
        if note.version == self.step:
            self.admission.on_ready(by, note)
            self._follow(Effects(changes=Change.STATES), now_s)

    def on_proof(self, stage: int, digest: bytes | None, now_s: float) -> None:
        """The state that a stage begins with has this digest; None: nobody can tell."""
        effects = Effects([*self.admission.on_proof(stage, digest)], Change.STATES)
        effects += self._step_end.judge(now_s)
        self._follow(effects, now_s)

    def on_leave_request(self, by: Incarnation, grace_s: float, now_s: float) -> None:
        """A member was asked to leave, and can stay for `grace_s` at most."""
        self._coverage.departures.on_request(by, now_s + grace_s)
        self._follow(Effects(changes=Change.LEAVING), now_s)

    def on_load(self, by: Incarnation, note: Load) -> None:
        """A member reports how busy it is."""
        if member := self.members.alive(by):
            self._balance.on_load(member, note)
            self._step.pace.on_recomputation(by, note.recomputed)
            self._actions.append(Loaded(by, member.stage, note))

    def on_unreachable_peers(self, by: Incarnation, peers: Iterable[bytes], now_s: float) -> None:
        """A member says from which others of its stage nothing comes at present."""
        self._pairs.on_report(by, peers)
        effects = Effects(changes=Change.PAIRS)
        if self._step.phase is Phase.REDUCING:
            effects += self._step_end.end_unreachable(now_s)
        self._follow(effects, now_s)

    def on_observation(self, by: Incarnation, step: int, answer: Reduced) -> None:
        """A member has a reduction of another stage, for which it prepares."""
        self._balance.on_observation(by, step, StageDecided(answer.state, answer.digest))

    def on_preparation_refusal(self, by: Incarnation, note: CannotPrepare, now_s: float) -> None:
        """A member cannot hold another stage beside its own."""
        reports = self._balance.on_preparation_refusal(by, note)
        self._follow(Effects([*reports], Change.MOVES), now_s)

    # Inputs about microbatches.

    def on_handoff(
        self, to: Incarnation, note: Handed, now_s: float, by: Incarnation | None = None
    ) -> None:
        """A microbatch was handed to the member `to`; `by`: who says so, None: the trainer."""
        teller = None
        if by is not None and (teller := self.members.alive(by)) is None:
            return  # what it had is given up already
        member = self.members.alive(to)
        self._step.on_handoff(to, member.stage if member else None, note, now_s, teller)
        if self._due_s is not None and self._step.stealing.next_look_s < self._due_s:
            self._due_s = None
        self._follow_change(Change.NOTHING if member else Change.ATTEMPTS, now_s)

    def on_count(self, by: Incarnation, note: Counted, now_s: float) -> None:
        """A server has a microbatch in its sum, or has passed its gradient on."""
        change, member = Change.NOTHING, self.members.alive(by)
        if member and not member.ready and self._step.never_given(by, note.microbatch):
            self._take(self._incarnations.end_false(by, NEVER_GIVEN, now_s))
        elif member:
            result = self._step.on_count(by, member.stage, note, now_s)
            self._blame.on_count(by, self._step.path(note.microbatch))
            if self._blame.servers.pardoned():
                change = Change.BLAME
            if result is CountResult.CLASH:
                self._take(self._incarnations.end_clash(by, member.stage, note, now_s))
            elif result is CountResult.CHECK:
                change |= Change.WORK | Change.ATTEMPTS
            elif result is CountResult.LAST:
                change |= Change.WORK
            if not member.ready:
                change |= Change.SUMS  # the step waits for what it holds
            if self._pairs.any:
                change |= Change.PAIRS  # its stage may have counted all
        self._follow_change(change, now_s)

    def on_targets(self, step: int, targets: Mapping[int, int], now_s: float) -> None:
        """Our text has so many targets in these microbatches of a step."""
        self._step.on_targets(step, targets)
        self._follow_change(Change.WORK, now_s)

    def on_sketch(self, by: Incarnation, note: Sketch, now_s: float) -> None:
        """A server tells what it took and gave, in a run with spot checks."""
        if (member := self.members.alive(by)) and member.ready:
            self._step.on_sketch(by, member.stage, note)
        self._follow_change(Change.ATTEMPTS, now_s)

    def on_evaluation(self, by: Incarnation, note: Evaluated, now_s: float) -> None:
        """The last stage has the loss of a held-out batch, or the references of answers."""
        member = self.members.alive(by)
        last = member is not None and member.stage == self._config.stages - 1
        kept = self._step.on_evaluation(note, now_s) if last else []
        self._follow(Effects([*kept], Change.WORK), now_s)

    def on_delivery_failure(
        self, note: Undelivered, now_s: float, by: Incarnation | None = None
    ) -> None:
        """An attempt got stuck: a push failed, or a server cannot compute it.

        `by`: the member that says so; None: the trainer itself. One that is not ready was handed
        nothing.
        """
        member = self.members.alive(by) if by is not None else None
        known = by is None or (member is not None and member.ready)
        effects = Effects()
        if known and (failed := self._step.on_delivery_failure(note, by)):
            effects += self._attempt_failed(failed, now_s)
        self._follow(effects, now_s)

    def on_fence_answer(
        self, by: Incarnation, counted: tuple[int, ...], now_s: float, step: int | None = None
    ) -> None:
        """A member has promised to count nothing more of the fenced attempts of a step."""
        effects = Effects(changes=Change.ATTEMPTS)
        if member := self.members.alive(by):
            result = self._step.on_fence_answer(by, member.stage, counted, now_s, step)
            if result is CountResult.CLASH:
                effects += self._incarnations.evict(by, CLASH, now_s)
        self._follow(effects, now_s)

    # Inputs about the end of a step.

    def on_reduction(self, by: Incarnation, generation: int, answer: Reduced, now_s: float) -> None:
        """A member holds its stage's reduced gradient."""
        self._follow(self._step_end.on_reduction(by, generation, answer, now_s), now_s)

    def on_reduction_failure(
        self,
        by: Incarnation,
        generation: int,
        reason: str,
        now_s: float,
        beside: bytes | None = None,
    ) -> None:
        """A member could not finish the reduction; `beside`: the peer that it does not reach."""
        effects = self._step_end.on_reduction_failure(by, generation, reason, now_s, beside)
        if effects is not None:
            self._follow(effects, now_s)

    def on_decision(self, step: int, now_s: float) -> None:
        """The voters have accepted the record of a step: it is committed, whoever dies."""
        self._follow(self._step_end.on_decision(step, now_s), now_s)

    def on_commit_answer(self, by: Incarnation, step: int, answer: Committed, now_s: float) -> None:
        """A member has applied a commit, or keeps it while it still lacks its weights."""
        self._follow(self._step_end.on_commit_answer(by, step, answer, now_s), now_s)

    def on_commit_failure(self, by: Incarnation, step: int, reason: str, now_s: float) -> None:
        """A member did not apply a commit; a newcomer may skip some."""
        self._follow(self._step_end.on_commit_failure(by, step, reason, now_s), now_s)

    def hold(self) -> None:
        """Launch and reduce nothing more; what is being decided is decided still."""
        self._held = True

    def keep_still(self, now_s: float, *, still: bool) -> None:
        """Reduce no step while somebody fetches the weights, which have to be of one version."""
        self.admission.still += 1 if still else -1
        self._follow_change(Change.STATES, now_s)

    def close(self) -> None:
        """The trainer leaves, or leads no more: no more actions, whatever happens."""
        self._step.phase = Phase.ENDED
        self._actions = []

    # What is to be done, and when.

    def drain(self) -> list[act.Action]:
        """Return what to do now; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`, if nothing happens before."""
        if self._step.phase is Phase.ENDED:
            return None
        silence_s = self.silence.next_deadline_s()
        soonest_s = self._first_due_s()
        if silence_s is not None and silence_s < soonest_s:
            soonest_s = silence_s
        return soonest_s if soonest_s < math.inf else None

    def on_deadline(self, now_s: float) -> None:
        """Act on whatever is due."""
        effects = Effects(changes=Change.TIME)
        if any(now_s >= batch.fences.deadline_s for batch in self._step.batches):
            effects += self._incarnations.end_unfenced(now_s)
        spares = partial(self.admission.spares, step=self.step)
        for one in self.silence.to_evict(self._step, self._reductions.reduction, spares, now_s):
            effects += self._incarnations.evict_dead(one, SILENT, now_s)
        effects += self._step_end.on_deadline(now_s)
        for one, reason in self.admission.overdue(now_s):
            effects += self._incarnations.evict(one, reason, now_s)
        for failed in self._step.late(now_s):
            effects += self._attempt_failed(failed, now_s)
        if self._step.phase is Phase.FILLING and now_s >= self._step.stealing.next_look_s:
            effects += self._give_up_stalled(now_s)
        if lost := self._coverage.unserved.hopeless(now_s):
            effects += self._step_end.finish(lost, failed=True)
        effects.actions += self._coverage.unserved.overdue(now_s, self.step)
        self._follow(effects, now_s)

    def _first_due_s(self) -> float:
        if self._due_s is None:
            now_s, reduction = self._now_s, self._reductions.reduction
            times = [
                *(batch.fences.deadline_s for batch in self._step.batches),
                self.admission.next_deadline_s(),
                self._coverage.next_deadline_s(now_s),
                self._suspensions.next_deadline_s(),
                self._former_sums.next_deadline_s(now_s),
                self._blame.servers.next_deadline_s(now_s),
                self._probation.next_deadline_s(now_s),
                reduction.deadline_s if reduction is not None else None,
                *(batch.in_flight.next_deadline_s(now_s) for batch in self._step.filled),
                self._step.stealing.next_look_s if self._step.phase is Phase.FILLING else None,
            ]
            self._due_s = min(time_s for time_s in times if time_s is not None)
        return self._due_s

    # How an input is followed.

    def _follow(self, effects: Effects, now_s: float) -> None:
        """Take what an input has led to, and apply the rules that depend on what it changed."""
        if now_s >= self._first_due_s():
            self._ask(Change.TIME)
        self._take(effects)
        self._apply_rules(now_s)

    def _follow_change(self, change: Change, now_s: float) -> None:
        if now_s >= self._first_due_s():
            change |= Change.TIME
        if change:
            self._ask(change)
        self._apply_rules(now_s)

    def _apply_rules(self, now_s: float) -> None:
        if not self._asked or self._step.phase is Phase.ENDED:
            return
        self._now_s, self._asked = now_s, False
        for rule in self._rules:
            if rule.asked:
                rule.asked = False
                if (effects := rule.apply(now_s)) is not None:
                    self._take(effects)
        self._due_s = None

    def _take(self, effects: Effects) -> None:
        self._actions += effects.actions
        if effects.changes:
            self._ask(effects.changes)

    def _ask(self, change: Change) -> None:
        mask: int = change.value
        for rule in self._rules:
            if rule.mask & mask:
                rule.asked = self._asked = True

    # The rules that are about several parts.

    def _attempt_failed(self, failed: FailedAttempt, now_s: float) -> Effects:
        """Return whose fault it may be that an attempt was given up."""
        reports = self._blame.on_attempt_failure(failed, now_s)
        return Effects([*reports], Change.ATTEMPTS | Change.BLAME)

    def _give_up_stalled(self, now_s: float) -> Effects:
        """Give up what far slower servers have, and do without them if their sums are soon redone.

        Averaging would wait for them, too.
        """
        blame = self._blame
        suspects = self._step.give_up_stalled(self.members.ready, blame.servers.pauses, now_s)
        if suspects is None:
            return Effects()
        reports = [one for each in suspects for one in blame.on_stall(each.one, each.teller, now_s)]
        return Effects([*reports], Change.ATTEMPTS | Change.BLAME)

    def _settle_fences(self, now_s: float) -> Effects:
        """Close a round that all members have answered, and open the next."""
        step = self._step
        effects = Effects([*step.cancellations()])
        for settled in [replayed for batch in step.batches if (replayed := batch.settle(now_s))]:
            effects += Effects([settled], Change.ATTEMPTS)
        if step.phase is not Phase.DECIDING:  # who is lost then changes nothing about the record
            effects += self._incarnations.set_aside(now_s)
        if reason := step.hopeless():
            effects += self._step_end.finish(reason, failed=True)
        for batch in step.batches:
            if batch.fences.due:
                effects += self._fence(batch, now_s)
        return effects

    def _fence(self, batch: StepBatch, now_s: float) -> Effects:
        """Open the next round."""
        effects = Effects(changes=Change.ATTEMPTS)
        incarnations = [m.incarnation for m in self.members.ready()]
        new = [one for one in incarnations if not self._probation.proven(one.peer)]
        work = batch.fences.begin(incarnations, now_s, new)
        for one in incarnations:
            fence = Fence(self._run, batch.number, one.number, work)
            effects.actions.append(act.SendFence(one, fence, batch.fences.limit_s(one)))
        if not incarnations:
            effects += self._settle_fences(now_s)
        return effects

    def _make_ready(self, now_s: float) -> Effects | None:
        """Let newcomers serve that hold what their stage holds, once all fences are answered."""
        step = self._step
        if step.phase is not Phase.GATHERING and not step.filled:
            return None
        effects = Effects()
        if self.admission.digests.settle(now_s):
            effects.changes |= Change.STATES
        if any(batch.fences.asking for batch in step.batches):
            return effects
        newly = self._incarnations.make_ready(now_s)
        if newly.ready:
            effects.actions += newly.ready
            effects.changes |= Change.READY
            if step.filled:
                for stage in {one.stage: None for one in newly.ready}:
                    servers = [member.incarnation for member in self.members.ready(stage)]
                    step.share(stage, servers)
                effects += self._settle_fences(now_s)
        if newly.differing:
            effects += self._incarnations.end_unfit(newly.differing, now_s)
        return effects

    def _begin_run(self, now_s: float) -> Effects | None:
        gathers = self._step.phase is Phase.GATHERING
        if gathers and not self.members.unserved_stages(self._config.min_replicas):
            self._step.phase = Phase.FILLING
            self._probation.begin((one.incarnation.peer for one in self.members.ready()), now_s)
            return Effects([RunBegun()], Change.PHASE | Change.BEGUN)
        return None

    def _end_unreachable(self, now_s: float) -> Effects | None:
        """Before a step is reduced, end one of each two members that could not average."""
        if self._step.phase is not Phase.FILLING or self._held or not self._pairs.any:
            return None
        effects = self._step_end.end_unreachable(now_s)
        if effects.actions:
            effects += self._settle_fences(now_s)
        return effects

    def _go_on(self, now_s: float) -> Effects | None:
        """When all is counted, close the step; launch what the window allows."""
        step = self._step
        if self._held:
            return None
        effects = Effects([*step.to_count()])
        if step.phase is Phase.FILLING and step.complete:
            effects += self._close_step(now_s) or Effects()
            if step.ahead is None:
                return effects
        if not step.filled or self.members.unserved_stages(1) or self._former_sums.awaited(now_s):
            return effects
        entries, servers = self.members.ready_count(0), self.members.ready_count()
        window = self._config.batch.window or step.pace.window(entries, servers)
        self._former_sums.on_launch()
        effects.actions += step.launch(window, now_s)
        return effects

    def _close_step(self, now_s: float) -> Effects | None:
        """Reduce a step of which every stage has counted all, or end the run after the last."""
        step = self._step
        if step.number >= self._config.steps:
            if not self.admission.settled(step.number):
                return None  # the last commit has yet to arrive
            effects = Effects([*step.evaluation()])
            effects += self._step_end.finish("all steps are done", failed=False)
            return effects
        unserved = self.members.unserved_stages(1)
        if unserved or self.admission.awaited() or self._incarnations.holder_missing():
            return None
        return self._step_end.reduce(now_s)

    def _watch_stages(self, now_s: float) -> Effects:
        """Remember since when a stage has had no ready server, once the run has begun."""
        gathering = self._step.phase is Phase.GATHERING
        effects = Effects([*self._coverage.watch(self.step, now_s, gathering=gathering)])
        if move := self._coverage.move(self.step, now_s, gathering=gathering):
            effects += self._incarnations.evict(*move, now_s)
        return effects
