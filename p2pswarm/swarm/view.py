"""Who is in the run, as a member knows it from the views that the trainer sends.

A view is cut into messages. A member uses a view only when all its parts have come, so nobody
routes by half a view.

Errors:  DialFailed for a member whose address cannot be read; a part of an older view is ignored.
"""

from dataclasses import dataclass

from p2pswarm.errors import DialFailed
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.swarm.messages.membership import MemberRecord, View
from p2pswarm.swarm.messages.types import VIEW_PART_MAX


@dataclass(frozen=True, slots=True, order=True)
class Incarnation:
    """One incarnation of one peer. Ledgers and fences are about incarnations, not peers."""

    peer: bytes
    number: int

    def __str__(self) -> str:
        return f"{PeerId(self.peer).short}#{self.number}"


def incarnation_of(member: MemberRecord) -> Incarnation:
    """The incarnation that a record describes."""
    return Incarnation(member.peer, member.incarnation)


def contact(member: MemberRecord) -> Contact:
    """Where to dial a member; raises DialFailed if its address cannot be read."""
    try:
        return Contact(PeerId(member.peer), Address.parse(member.address))
    except ValueError as error:
        raise DialFailed(f"a member without an address: {error}") from error


def view_parts(number: int, members: tuple[MemberRecord, ...]) -> list[View]:
    """Cut a whole view into messages."""
    cuts = [members[i : i + VIEW_PART_MAX] for i in range(0, len(members), VIEW_PART_MAX)] or [()]
    return [View(number, part, len(cuts), cut) for part, cut in enumerate(cuts)]


class MemberView:
    """The newest whole view."""

    def __init__(self) -> None:
        self._number = -1
        self._members: dict[bytes, MemberRecord] = {}
        self._building = -1
        self._pending: dict[int, View] = {}

    @property
    def members(self) -> tuple[MemberRecord, ...]:
        """All members, ready or not, in the order of their peer ids."""
        return tuple(self._members.values())

    def receive(self, part: View) -> bool:
        """Take one part; True if it completes a newer view."""
        if part.number <= self._number or part.number < self._building:
            return False
        if part.number > self._building:
            self._building, self._pending = part.number, {}
        self._pending[part.part] = part
        if len(self._pending) < part.parts:
            return False

        whole = [m for _, view in sorted(self._pending.items()) for m in view.members]
        self._members = {m.peer: m for m in sorted(whole, key=lambda m: m.peer)}
        self._number, self._pending = part.number, {}
        return True

    def ready(self, stage: int) -> tuple[MemberRecord, ...]:
        """The members that may be given microbatches of `stage`."""
        return tuple(m for m in self._members.values() if m.stage == stage and m.ready)

    def record(self, peer: bytes) -> MemberRecord | None:
        """The record of a peer; None if the view does not name it."""
        return self._members.get(peer)

    def find(self, peer: bytes) -> Contact | None:
        """Where to dial a member of the run; None if no view has named it."""
        record = self._members.get(peer)
        return contact(record) if record else None

    def donors(self, stage: int, me: PeerId | None) -> tuple[Contact, ...]:
        """The other members that hold the weights of `stage`."""
        return tuple(contact(m) for m in self.ready(stage) if me is None or m.peer != me.raw)
