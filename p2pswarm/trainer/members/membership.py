"""Members of a run: who serves which stage, and how long each may take to answer.

Units:   incarnations count up over the whole run: no two share a number.
Errors:  Unusable for a server for which no stage has a place; None for incarnations that are over.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, replace
from operator import attrgetter

from p2pswarm.base.errors import Unusable
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import GROUP_MAX, MEMBERS_MAX
from p2pswarm.run.messages.membership import MemberRecord
from p2pswarm.run.messages.step import TiedGroup
from p2pswarm.trainer.reports.actions import MemberChange

_PEER = attrgetter("incarnation.peer")


@dataclass(frozen=True, slots=True)
class Member:
    """One living incarnation."""

    incarnation: Incarnation
    address: str
    stage: int
    since: int
    """The first step whose reduction reaches it."""
    ready: bool
    pinned: bool = False
    """It serves no other stage."""
    card: bytes = b""
    """Its other addresses, as it has signed."""

    @property
    def record(self) -> MemberRecord:
        """The member as the views show it."""
        peer, number = self.incarnation.peer, self.incarnation.number
        return MemberRecord(peer, self.address, self.stage, number, self.ready, self.card)


@dataclass(frozen=True, slots=True)
class StageGroup:
    """The members that take part in the reduction of one stage."""

    members: list[Member]
    """The members that add their sums."""
    observers: list[Member]
    """Newcomers that receive the result only."""
    shares: tuple[int, ...] = ()
    """The size of each member's shard relative to the others; none mean equal ones."""
    tied: TiedGroup | None = None
    """The group that averages the tied tensor, at an end of a tied model."""


@dataclass(frozen=True, slots=True)
class _StageReservation:
    """A stage that a peer takes on joining again, and how many were ready and waited there."""

    peer: bytes
    ready: int
    waiting: int


class Membership:
    """The living members; a peer has at most one incarnation at a time.

    Everything that is asked after every note is kept, not counted: the members of each stage in
    the order of their peer ids, ready or waiting, and the stages that lack servers.
    """

    def __init__(
        self,
        stages: int,
        group_max: int = GROUP_MAX,
        members_max: int = MEMBERS_MAX,
        former: int = 0,
    ) -> None:
        """`group_max`, `members_max`: of a stage and of the run; `former`: the last number."""
        self._stages = stages
        self._group_max = group_max
        self._members_max = members_max
        self.leaving: dict[Incarnation, float] = {}
        """Time until which those stay that were asked to leave: a newcomer does not count them."""
        self._reserved: dict[int, _StageReservation] = {}
        """By stage."""
        self._members: dict[bytes, Member] = {}
        self.numbered = former
        """The number of the newest incarnation."""
        self._ready: list[list[Member]] = [[] for _ in range(stages)]
        self._waiting: list[list[Member]] = [[] for _ in range(stages)]
        self._ready_in_all = 0
        self._unserved: dict[int, list[int]] = {}
        """By `at_least`: the stages with fewer ready members."""
        self._changes: list[MemberChange] = []

    def admit(
        self, peer: bytes, address: str, stage: int | None, since: int, *, pinned: bool = False
    ) -> Member:
        """Begin an incarnation, on the stage it asks for or where the fewest serve.

        `pinned`: it takes no other stage. Raises Unusable if there is no place.
        """
        where = self._place(self._kept_for(peer, stage), pinned=pinned)
        self.numbered += 1
        incarnation = Incarnation(peer, self.numbered)
        member = Member(incarnation, address, where, since, ready=False, pinned=pinned)
        self._members[peer] = member
        insort(self._waiting[where], member, key=_PEER)
        self._changed(MemberChange(member.record))
        return member

    def open_stages(self) -> list[int]:
        """The stages that have room for another member; none if the run has not."""
        counts = self._counts()
        if sum(counts) >= self._members_max:
            return []
        return [stage for stage, count in enumerate(counts) if count < self._group_max]

    def reserve(self, stage: int, peer: bytes) -> None:
        """Give a peer this stage when it joins again, if nobody has come there by then."""
        ready, waiting = len(self._ready[stage]), len(self._waiting[stage])
        self._reserved[stage] = _StageReservation(peer, ready, waiting)

    def make_ready(self, incarnation: Incarnation) -> Member:
        """Let routers choose it."""
        member = self._members[incarnation.peer]
        _take_out(self._waiting[member.stage], member)
        member = self._members[incarnation.peer] = replace(member, ready=True)
        insort(self._ready[member.stage], member, key=_PEER)
        self._changed(MemberChange(member.record), more_ready=1)
        return member

    def on_card(self, peer: bytes, card: bytes) -> bool:
        """A peer has another card; whether that is news of a member."""
        member = self._members.get(peer)
        if member is None or member.card == card:
            return False
        among = (self._ready if member.ready else self._waiting)[member.stage]
        changed = self._members[peer] = replace(member, card=card)
        among[bisect_left(among, peer, key=_PEER)] = changed
        self._changes.append(MemberChange(changed.record, carded=True))
        return True

    def end(self, incarnation: Incarnation) -> Member | None:
        """End an incarnation; None if it was over before."""
        member = self.alive(incarnation)
        if member is None:
            return None
        del self._members[incarnation.peer]
        self.leaving.pop(incarnation, None)
        _take_out((self._ready if member.ready else self._waiting)[member.stage], member)
        self._changed(MemberChange(member.record, gone=True), more_ready=-int(member.ready))
        return member

    def alive(self, incarnation: Incarnation) -> Member | None:
        """The member whose present incarnation this is."""
        member = self._members.get(incarnation.peer)
        return member if member and member.incarnation == incarnation else None

    def of_peer(self, peer: bytes) -> Member | None:
        """The present incarnation of a peer."""
        return self._members.get(peer)

    def ready(self, stage: int | None = None) -> list[Member]:
        """The members that may get microbatches, by peer id; of one stage or of all."""
        return _of(self._ready, stage)

    def ready_count(self, stage: int | None = None) -> int:
        """Return how many there are of them."""
        return self._ready_in_all if stage is None else len(self._ready[stage])

    def waiting(self, stage: int | None = None) -> list[Member]:
        """The members that are not ready yet, by peer id; of one stage or of all."""
        return _of(self._waiting, stage)

    def group(self, stage: int) -> StageGroup:
        """The members that reduce a stage's gradient, and the newcomers that receive it."""
        return StageGroup(self.ready(stage), self.waiting(stage))

    def records(self) -> tuple[MemberRecord, ...]:
        """All members, by peer id."""
        return tuple(self._members[peer].record for peer in sorted(self._members))

    def unserved_stages(self, at_least: int = 1) -> list[int]:
        """The stages with fewer than `at_least` ready members."""
        unserved = self._unserved.get(at_least)
        if unserved is None:
            unserved = [s for s, ready in enumerate(self._ready) if len(ready) < at_least]
            self._unserved[at_least] = unserved
        return list(unserved)

    def changes(self) -> tuple[MemberChange, ...]:
        """Return what has changed, in order; drained by reading."""
        drained, self._changes = tuple(self._changes), []
        return drained

    def _counts(self) -> list[int]:
        return [len(r) + len(w) for r, w in zip(self._ready, self._waiting, strict=True)]

    def _changed(self, change: MemberChange, more_ready: int = 0) -> None:
        self._ready_in_all += more_ready
        self._unserved.clear()
        self._changes.append(change)

    def _kept_for(self, peer: bytes, stage: int | None) -> int | None:
        """The stage that is reserved for a peer, else the one that it asks for."""
        for reserved, kept in tuple(self._reserved.items()):
            if kept.peer == peer:
                del self._reserved[reserved]
                ready, waiting = len(self._ready[reserved]), len(self._waiting[reserved])
                if ready <= kept.ready and waiting <= kept.waiting:
                    return reserved
        return stage

    def _place(self, stage: int | None, *, pinned: bool) -> int:
        """The stage that is asked for, or the one with the fewest members, ready or not."""
        members = self._counts()
        if sum(members) >= self._members_max:
            raise Unusable(
                f"the run has all the {self._members_max} servers that a step's record can name: "
                f"serve another run, or come back when servers have left"
            )
        if stage is not None and stage < self._stages:
            if members[stage] < self._group_max:
                return stage
            if pinned:
                raise Unusable(
                    f"stage {stage} has all the {self._group_max} servers that a stage can have: "
                    f"leave out `stage`, and the trainer chooses one"
                )
        stay = members.copy()
        for leaving in self.leaving:
            stay[self._members[leaving.peer].stage] -= 1
        free = [where for where, count in enumerate(members) if count < self._group_max]
        if free:
            return min(free, key=lambda where: (stay[where], where))
        raise Unusable(
            f"every stage has all the {self._group_max} servers that a stage can have: "
            f"serve another run, or come back when servers have left"
        )


