"""Blame: which server, or which road between two, makes attempts fail; and when none can do it.

Units:   peers by their 32-byte id, so that blame outlives an incarnation.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.trainer.members.averaging_suspects import AveragingSuspects
from p2pswarm.trainer.members.membership import Membership
from p2pswarm.trainer.members.quarantine import Quarantines
from p2pswarm.trainer.members.unreachable_pairs import FailedPairs, SingleWords
from p2pswarm.trainer.reports.reports import (
    NotFiniteThere,
    RoadBroken,
    ServerFails,
    ServerTooSlow,
    WrongResult,
)

IN_A_ROW = 3  # failures with no success between; then a server is avoided
SAME_TROUBLE_S = 0.5  # failures closer than this are one: a server has several microbatches in hand
PAUSE_FIRST_S = 10.0
PAUSE_MAX_S = 600.0
COST_SHARE = 0.05  # of a pause: who holds all others up may do so for no larger part of the time
RECOVERED = 32  # successes in a row after which a pause does not count any more; twice as many
# after each other pause, so one that works between its failures has to work ever longer


class FailureKind(Enum):
    """The duties that a server may fail at; good work at one says nothing about the other."""

    MICROBATCHES = "to compute and hand on microbatches"
    AVERAGING = "to average its sum with the others of its stage"


@dataclass(slots=True)
class _History:
    """Failures and successes of one server, lately."""

    failures: dict[FailureKind, int] = field(default_factory=dict)
    """In a row."""
    failed_s: dict[FailureKind, float] = field(default_factory=dict)
    accusers: dict[FailureKind, bytes] = field(default_factory=dict)
    """Who alone has told of the failures in a row; empty: several have, or the trainer."""
    successes: int = 0
    pauses: int = 0
    until_s: float = float("-inf")


class FailingServers:
    """The failures of every server, whichever incarnation it is in.

    One failure proves nothing: a peer restarts, a link is dialled again. A server that fails
    several times in a row is the likeliest cause, and failing fast it attracts work. It gets none
    for a while. The pause doubles with each relapse, and a server that works well for long enough
    begins anew.
    """

    def __init__(
        self, peers_max: int = MEMBERS_MAX, quarantines: Quarantines | None = None
    ) -> None:
        """`quarantines`: those that outlive this coordinator."""
        self._max = peers_max
        self._histories: dict[bytes, _History] = {}
        self._quarantines = Quarantines() if quarantines is None else quarantines
        self._pardoned = False

    def on_failure(self, peer: bytes, duty: FailureKind, now_s: float, by: bytes = b"") -> int:
        """A server may have caused a failure; returns how often it did in a row.

        `by`: the peer that says so; empty: the trainer.
        """
        history = self._histories.setdefault(peer, _History())
        if len(self._histories) > self._max:
            del self._histories[next(iter(self._histories))]  # the one that we know the longest
        if now_s >= history.failed_s.get(duty, float("-inf")) + SAME_TROUBLE_S:
            history.failed_s[duty] = now_s
            history.failures[duty] = history.failures.get(duty, 0) + 1
        if history.accusers.setdefault(duty, by) != by:
            history.accusers[duty] = b""
        history.successes = 0
        return history.failures[duty]

    def accuser(self, peer: bytes, duty: FailureKind) -> bytes:
        """Who alone has told of a server's failures in a row; empty: several, or the trainer."""
        history = self._histories.get(peer)
        return history.accusers.get(duty, b"") if history is not None else b""

    def on_success(self, peer: bytes, duty: FailureKind) -> None:
        """A server has done what it is there for."""
        history = self._histories.get(peer)
        if history is None:
            return
        history.failures.pop(duty, None)
        history.failed_s.pop(duty, None)
        history.accusers.pop(duty, None)
        history.successes += 1
        enough = RECOVERED * 2 ** max(0, history.pauses - 1)
        if history.successes >= enough and not history.failures:
            del self._histories[peer]
            self._pardoned = True

    def pardoned(self) -> bool:
        """Return whether all that a server did before was forgotten; drained by reading."""
        drained, self._pardoned = self._pardoned, False
        return drained

    def forget(self, peers: Iterable[bytes]) -> None:
        """Drop the suspicion against peers: another one was at fault."""
        for peer in peers:
            if found := self._histories.get(peer):
                found.failures, found.failed_s, found.accusers = {}, {}, {}

    def avoid(self, peer: bytes, now_s: float, cost_s: float = 0.0) -> float:
        """Give a server a pause, and return it; `cost_s`: for how long all others waited for it."""
        history = self._histories.setdefault(peer, _History())
        least_s = max(PAUSE_FIRST_S, cost_s / COST_SHARE)
        pause_s = min(PAUSE_MAX_S, least_s * 2.0**history.pauses)
        if pause_s < PAUSE_MAX_S:
            history.pauses += 1
        history.until_s = now_s + pause_s
        self.forget((peer,))
        return pause_s

    def avoid_again(self, peer: bytes, now_s: float) -> float:
        """Give a server the shortest pause, and return it; the next one is no longer for it."""
        history = self._histories.setdefault(peer, _History())
        history.until_s = max(history.until_s, now_s + PAUSE_FIRST_S)
        self.forget((peer,))
        return PAUSE_FIRST_S

    def quarantine(self, peer: bytes, now_s: float) -> float:
        """Give a server a long pause that no good work shortens, and return it."""
        return self._quarantines.begin(peer, now_s)

    def pardon(self, peer: bytes) -> None:
        """Drop the pause of a server that was not at fault."""
        if found := self._histories.get(peer):
            found.until_s, found.pauses = float("-inf"), max(0, found.pauses - 1)
            self._pardoned = True

    def avoided(self, peer: bytes, now_s: float) -> bool:
        """Return whether a server is to get no work now, if another can do it."""
        history = self._histories.get(peer)
        paused = history is not None and now_s < history.until_s
        return paused or now_s < self._quarantines.ends_s(peer)

    def pauses(self, peer: bytes) -> int:
        """Return how often a server was left out lately."""
        history = self._histories.get(peer)
        return history.pauses if history is not None else 0

    def next_deadline_s(self, now_s: float) -> float | None:
        """Return when the next pause ends."""
        ends_s = [one.until_s for one in self._histories.values()]
        ends_s += [one.ends_s for one in self._quarantines.values()]
        return min((end_s for end_s in ends_s if end_s > now_s), default=None)


