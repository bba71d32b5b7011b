"""Stage coverage: which servers may leave a stage, which stages lack one, and which move there."""

import math

from p2pswarm.progress.events import Waiting
from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import RunConfig
from p2pswarm.trainer.members.blame import FailingServers
from p2pswarm.trainer.members.membership import Member, Membership
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import LastLeaves, WeightsSought

UNSERVED_STAGE_S = 30.0  # how long `on_stage_lost = "end"` waits for a server that rejoins
REWIND_S = 60.0  # the default of run.rewind_after_s
TELL_S = 5.0  # a server that has lost its link is back by then: people need not hear of it


class UnservedStages:
    """The stages that lack servers now, and with them their weights.

    The weights may come back: a server that froze, or lost its link, still holds them. Meanwhile
    nothing is launched, and all others keep what they have.
    """

    def __init__(self, on_stage_lost: str, rewind_s: float = REWIND_S) -> None:
        """`on_stage_lost`: "wait" for ever, "rewind" after `rewind_s`, or "end"."""
        self._answer = on_stage_lost
        self._limit_s = rewind_s if on_stage_lost == "rewind" else UNSERVED_STAGE_S
        self._asked_s = -math.inf
        self._copies_reported = False
        self._since_s: dict[int, float] = {}
        self._reported: tuple[int, ...] = ()
        self._last: dict[int, tuple[Incarnation, str]] = {}

    def on_end(self, member: Member) -> None:
        """A server that held the current weights of its stage is gone."""
        self._last[member.stage] = member.incarnation, member.address

    def watch(
        self, stages: list[int], version: int, now_s: float, *, counting: bool
    ) -> list[Waiting | WeightsSought]:
        """Return what to tell if other stages lack servers; `counting`: the run has begun."""
        waiting = stages if counting else []
        lost = [stage for stage in waiting if stage not in self._since_s]
        self._since_s = {stage: self._since_s.get(stage, now_s) for stage in waiting}
        self._copies_reported = self._copies_reported and bool(waiting)
        if tuple(stages) == self._reported:
            return []
        self._reported = tuple(stages)
        sought = [
            WeightsSought(stage, version, *self._last[stage])
            for stage in lost
            if stage in self._last
        ]
        return [Waiting(self._reported), *sought]

    def hopeless(self, now_s: float) -> str | None:
        """Return why the run ends, if a stage has waited for too long."""
        if self._answer != "end" or now_s < self._overdue_s:
            return None
        stage = min(self._since_s, key=lambda stage: self._since_s[stage])
        return f"stage {stage} has no server left that holds its weights"

    def overdue(self, now_s: float, version: int) -> list[act.SeekCopy | act.GoBack]:
        """Return what to do about stages that have waited for long; going back is asked again."""
        asked: list[act.SeekCopy | act.GoBack] = []
        rewinds = self._answer == "rewind"
        if not self._copies_reported and now_s >= self._tell_s:
            self._copies_reported = True
            rewind_s = max(0.0, self._overdue_s - now_s) if rewinds else None
            asked.append(act.SeekCopy(tuple(sorted(self._since_s)), version, rewind_s))
        if rewinds and now_s >= self._overdue_s:
            self._asked_s = now_s
            asked.append(act.GoBack())
        return asked

    def next_deadline_s(self) -> float | None:
        """Return when something is to be told or done about them; None if it is not."""
        due_s = [] if self._answer == "wait" else [self._overdue_s]
        due_s += [] if self._copies_reported else [self._tell_s]
        soonest_s = min(due_s, default=math.inf)
        return soonest_s if soonest_s < math.inf else None

    @property
    def _tell_s(self) -> float:
        return min(self._since_s.values(), default=math.inf) + TELL_S

    @property
    def _overdue_s(self) -> float:
        """Return when the first of them has waited for too long."""
        return max(min(self._since_s.values(), default=math.inf), self._asked_s) + self._limit_s


