"""Who serves which stage, in which incarnation, and where a new server is needed.

Units:   stages from 0; incarnations count up over the whole run: no two share a number.
Errors:  none; None for incarnations that are over.
"""

from dataclasses import dataclass, replace

from p2pswarm.swarm.messages.membership import MemberRecord
from p2pswarm.swarm.view import Incarnation

GROUP_MAX = 64  # members of a stage in one `Reduce`, and as many observers


@dataclass(frozen=True, slots=True)
class Member:
    """One living incarnation."""

    incarnation: Incarnation
    address: str
    stage: int
    since: int
    """The first step whose reduction reaches it."""
    ready: bool

    @property
    def record(self) -> MemberRecord:
        """The member as the views show it."""
        return MemberRecord(
            self.incarnation.peer, self.address, self.stage, self.incarnation.number, self.ready
        )


@dataclass(frozen=True, slots=True)
class StageGroup:
    """The members that take part in the reduction of one stage."""

    members: list[Member]
    """The members that add their sums."""
    observers: list[Member]
    """Newcomers that receive the result only."""


class Membership:
    """The living members; a peer has at most one incarnation at a time."""

    def __init__(self, stages: int) -> None:
        self._stages = stages
        self._members: dict[bytes, Member] = {}
        self._incarnations = 0
        self._groups: dict[tuple[bool, int | None], list[Member]] = {}
        self.number = 0
        """Rises with every change: the number of the view."""

    def admit(self, peer: bytes, address: str, stage: int | None, since: int) -> Member:
        """Begin an incarnation, on the stage it asks for or where the fewest serve."""
        self._incarnations += 1
        where = stage if stage is not None and stage < self._stages else self._neediest()
        member = Member(Incarnation(peer, self._incarnations), address, where, since, ready=False)
        self._members[peer] = member
        self._changed()  # last: `_neediest` has filled the cache
        return member

    def make_ready(self, incarnation: Incarnation) -> Member:
        """Let routers choose it."""
        member = replace(self._members[incarnation.peer], ready=True)
        self._members[incarnation.peer] = member
        self._changed()
        return member

    def end(self, incarnation: Incarnation) -> Member | None:
        """End an incarnation; None if it was over before."""
        member = self.alive(incarnation)
        if member is not None:
            del self._members[incarnation.peer]
            self._changed()
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
        return self._group(stage, ready=True)

    def waiting(self, stage: int | None = None) -> list[Member]:
        """The members that are not ready yet, by peer id; of one stage or of all."""
        return self._group(stage, ready=False)

    def group(self, stage: int) -> StageGroup:
        """The members that reduce a stage's gradient, and the newcomers that receive it."""
        return StageGroup(self.ready(stage), self.waiting(stage)[:GROUP_MAX])

    def records(self) -> tuple[MemberRecord, ...]:
        """All members, as the next view shows them."""
        return tuple(m.record for m in self._in_order())

    def unserved_stages(self, at_least: int = 1) -> list[int]:
        """The stages with fewer than `at_least` ready members."""
        return [s for s in range(self._stages) if len(self.ready(s)) < at_least]

    def _changed(self) -> None:
        self.number += 1
        self._groups = {}

    def _group(self, stage: int | None, *, ready: bool) -> list[Member]:
        """Members of a stage; cached until the membership changes, as every note asks for them."""
        key = (ready, stage)
        if key not in self._groups:
            self._groups[key] = [
                m for m in self._in_order() if m.ready is ready and stage in (None, m.stage)
            ]
        return self._groups[key]

    def _in_order(self) -> list[Member]:
        return [self._members[peer] for peer in sorted(self._members)]

    def _neediest(self) -> int:
        """Fewest ready members first, then fewest members at all, then the first stage."""
        serving = [(len(self.ready(s)) + len(self.waiting(s)), s) for s in range(self._stages)]
        return min(serving)[1]