NOT_FINITE_MIN = 3  # attempts before the model is blamed: one may be a fault of the hardware
NOT_FINITE_LEFT_OUT = 6  # then a server that was in all of them is left out, not waited for
NOT_FINITE_MAX = 12  # attempts after which it is blamed though some server was in all of them
ROADS_MAX = MEMBERS_MAX  # broken at once; with more, the longest known is forgotten

Road = tuple[Incarnation | None, Incarnation | None]
"""From the lower stage to the upper one; None: the trainer below, or one that is not known."""


BlameReport = NotFiniteThere | RoadBroken | ServerFails | ServerTooSlow | WrongResult


class Trouble(IntEnum):
    """Reason why an attempt was given up; the first three are `Obstacle` on the wire."""

    ROAD = 0
    WORK = 1
    NOT_FINITE = 2
    LATE = 3


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed, as far as it is known."""

    step: int
    microbatch: int
    trouble: Trouble
    reason: str
    by: Incarnation | None
    """Accuser; None: the trainer, whose push failed or which has waited for too long."""
    path: tuple[Incarnation, ...]
    """Members that it was handed to, as far as the trainer was told."""
    missing: tuple[int, ...]
    """The stages that have not counted it: where it is now lies among them, or just above."""


@dataclass(slots=True)
class _Overflows:
    """The attempts of one microbatch that were not finite."""

    step: int
    paths: list[tuple[Incarnation, ...]] = field(default_factory=list)
    """Suspects of each attempt; the accuser comes first."""
    stages: dict[Incarnation, int] = field(default_factory=dict)
    reason: str = ""
    condemned: bool = False

    @property
    def common(self) -> list[Incarnation]:
        """Return who was in all of them."""
        *others, last = self.paths
        return [one for one in last if all(one in path for path in others)]

    def suspects(self, holders: tuple[Incarnation, ...]) -> list[Incarnation]:
        """Return those that may be at fault, once `holders` have counted it on another path."""
        everybody = dict.fromkeys(one for path in self.paths for one in path)
        accusers = dict.fromkeys(path[0] for path in self.paths if path)
        for some in (self.common, everybody):
            if left := [one for one in some if one not in holders]:
                return left
        return list(accusers)


class Blame:
    """Failures and successes of servers, and what follows from them.

    An attempt that failed was in the hands of several servers. Each of those that may have caused
    it is a suspect; the one that has failed most often in a row is avoided, if its stage has
    another. A road between two servers that stays broken is named to the user. Of two members of a
    stage between which nothing passes, one leaves.

    A gradient that is not finite may be a server's fault or the model's. It is the model's when
    all attempts failed so, and no server that all of them passed can be left out: the microbatch
    is then condemned (`step/result_checks.py`). If another path has a finite one, those that were
    only in the attempts that failed are named.

    What one member alone says of another may be a lie. It costs the other its place once, and the
    next time its own (`SingleWords`); so one that lies wins the pause of one other in 32 steps.
    """

    def __init__(
        self,
        members: Membership,
        stages: int,
        ends: tuple[int, int] | None = None,
        quarantines: Quarantines | None = None,
    ) -> None:
        """`ends`: two stages that average a tensor with each other."""
        self._members = members
        self._ends = set(ends or ())
        self._last = stages - 1
        self._roads: dict[tuple[bytes, bytes], int] = {}
        self._not_finite: dict[int, _Overflows] = {}
        self._to_end: list[tuple[Incarnation, str]] = []
        self._condemned: list[int] = []
        self._words = SingleWords()
        self._pairs = FailedPairs(self._words)
        self.servers = FailingServers(quarantines=quarantines)
        self.averaging = AveragingSuspects()

    def condemned(self) -> list[int]:
        """The microbatches that are not finite on any path; drained by reading."""
        drained, self._condemned = self._condemned, []
        return drained

    def to_end(self) -> list[tuple[Incarnation, str]]:
        """Incarnations to end, because they are avoided from now on; drained by reading."""
        drained, self._to_end = self._to_end, []
        return drained

    def on_attempt_failure(self, failed: FailedAttempt, now_s: float) -> list[BlameReport]:
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
        reports += self._suspect(named, FailureKind.MICROBATCHES, failed.reason, now_s, failed.by)
        if failed.trouble in (Trouble.ROAD, Trouble.LATE):
            reports += self._broken(road, failed.reason)
        return reports

    def on_stall(
        self, one: Incarnation, teller: Incarnation | None, now_s: float
    ) -> list[BlameReport]:
        """Hear that a server has finished nothing while others of its stage had no work.

        `teller`: who alone says that it had anything; None: several do, or the trainer. Where its
        word does not count, the teller is left out, and a server that was left out lately as well:
        a slow one is believed to be slow again. It gets the shortest pause, so that one that lies
        costs another less of its time than of its own.
        """
        if self._members.alive(one) is None or not self._can_be_spared(one, now_s):
            return []
        if teller is None or not self._is_spent(teller, now_s):
            return [self._too_slow(one, self.servers.avoid(one.peer, now_s))]
        reports: list[BlameReport] = [
            self._too_slow(teller, self.servers.avoid(teller.peer, now_s))
        ]
        if self.servers.pauses(one.peer) and self._can_be_spared(one, now_s):
            reports.append(self._too_slow(one, self.servers.avoid_again(one.peer, now_s)))
        return reports

    def _too_slow(self, one: Incarnation, pause_s: float) -> BlameReport:
        member = self._members.alive(one)
        assert member is not None, "whoever can be spared is alive"
        self._to_end.append((one, "it is far slower than others of its stage"))
        return ServerTooSlow(one, member.stage, pause_s)

    def on_breach(
        self, one: Incarnation, why: str, now_s: float, cost_s: float = 0.0
    ) -> list[BlameReport]:
        """Hear that a server does what no honest one does; it is ended anyway.

        `cost_s`: for how long all others have waited for it.
        """
        member = self._members.alive(one)
        if member is None or not self._can_be_spared(one, now_s):
            return []
        pause_s = self.servers.avoid(one.peer, now_s, cost_s)
        return [ServerFails(one, member.stage, 1, why, pause_s)]

    def on_wrong_state(self, one: Incarnation, why: str, now_s: float) -> list[BlameReport]:
        """Hear that a server has computed with another state than its stage, which surely stands.

        It gets no work for long if others can do it, also if it is gone and comes back.
        """
        pause_s = self.servers.quarantine(one.peer, now_s)
        member = self._members.alive(one)
        if member is None or not self._can_be_spared(one, now_s):
            return []
        return [ServerFails(one, member.stage, 1, why, pause_s)]

    def on_wrong_result(self, found: WrongResult, now_s: float) -> WrongResult:
        """A spot check has found a server: return it with its pause, if it can be spared."""
        one = found.incarnation
        spared = self._can_be_spared(one, now_s)
        return replace(found, pause_s=self.servers.avoid(one.peer, now_s)) if spared else found

    def on_averaging_failure(self, by: Incarnation, reason: str, now_s: float) -> list[BlameReport]:
        """Hear that a member could not average; what people are to know."""
        return self._suspect([by], FailureKind.AVERAGING, reason, now_s, by)

    def on_unreachable(self, by: Incarnation, beside: bytes | None, now_s: float) -> None:
        """Hear from a member that nothing passes between it and another, if it says so."""
        if beside is not None and self._members.alive(by):
            self._pairs.on_report(by.peer, beside, now_s)

    def leaver(
        self,
        by: Incarnation,
        beside: bytes | None,
        ledger: Callable[[Incarnation], bytes],
        now_s: float,
    ) -> Incarnation | None:
        """Return who is to leave an averaging in which `by` failed again, as it says by `beside`.

        The one that leaves gets no work for a while: else it would be back at once, and the next
        averaging would fail at the same cut. `ledger`: the bitmap of a member's counts. Of two
        stages that average with each other, one leaves that its stage can spare; None if neither
        can, because then only the road helps.
        """
        here = self._members.alive(by)
        other = self._members.of_peer(beside) if beside is not None else None
        if here is None or other is None or not other.ready:
            return by
        if other.stage != here.stage and {other.stage, here.stage} != self._ends:
            return by  # they have nothing to average with each other
        pair = by, other.incarnation
        ours, theirs = (int.from_bytes(ledger(one), "little").bit_count() for one in pair)
        left = self._pairs.leaver(by.peer, other.incarnation.peer, (ours, theirs), now_s)
        one = next(one for one in pair if one.peer == left)
        spared = [each for each in pair if self._can_be_spared(each, now_s)]
        if one not in spared and other.stage != here.stage:
            if not spared:
                return None
            (one,) = spared
        if one in spared:
            self.servers.avoid(one.peer, now_s)
        return one

    def on_averaging(
        self, members: Iterable[Incarnation], holders: Callable[[int], tuple[Incarnation, ...]]
    ) -> list[NotFiniteThere]:
        """A step is decided: return which servers made gradients that were not finite."""
        everybody = list(members)
        if self._words.spent:
            self._words.on_averaging(one.peer for one in everybody)
        for one in everybody:
            self.servers.on_success(one.peer, FailureKind.AVERAGING)
        reports = []
        for microbatch, trouble in self._not_finite.items():
            suspects = trouble.suspects(holders(microbatch))
            named = tuple((one, trouble.stages[one]) for one in suspects if one in trouble.stages)
            if named and not trouble.condemned:
                report = NotFiniteThere(trouble.step, microbatch, named, trouble.reason)
                reports.append(report)
        self._not_finite.clear()
        return reports

    def on_count(self, by: Incarnation, path: list[Incarnation]) -> None:
        """A member has done its backward of a microbatch that came by `path`."""
        self.servers.on_success(by.peer, FailureKind.MICROBATCHES)
        if self._roads:
            peers = [one.peer for one in path]
            for road in list(self._roads):
                if by.peer in road and all(peer in peers or not peer for peer in road):
                    del self._roads[road]

    def _suspect(
        self,
        suspects: list[Incarnation],
        duty: FailureKind,
        reason: str,
        now_s: float,
        by: Incarnation | None,
    ) -> list[BlameReport]:
        """Count a failure; avoid the suspect that failed most often, if it can be spared."""
        told, said_by = self.servers, by.peer if by is not None else b""
        counts = {one: told.on_failure(one.peer, duty, now_s, said_by) for one in suspects}
        often = [one for one in suspects if counts[one] >= IN_A_ROW]
        spared = [one for one in often if self._can_be_spared(one, now_s)]
        if not spared:
            return [
                ServerFails(one, member.stage, counts[one], reason, None)
                for one in often
                if _tells(counts[one]) and (member := self._members.alive(one))
            ]
        worst = max(spared, key=lambda one: counts[one])
        alone = self.servers.accuser(worst.peer, duty)
        if by in counts and by != worst and alone == by.peer and self._is_spent(by, now_s):
            worst = by
        self.servers.forget(one.peer for one in suspects)
        return [self._leave_out(worst, counts[worst], reason, now_s)]

    def _is_spent(self, teller: Incarnation, now_s: float) -> bool:
        """Return whether the word of one member, who can be spared, does not count; spend it."""
        return self._can_be_spared(teller, now_s) and not self._words.spend(teller.peer)

    def _can_be_spared(self, one: Incarnation, now_s: float) -> bool:
        """Return whether its stage has another server that is not avoided."""
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

    def _leave_out(self, one: Incarnation, failures: int, reason: str, now_s: float) -> ServerFails:
        member = self._members.alive(one)
        assert member is not None, "only the living can be spared"
        pause_s = self._pause(one, f"it fails again and again: {reason}", now_s)
        return ServerFails(one, member.stage, failures, reason, pause_s)

    def _pause(self, one: Incarnation, why: str, now_s: float) -> float:
        self._to_end.append((one, why))
        return self.servers.avoid(one.peer, now_s)

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
        return [RoadBroken(lower, upper, member.stage, failures, reason)]


def _tells(failures: int) -> bool:
    """Return whether people hear of so many failures in a row: 3, 6, 12, 24, ..."""
    threes, left = divmod(failures, IN_A_ROW)
    return left == 0 and threes > 0 and threes & (threes - 1) == 0
