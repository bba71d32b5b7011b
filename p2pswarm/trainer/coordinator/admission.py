"""Admission: who joins with which weights, who has applied a commit, and who becomes ready."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush

from p2pswarm.base.errors import Unusable
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import Assigned, Join, Ready
from p2pswarm.run.messages.step import Committed, NearbySteps
from p2pswarm.trainer.balance.codec_choice import CodecTables
from p2pswarm.trainer.coordinator.changes import Change, Effects
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, DecidedStep, Welcome
from p2pswarm.trainer.members.membership import AnswerLimits, Member, Membership
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import BeganWrong, DigestsTied, MemberJoined, MemberReady
from p2pswarm.trainer.step.reduction import Decided, Reduction
from p2pswarm.trainer.step.stage_digests import StageDigests, as_recorded

READY_S = 3600.0  # 10 GB at 22 Mbit/s
READY_MAX_S = 86_400.0
LOOK_AGAIN_S = 60.0  # at one that waits for others: the weights of its stage, or a fence


class Newcomers:
    """Peers that have joined and are not ready yet.

    A newcomer has a place among the members of its stage, and they send it all that they reduce.
    One that never becomes ready must not keep it for ever. A large state over a slow link takes
    hours, so its time is long, and twice as long after each failure; it keeps what it has fetched.
    """

    def __init__(self) -> None:
        self.parked: dict[bytes, Join] = {}
        """The newest `Join` of each peer that waits until the step has closed."""
        self.caught_up: dict[Incarnation, bytes] = {}
        """The newcomers that have caught up, with their weights' digests."""
        self._limits = AnswerLimits(READY_S, READY_MAX_S)
        self._on_their_way: set[Incarnation] = set()
        self._looks: list[tuple[float, Incarnation]] = []
        """A heap: time to look whether a newcomer has taken too long."""

    def on_start(self, incarnation: Incarnation, now_s: float) -> None:
        """A newcomer has a place now, and is on its way to the weights."""
        self._on_their_way.add(incarnation)
        heappush(self._looks, (now_s + self._limits.limit_s(incarnation.peer), incarnation))

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The newcomers that have taken too long; they are looked at again."""
        late = []
        while self._looks and self._looks[0][0] <= now_s:
            _, incarnation = heappop(self._looks)
            if incarnation in self._on_their_way:
                heappush(self._looks, (now_s + LOOK_AGAIN_S, incarnation))
                if incarnation not in self.caught_up:
                    late.append(incarnation)
        return late

    def on_timeout(self, incarnation: Incarnation) -> None:
        """A newcomer loses its place; its peer has longer the next time."""
        self._limits.on_timeout(incarnation.peer)

    def next_deadline_s(self) -> float | None:
        """Return when to ask who is overdue."""
        return self._looks[0][0] if self._looks else None

    def on_catch_up(self, incarnation: Incarnation, digest: bytes) -> None:
        """A newcomer holds the weights of the current version."""
        self.caught_up[incarnation] = digest

    def candidates(self) -> list[tuple[Incarnation, bytes]]:
        """Return the newcomers that have caught up; drained by reading."""
        drained, self.caught_up = list(self.caught_up.items()), {}
        return drained

    def on_end(self, incarnation: Incarnation) -> None:
        """A newcomer is ready, or its incarnation is over."""
        self._on_their_way.discard(incarnation)
        self.caught_up.pop(incarnation, None)


COMMIT_S = 60.0  # an optimizer step on a slow machine, with its digest
COMMIT_MAX_S = 3600.0  # of a machine that was too slow before
SKIPS_MAX = 3  # commits skipped with no `Ready` between: the newcomer does not catch up


class Commits:
    """The acknowledgements that are due, by member and step.

    Only the members that added their sums must apply a commit. A newcomer may skip one, because
    nobody waits for it: it fetches a later version, and its `Ready` says when it has caught up. A
    newcomer that skips several in a row will not catch up.
    """

    def __init__(self) -> None:
        self._limits = AnswerLimits(COMMIT_S, COMMIT_MAX_S)
        self._asked_s: dict[tuple[Incarnation, int], float] = {}
        self._next_s = math.inf
        """Time before which nobody is overdue."""
        self._skips: dict[Incarnation, int] = {}

    def on_decision(self, step: int, members: Iterable[Incarnation], now_s: float) -> None:
        """The commit of a step goes out; `members` must apply it."""
        if not self._asked_s:
            self._next_s = math.inf
        for member in members:
            self._asked_s[member, step] = now_s
            self._next_s = min(self._next_s, now_s + self._limits.limit_s(member.peer))

    def on_catch_up(self, member: Incarnation) -> None:
        """A newcomer holds the current version: what it skipped before is forgotten."""
        self._skips.pop(member, None)

    def on_answer(self, member: Incarnation, step: int, now_s: float) -> bool:
        """A member has applied a commit; returns whether it had to."""
        self._skips.pop(member, None)
        asked_s = self._asked_s.pop((member, step), None)
        if asked_s is not None:
            self._limits.on_answer(member.peer, now_s - asked_s)
        return asked_s is not None

    def on_failure(self, member: Incarnation, step: int) -> bool:
        """A member did not apply a commit; returns whether its incarnation must end."""
        if self._asked_s.pop((member, step), None) is not None:
            return True
        self._skips[member] = self._skips.get(member, 0) + 1
        return self._skips[member] >= SKIPS_MAX

    def on_end(self, member: Incarnation) -> None:
        """An incarnation is over: nothing more is expected from it."""
        self._skips.pop(member, None)
        self._asked_s = {key: at_s for key, at_s in self._asked_s.items() if key[0] != member}

    def owing(self) -> list[Incarnation]:
        """The members from which an answer is due."""
        return [member for member, _ in self._asked_s]

    def overdue(self, now_s: float) -> list[Incarnation]:
        """The members that should have answered by now; they have longer the next time."""
        if now_s < self._next_s:
            return []
        late, self._next_s = [], math.inf
        for (member, _), asked_s in self._asked_s.items():
            due_s = asked_s + self._limits.limit_s(member.peer)
            if due_s <= now_s:
                late.append(member)
            else:
                self._next_s = min(self._next_s, due_s)
        for member in late:
            self._limits.on_timeout(member.peer)
        return late

    def next_deadline_s(self) -> float | None:
        """Return when to ask who is overdue."""
        return self._next_s if self._asked_s else None


FOLLOWED = b""  # instead of a digest: it has applied the last commit to what that applies to


@dataclass(frozen=True, slots=True)
class NewlyReady:
    """The outcome for the newcomers that had caught up."""

    ready: list[MemberReady]
    differing: list[Incarnation]
    """Their weights are not those of their stage."""


class Admission:
    """The way of every member from its `Join` to ready, and from commit to commit.

    A server that holds the current weights keeps them. One that holds the weights before the last
    commit, and the gradient that this commit applies, keeps both and is sent the commit again. All
    others download. A newcomer becomes ready once it holds what its stage holds, by its digest.
    One that was sent here because it had shown that it follows the stage's commits need not wait
    for that: it is ready when it has applied the last one, and says the digest later, as any
    member does.
    """

    def __init__(
        self,
        run: bytes,
        stages: int,
        members: Membership,
        start: CoordinatorStart,
        codecs: CodecTables | None,
    ) -> None:
        self._run = run
        self._stages = stages
        self._members = members
        self._start = start
        self._codecs = codecs
        self.digests = StageDigests()
        self._last = start.last
        for stage, digest in start.states.items():
            self.digests.on_record(stage, start.version, digest)
        if self._last is not None:
            self._recall(self._last, range(stages))
        if start.provable:
            for stage in range(stages):
                self.digests.prove(stage, start.version)
        self._began_with: dict[int, bytes] = {}
        """States that the first decided step was computed with, by its record."""
        self.newcomers = Newcomers()
        self._follows: set[Incarnation] = set()
        """Newcomers known to hold just what the last commit applies to."""
        self.commits = Commits()
        self.still = 0
        """Downloads of the weights under way: no step is reduced meanwhile."""

    def admit(
        self,
        peer: bytes,
        join: Join,
        step: int,
        now_s: float,
        *,
        keep_sum: bool = False,
        proved: bool = False,
    ) -> Effects:
        """Begin an incarnation; what to tell it.

        `keep_sum`: it keeps its sum if it keeps its weights. `proved`: it has shown its weights.
        """
        welcome = self._welcome(join, step)
        try:
            member = self._members.admit(peer, join.address, join.stage, step, pinned=join.pinned)
            self._members.on_card(peer, join.card)
        except Unusable as error:
            return Effects([act.Decline(peer, str(error))], Change.JOINED)
        to = member.incarnation
        self.newcomers.on_start(to, now_s)
        if member.stage != join.stage:
            welcome = Welcome.FETCH
        keep = welcome is not Welcome.FETCH
        known = self.digests.known(member.stage, step) or b""
        loads = self._start.loads and step == self._start.version and not keep
        assigned = Assigned(
            member.stage,
            to.number,
            step,
            keep,
            known,
            self._start.era,
            loads=loads,
            keep_sum=keep_sum and welcome is Welcome.KEEP,
            codecs=self._nearby(member.stage),
        )
        actions: list[act.Action] = [
            act.Assign(to, assigned),
            MemberJoined(to, member.stage, member.address),
        ]
        resent = self._last if welcome is Welcome.RESEND else None
        changed = self.digests.on_join(to, member.stage, step, reports=keep)
        if welcome is Welcome.KEEP:
            self.digests.on_claim(member.stage, step, to, join.digest)
            self.newcomers.on_catch_up(to, join.digest)
        elif resent is not None:
            self.commits.on_decision(resent.step, [to], now_s)
            if proved and join.stage in resent.states:
                self._follows.add(to)
            actions.append(act.SendCommit(to, resent.commit(self._run, join, to)))
        states = Change.STATES if changed or resent is not None else Change.NOTHING
        return Effects(actions, Change.JOINED | states)

    def on_end(self, member: Member) -> None:
        """An incarnation is over."""
        self.newcomers.on_end(member.incarnation)
        self._follows.discard(member.incarnation)
        self.commits.on_end(member.incarnation)
        self.digests.on_end(member.incarnation, served=member.ready)

    def on_decision(
        self, step: int, reduction: Reduction, decided: Decided, rate: float, now_s: float
    ) -> list[act.SendCommit]:
        """A step is decided: remember its commit, and tell it to all that have the gradient."""
        states = {stage: as_recorded(digest) for stage, digest in decided.states.items()}
        gradients = {stage: as_recorded(one) for stage, one in reduction.gradients.items()}
        groups = {stage: reduction.group(stage) for stage in range(self._stages)}
        peers = {stage: tuple(one.peer for one in group) for stage, group in groups.items()}
        if step == self._start.version:
            self._began_with = states
        self._last = DecidedStep(step, decided.scale, rate, gradients, states, peers)
        for stage, group in groups.items():
            living = [one for one in group if self._members.alive(one)]
            ready = (member.incarnation for member in self._members.ready(stage))
            living += [one for one in ready if one not in group]  # it has become that meanwhile
            self.commits.on_decision(step, living, now_s)
            self.digests.expect(stage, step + 1, living)
            if not living:
                self._recall(self._last, [stage])
        self.newcomers.candidates()  # drop them: they catch up anew with the new version
        self._follows.clear()
        commits = reduction.commits(self._run, decided, rate, self._nearby)
        return [one for one in commits if self._members.alive(one.incarnation)]

    def _nearby(self, stage: int) -> NearbySteps:
        """What the servers of a stage are told of the codecs of this step and of the next."""
        return () if self._codecs is None else self._codecs.nearby(stage)

    def on_ready(self, by: Incarnation, note: Ready) -> None:
        """A member says the digest of the current version, which it holds."""
        member = self._members.alive(by)
        if member is None:
            return
        self.digests.on_report(member.stage, note.version, by, note.digest)
        if not member.ready:
            self.digests.on_claim(member.stage, note.version, by, note.digest)
            self.newcomers.on_catch_up(by, note.digest)
            self.commits.on_catch_up(by)

    def on_state(self, by: Incarnation, step: int, state: bytes) -> None:
        """A member says the digest of the state that it computed a step with."""
        if member := self._members.alive(by):
            self.digests.on_report(member.stage, step, by, state)

    def overdue(self, now_s: float) -> list[tuple[Incarnation, str]]:
        """The members whose incarnation must end because they took too long, and why.

        A newcomer keeps its place while nobody else of its stage has the weights.
        """
        reasons = [(one, "it did not commit in time") for one in self.commits.overdue(now_s)]
        for one in self.newcomers.overdue(now_s):
            member = self._members.alive(one)
            if member is not None and self._members.ready_count(member.stage):
                self.newcomers.on_timeout(one)
                reasons.append((one, "it did not get the weights of its stage in time"))
        return reasons

    def on_commit_answer(
        self, by: Incarnation, step: int, answer: Committed, now_s: float
    ) -> str | None:
        """A member has answered a commit; returns why its incarnation must end, if it must."""
        owed = self.commits.on_answer(by, step, now_s)
        member = self._members.alive(by)
        if member is None or not owed:
            return None  # a newcomer that lacks its weights: its `Ready` counts instead
        if answer.version != step + 1:
            return f"it made version {answer.version} of step {step}"
        if not answer.applied:
            return "it has lost the weights that it was to commit to"
        if by in self._follows and not member.ready and by not in self.newcomers.caught_up:
            self.newcomers.on_catch_up(by, FOLLOWED)
        return None

    def tied(self) -> list[DigestsTied]:
        """Stages where nobody can tell who is right; drained by reading."""
        return [DigestsTied(stage, version) for stage, version in self.digests.tied()]

    def on_proof(self, stage: int, digest: bytes | None) -> list[BeganWrong]:
        """The state that a stage begins with has this digest, whoever says another.

        If it cannot be proved (None), what most members say stands.
        """
        self.digests.on_proof(stage, self._start.version, digest)
        if digest is None:
            return []
        right = as_recorded(digest)
        return [BeganWrong(stage)] if self._began_with.get(stage, right) != right else []

    def next_deadline_s(self) -> float | None:
        """Return when somebody has not committed, caught up or come back in time."""
        limits = self.commits, self.newcomers, self.digests
        times = [limit.next_deadline_s() for limit in limits]
        return min((time_s for time_s in times if time_s is not None), default=None)

    def settled(self, version: int) -> bool:
        """Return whether some member of each stage is known to hold exactly `version`."""
        return all(self.digests.known(stage, version) is not None for stage in range(self._stages))

    def awaited(self) -> bool:
        """Return whether the step may not be reduced yet.

        A ready member has yet to apply the commit before, the weights are being fetched, or it is
        not clear which first weights are right.
        """
        if self.still or self.digests.disputed():
            return True
        living = (self._members.alive(one) for one in self.commits.owing())
        return any(member is not None and member.ready for member in living)

    def make_ready(
        self,
        step: int,
        avoided: Callable[[bytes], bool],
        returned: Callable[[Incarnation], bool] = lambda _one: False,
    ) -> NewlyReady:
        """Let routers choose the newcomers that hold what their stage holds.

        `avoided`: the peers that are to wait as long as others serve their stage; `returned`: the
        newcomers that have served in this step already, and whose sums the step needs.
        """
        outcome = NewlyReady([], [])
        for incarnation, digest in self.newcomers.candidates():
            member = self._members.alive(incarnation)
            assert member is not None, "an incarnation that ended is no candidate"
            others = self._members.ready(member.stage)
            known = self.digests.known(member.stage, step)
            if returned(incarnation) and known in (None, digest):
                outcome.ready.append(self._ready(member))  # as it was: it is asked when it reduces
            elif (known is None and digest != FOLLOWED) or (others and avoided(incarnation.peer)):
                # wait until the stage's digest stands, and no better one serves
                self.newcomers.on_catch_up(incarnation, digest)
            elif digest in (known, FOLLOWED):
                outcome.ready.append(self._ready(member))
            else:
                outcome.differing.append(incarnation)
        return outcome

    def _ready(self, member: Member) -> MemberReady:
        self._members.make_ready(member.incarnation)
        self.newcomers.on_end(member.incarnation)
        return MemberReady(member.incarnation, member.stage)

    def spares(self, stage: int, step: int) -> list[Incarnation]:
        """Return the members that could be ready at once, but wait while others are."""
        known = self.digests.known(stage, step)
        caught_up = self.newcomers.caught_up.items()
        members = (self._members.alive(one) for one, has in caught_up if has in (known, FOLLOWED))
        return [one.incarnation for one in members if one is not None and one.stage == stage]

    def _welcome(self, join: Join, step: int) -> Welcome:
        """Return how a server that joins comes to the weights of version `step`.

        A digest that is not known yet is kept for now; the server is ready only when it stands.
        Of weights of another era, only those whose very digest is known are the run's.
        """
        if join.stage is None or join.stage >= self._stages:
            return Welcome.FETCH
        known = self.digests.known(join.stage, step)
        ours = join.era == self._start.era
        if join.version == step and (known == join.digest or (known is None and ours)):
            return Welcome.KEEP
        if ours and join.held and self._last is not None and self._last.applies_to(join):
            return Welcome.RESEND
        return Welcome.FETCH

    def _recall(self, last: DecidedStep, stages: Iterable[int]) -> None:
        """Ask those who averaged the last step for what they made of it, as they come back."""
        for stage in stages:
            self.digests.recall(stage, last.step + 1, last.members.get(stage, ()))
