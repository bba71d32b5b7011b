"""Blame: which server, or which road between two, makes attempts fail; and when nobody can do it.

An attempt that failed was in the hands of several servers. Each of those that may have caused it is
a suspect; the one that has failed most often in a row is avoided, if its stage has another. A road
between two servers that stays broken is named to the user.

A gradient that is not finite may be a server's fault or the model's. It is the model's when all
attempts failed so, and no server that all of them passed can be left out: the microbatch is then
condemned (`quarantine.py`). If another path has a finite one, those that were only in the attempts
that failed are named.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from p2pswarm.run.messages.types import MEMBERS_MAX
from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.blame.broken_pairs import BrokenPairs
from p2pswarm.trainer.blame.failing_servers import IN_A_ROW, Duty, FailingServers
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.reports import actions as act

NOT_FINITE_MIN = 3  # attempts before the model is blamed: one may be a fault of the hardware
NOT_FINITE_LEFT_OUT = 6  # then a server that was in all of them is left out, not waited for
NOT_FINITE_MAX = 12  # attempts after which it is blamed though some server was in all of them
ROADS_MAX = MEMBERS_MAX  # broken at once; with more, the longest known is forgotten

Road = tuple[Incarnation | None, Incarnation | None]
"""From the lower stage to the upper one; None: the trainer below, or one that is not known."""


BlameReport = act.NotFiniteThere | act.RoadBroken | act.ServerFails | act.WrongResult


class Trouble(IntEnum):
    """Why an attempt was given up; the first three are `Obstacle` on the wire."""

    ROAD = 0
    WORK = 1
    NOT_FINITE = 2
    LATE = 3


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """What is known of an attempt that failed."""

    step: int
    microbatch: int
    trouble: Trouble
    reason: str
    by: Incarnation | None
    """Who said so; None: the trainer, whose push failed or who has waited for too long."""
    path: tuple[Incarnation, ...]
    """Whom it was handed to, as far as we were told."""
    missing: tuple[int, ...]
    """The stages that have not counted it: where it is now lies among them, or just above."""


@dataclass(slots=True)
class _Overflows:
    """The attempts of one microbatch that were not finite."""

    step: int
    paths: list[tuple[Incarnation, ...]] = field(default_factory=list)
    """Who may have caused it, attempt by attempt; who said so comes first."""
    stages: dict[Incarnation, int] = field(default_factory=dict)
    reason: str = ""
    condemned: bool = False

    @property
    def common(self) -> list[Incarnation]:
        """Who was in all of them."""
        *others, last = self.paths
        return [one for one in last if all(one in path for path in others)]

    def suspects(self, holders: tuple[Incarnation, ...]) -> list[Incarnation]:
        """Whose fault it may be, once `holders` have counted the microbatch on another path."""
        everybody = dict.fromkeys(one for path in self.paths for one in path)
        accusers = dict.fromkeys(path[0] for path in self.paths if path)
        for some in (self.common, everybody):
            if left := [one for one in some if one not in holders]:
                return left
        return list(accusers)


@dataclass(frozen=True, slots=True)
class FoundWrong:
    """A server that a spot check has found to compute wrong."""

    incarnation: Incarnation
    stage: int
    microbatch: int
    reason: str


class Blame:
    """Failures and successes of servers, and what follows from them."""

    def __init__(
        self, members: Membership, stages: int, ends: tuple[int, int] | None = None
    ) -> None:
        """`ends`: two stages that average a tensor with each other."""
        self._members = members
        self._ends = set(ends or ())
        self._last = stages - 1
        self._roads: dict[tuple[bytes, bytes], int] = {}
        self._not_finite: dict[int, _Overflows] = {}
        self._to_end: list[tuple[Incarnation, str]] = []
        self._condemned: list[int] = []
        self._pairs = BrokenPairs()
        self.servers = FailingServers()
        """Who is avoided."""

    def condemned(self) -> list[int]:
        """The microbatches that are not finite on any path; drained by reading."""
        drained, self._condemned = self._condemned, []
        return drained

    def to_end(self) -> list[tuple[Incarnation, str]]:
        """Incarnations to end, because they are avoided from now on; drained by reading."""
        drained, self._to_end = self._to_end, []
        return drained

    def attempt_failed(self, failed: FailedAttempt, now_s: float) -> list[BlameReport]:
        """Hear of an attempt that was given up; what people are to know."""
        road = self._road(failed)
        reports: list[BlameReport] = []
        if failed.trouble is Trouble.NOT_FINITE:
            reports += self._weigh_model(failed, now_s)
            suspects = [] if reports else [failed.by, *failed.path]
        elif failed.trouble is Trouble.WORK:
            suspects = [failed.by]
        else:
            suspects = [failed.by, *reversed(road)]
        named = list(dict.fromkeys(one for one in suspects if one is not None))
        reports += self._suspect(named, Duty.MICROBATCHES, failed.reason, now_s)
        if failed.trouble in (Trouble.ROAD, Trouble.LATE):
            reports += self._broken(road, failed.reason)
        return reports

    def computes_wrong(self, found: FoundWrong, now_s: float) -> act.WrongResult:
        """A spot check has found a server: it gets a pause, if it can be spared."""
        one = found.incarnation
        spared = self._can_be_spared(one, now_s)
        pause_s = self.servers.avoid(one.peer, now_s) if spared else None
        return act.WrongResult(one, found.stage, found.microbatch, found.reason, pause_s)

    def averaging_failed(self, by: Incarnation, reason: str, now_s: float) -> list[BlameReport]:
        """Hear that a member could not average; what people are to know."""
        return self._suspect([by], Duty.AVERAGING, reason, now_s)

    def apart(self, by: Incarnation, beside: bytes | None, now_s: float) -> None:
        """Hear from a member that nothing passes between it and another, if it says so."""
        if beside is not None and self._members.alive(by):
            self._pairs.said(by.peer, beside, now_s)

    def leaves(
        self,
        by: Incarnation,
        beside: bytes | None,
        ledger: Callable[[Incarnation], bytes],
        now_s: float,
    ) -> Incarnation | None:
        """Who is to leave an averaging in which `by` failed again, as it says by `beside`.

        Of two between whom nothing passes, the one that leaves gets no work for a while: else it
        would be back at once, and the next averaging would fail at the same cut. `ledger` gives the
        bitmap of what a member has counted. Of two stages that average with each other, one leaves
        that its stage can spare; None if neither can, because then only the road helps.
        """
        here = self._members.alive(by)
        other = self._members.of_peer(beside) if beside is not None else None
        if here is None or other is None or not other.ready:
            return by
        if other.stage != here.stage and {other.stage, here.stage} != self._ends:
            return by  # they have nothing to average with each other
        pair = by, other.incarnation
        ours, theirs = (int.from_bytes(ledger(one), "little").bit_count() for one in pair)
        left = self._pairs.leaves(by.peer, other.incarnation.peer, (ours, theirs), now_s)
        one = next(one for one in pair if one.peer == left)
        spared = [each for each in pair if self._can_be_spared(each, now_s)]
        if one not in spared and other.stage != here.stage:
            if not spared:
                return None
            (one,) = spared
        if one in spared:
            self.servers.avoid(one.peer, now_s)
        return one

    def averaged(
        self, members: Iterable[Incarnation], holders: Callable[[int], tuple[Incarnation, ...]]
    ) -> list[act.NotFiniteThere]:
        """A step was decided: these have averaged, and `holders` have counted a microbatch.

        Tells who made gradients that were not finite.
        """
        everybody = list(members)
        self._pairs.averaged(one.peer for one in everybody)
        for one in everybody:
            self.servers.worked(one.peer, Duty.AVERAGING)
        reports = []
        for microbatch, trouble in self._not_finite.items():
            suspects = trouble.suspects(holders(microbatch))
            named = tuple((one, trouble.stages[one]) for one in suspects if one in trouble.stages)
            if named and not trouble.condemned:
                report = act.NotFiniteThere(trouble.step, microbatch, named, trouble.reason)
                reports.append(report)
        self._not_finite.clear()
        return reports

    def counted(self, by: Incarnation, path: list[Incarnation]) -> None:
        """A member has done its backward of a microbatch that came by `path`."""
        self.servers.worked(by.peer, Duty.MICROBATCHES)
        if self._roads:
            peers = [one.peer for one in path]
            for road in list(self._roads):
                if by.peer in road and all(peer in peers or not peer for peer in road):
                    del self._roads[road]

    def _suspect(
        self, suspects: list[Incarnation], duty: Duty, reason: str, now_s: float
    ) -> list[BlameReport]:
        """Count a failure; avoid the suspect that failed most often, if it can be spared."""
        counts = {one: self.servers.failed(one.peer, duty, now_s) for one in suspects}
        often = [one for one in suspects if counts[one] >= IN_A_ROW]
        spared = [one for one in often if self._can_be_spared(one, now_s)]
        if not spared:
            return [
                act.ServerFails(one, member.stage, counts[one], reason, None)
                for one in often
                if _tells(counts[one]) and (member := self._members.alive(one))
            ]
        worst = max(spared, key=lambda one: counts[one])
        self.servers.forget(one.peer for one in suspects)
        return [self._leave_out(worst, counts[worst], reason, now_s)]

    def _can_be_spared(self, one: Incarnation, now_s: float) -> bool:
        """Whether its stage has another server that is not avoided."""
        member = self._members.alive(one)
        return member is not None and any(
            other.incarnation != one and not self.servers.avoided(other.incarnation.peer, now_s)
            for other in self._members.ready(member.stage)
        )

    def _weigh_model(self, failed: FailedAttempt, now_s: float) -> list[BlameReport]:
        """Condemn a microbatch once no server that could be left out was in every attempt."""
        trouble = self._not_finite.setdefault(failed.microbatch, _Overflows(failed.step))
        path = dict.fromkeys(one for one in (failed.by, *failed.path) if one is not None)
        trouble.paths.append(tuple(path))
        trouble.reason = failed.reason
        alive = {one: m.stage for one in path if (m := self._members.alive(one)) is not None}
        trouble.stages |= alive
        tries, common = len(trouble.paths), trouble.common
        avoided = self.servers.avoided
        left = any(one not in alive or avoided(one.peer, now_s) for one in common)
        spared = [one for one in common if self._can_be_spared(one, now_s)]
        if tries >= NOT_FINITE_MAX or (tries >= NOT_FINITE_MIN and not spared and not left):
            trouble.condemned = True
            self.servers.forget(one.peer for path in trouble.paths for one in path)
            self._condemned.append(failed.microbatch)
        elif spared and not left and tries >= NOT_FINITE_LEFT_OUT:
            return [self._leave_out(spared[0], tries, failed.reason, now_s)]
        return []

    def _leave_out(
        self, one: Incarnation, failures: int, reason: str, now_s: float
    ) -> act.ServerFails:
        """Let a server that can be spared pause."""
        member = self._members.alive(one)
        assert member is not None, "only the living can be spared"
        pause_s = self.servers.avoid(one.peer, now_s)
        self._to_end.append((one, f"it fails again and again: {reason}"))
        return act.ServerFails(one, member.stage, failures, reason, pause_s)

    def _road(self, failed: FailedAttempt) -> Road:
        """Between which two servers an attempt was, as far as can be told."""
        at = {m.stage: one for one in failed.path if (m := self._members.alive(one)) is not None}
        speaker = self._members.alive(failed.by) if failed.by is not None else None
        if speaker is not None:
            at[speaker.stage] = speaker.incarnation
            lower = self._lower_of(speaker.stage, at, failed.missing)
        elif failed.trouble is Trouble.LATE and at:
            lower = self._lower_of_late(max(at), failed.missing)
        else:
            lower = -1
        return at.get(lower), at.get(lower + 1) or self._only(lower + 1)

    def _lower_of(self, stage: int, at: dict[int, Incarnation], missing: tuple[int, ...]) -> int:
        """The lower end of the road that a server of `stage` complains of."""
        onward = stage < self._last and (stage + 1 not in at or stage + 1 in missing)
        return stage if onward else stage - 1

    def _lower_of_late(self, top: int, missing: tuple[int, ...]) -> int:
        """The lower end of the road where an attempt is that has come up to stage `top`."""
        if top < self._last:
            return top
        returning = missing and self._last not in missing
        return max(missing) if returning else self._last - 1

    def _only(self, stage: int) -> Incarnation | None:
        """The server of a stage, if it has only one."""
        ready = self._members.ready(stage)
        return ready[0].incarnation if len(ready) == 1 else None

    def _broken(self, road: Road, reason: str) -> list[BlameReport]:
        """Count a failure of a road; tell at the third, the sixth, the twelfth in a row, and on."""
        lower, upper = road
        if upper is None:
            return []  # one of several servers: the next attempt takes another
        key = lower.peer if lower is not None else b"", upper.peer
        failures = self._roads[key] = self._roads.get(key, 0) + 1
        if len(self._roads) > ROADS_MAX:
            del self._roads[next(iter(self._roads))]
        member = self._members.alive(upper)
        if member is None or not _tells(failures):
            return []
        return [act.RoadBroken(lower, upper, member.stage, failures, reason)]


def _tells(failures: int) -> bool:
    """Whether people hear of so many failures in a row: 3, 6, 12, 24, ..."""
    threes, left = divmod(failures, IN_A_ROW)
    return left == 0 and threes > 0 and threes & (threes - 1) == 0