class Departures:
    """The members that were asked to leave and are still here.

    Several can be asked in one moment, and each sees the others still there. So one place decides:
    a member may go as long as one of its stage stays that was not asked to leave. If all were, one
    has to stay until another server has the weights, or its time is over: the one with the most
    time, of those that were not told that they may go. Those may be gone already, though their
    streams have not ended here yet.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._answers: dict[Incarnation, bool] = {}

    def on_request(self, member: Incarnation, until_s: float) -> None:
        """A member is to leave by `until_s` at the latest."""
        if self._members.alive(member):
            self._members.leaving[member] = until_s

    def on_end(self, member: Incarnation) -> None:
        """An incarnation is over."""
        self._answers.pop(member, None)

    def answers(self, version: int, now_s: float) -> list[act.AnswerLeave | LastLeaves]:
        """Tell each whether it may go, if that is news."""
        actions: list[act.AnswerLeave | LastLeaves] = []
        for one, may in self._changed():
            actions.append(act.AnswerLeave(one, may))
            member = self._members.alive(one)
            if member is not None and member.ready and not may:
                stays_s = max(0.0, self._members.leaving[one] - now_s)
                actions.append(LastLeaves(member.stage, version, one, stays_s))
        return actions

    def _changed(self) -> list[tuple[Incarnation, bool]]:
        until_s = self._members.leaving
        if not until_s:
            return []
        may_go: dict[Incarnation, bool] = {}
        alive = {one: m for one in until_s if (m := self._members.alive(one))}
        for stage in sorted({member.stage for member in alive.values()}):
            here = [member.incarnation for member in self._members.ready(stage)]
            others = [one for one, m in alive.items() if m.stage == stage and not m.ready]
            may_go |= dict.fromkeys(others, bool(here))  # nobody relies on these
            leaving = [one for one in here if one in until_s]
            may_go |= dict.fromkeys(leaving, True)
            if leaving and len(leaving) == len(here):
                kept = [one for one in leaving if not self._answers.get(one)] or leaving
                last = max(kept, key=lambda one: (until_s[one], one.peer))
                may_go[last] = False
        changed = {one: may for one, may in may_go.items() if self._answers.get(one) is not may}
        self._answers |= changed
        return sorted(changed.items(), key=lambda each: each[0].peer)


MOVE_S = 10.0  # whoever was in the run is back by then, and newcomers get the stage first
AGAIN_S = 120.0  # for who has moved to load its weights
AGAIN_MAX_S = 3600.0  # both are doubled with each that has moved: the stage may suit none of them


class Moves:
    """The stages that wait for a server, and who was sent there.

    Where the run begins, or where it has gone back to, any server can make the state of any stage:
    it follows from the seed, or lies in a checkpoint. So if a stage has no server then, or fewer
    than a run begins with, and no newcomer takes it, one server of the stage with the most moves
    there: its session is ended, and when it joins again it is given that stage. Elsewhere the
    weights can only come back with a server that has them.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._since_s: dict[int, float] = {}
        self._sent: dict[int, int] = {}
        """Servers that have moved to a stage since it had a ready one."""

    def due(
        self, stages: list[int], keep: int, servers: FailingServers, now_s: float
    ) -> tuple[Incarnation, str] | None:
        """A member whose session is to end, so that it moves, and why; None if nobody has to.

        `stages`: those that wait; every other stage keeps `keep` ready members. `servers`: those
        that fail do not move.
        """
        if not stages and not self._since_s:
            return None  # asked after every note
        self._since_s = {stage: self._since_s.get(stage, now_s) for stage in stages}
        self._sent = {stage: sent for stage, sent in self._sent.items() if stage in stages}
        for stage in stages:
            if now_s >= self._due_s(stage) and (one := self._spare(keep, servers, now_s)):
                self._since_s[stage] = now_s
                self._sent[stage] = self._sent.get(stage, 0) + 1
                self._members.reserve(stage, one.incarnation.peer)
                return one.incarnation, f"it moves to stage {stage}, which lacks servers"
        return None

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when a server may have to move."""
        times = [due_s for stage in self._since_s if (due_s := self._due_s(stage)) > now_s]
        return min(times, default=None)

    def _due_s(self, stage: int) -> float:
        """Return when a server is to move to a stage: later if one loads its weights already."""
        first_s = AGAIN_S if self._members.waiting(stage) else MOVE_S
        wait_s = min(AGAIN_MAX_S, first_s * 2.0 ** self._sent.get(stage, 0))
        return self._since_s.get(stage, math.inf) + wait_s

    def _spare(self, keep: int, servers: FailingServers, now_s: float) -> Member | None:
        """The newest server that may move, of the stage with the most."""
        members = self._members
        free = [
            (members.ready_count(one.stage), -one.stage, one.incarnation.number, one)
            for one in members.ready()
            if members.ready_count(one.stage) > keep
            and not one.pinned
            and one.incarnation not in members.leaving
            and not servers.avoided(one.incarnation.peer, now_s)
        ]
        return max(free, key=lambda each: each[:3])[3] if free else None


class StageCoverage:
    """The stages and their servers: who may leave, who is waited for, and who moves there."""

    def __init__(
        self, config: RunConfig, members: Membership, servers: FailingServers, loaded: int
    ) -> None:
        """`loaded`: the version whose state anybody can make; -1 if there is none."""
        self._config = config
        self._members = members
        self._servers = servers
        self._loaded = loaded
        self.unserved = UnservedStages(config.on_stage_lost, config.rewind_after_s)
        self.departures = Departures(members)
        self._moves = Moves(members)

    def on_end(self, member: Member) -> None:
        """An incarnation is over."""
        self.departures.on_end(member.incarnation)
        if member.ready:
            self.unserved.on_end(member)

    def lost(self, version: int) -> list[int]:
        """The stages without servers whose weights of a version nobody can load or draw."""
        return self._members.unserved_stages(1) if version != self._loaded else []

    def watch(
        self, version: int, now_s: float, *, gathering: bool
    ) -> list[Waiting | WeightsSought]:
        """Return what to tell if other stages than before lack ready servers."""
        unserved = self._members.unserved_stages(self._kept(gathering=gathering))
        return self.unserved.watch(unserved, version, now_s, counting=not gathering)

    def move(
        self, version: int, now_s: float, *, gathering: bool
    ) -> tuple[Incarnation, str] | None:
        """A member that moves to a stage with too few servers: its session ends; and why."""
        kept = self._kept(gathering=gathering)
        few = self._members.unserved_stages(kept) if version == self._loaded else []
        return self._moves.due(few, kept, self._servers, now_s)

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when something is to be told or done about a stage that waits."""
        times = self.unserved.next_deadline_s(), self._moves.next_deadline_s(now_s)
        return min((time_s for time_s in times if time_s is not None), default=None)

    def _kept(self, *, gathering: bool) -> int:
        """Return how many ready servers a stage should have."""
        return self._config.min_replicas if gathering else 1