def _of(stages: list[list[Member]], stage: int | None) -> list[Member]:
    if stage is not None:
        return list(stages[stage])
    return sorted((member for members in stages for member in members), key=_PEER)


def _take_out(members: list[Member], member: Member) -> None:
    del members[bisect_left(members, _PEER(member), key=_PEER)]


LIMIT_BACKOFF = 2.0  # RFC 6298, 5.5
LIMIT_LEARNED = 2.0  # times what it took


class AnswerLimits:
    """The limits of one kind of order.

    One limit for all would evict a slow server again and again. So a server that was too slow may
    take twice as long the next time, and one that was slow but in time keeps twice its time. One
    that is quick again has the usual limit.

    Source: RFC 6298, section 5, as for attempts.
    """

    def __init__(self, usual_s: float, max_s: float, peers_max: int = MEMBERS_MAX) -> None:
        self._usual_s = usual_s
        self._max_s = max_s
        self._peers_max = peers_max
        self._limits_s: dict[bytes, float] = {}
        """Of the peers that have another one than is usual; who was slow last stands last."""

    def limit_s(self, peer: bytes) -> float:
        """Return how long a peer may take."""
        return self._limits_s.get(peer, self._usual_s)

    def on_answer(self, peer: bytes, seconds: float) -> None:
        """A peer has done it."""
        self._set(peer, LIMIT_LEARNED * seconds)

    def on_timeout(self, peer: bytes) -> None:
        """A peer has not done it in its time."""
        self._set(peer, LIMIT_BACKOFF * self.limit_s(peer))

    def _set(self, peer: bytes, limit_s: float) -> None:
        self._limits_s.pop(peer, None)
        if limit_s <= self._usual_s:
            return
        self._limits_s[peer] = min(self._max_s, limit_s)
        if len(self._limits_s) > self._peers_max:
            del self._limits_s[next(iter(self._limits_s))]
