"""Who is in the run, as a member knows it from the views that the trainer sends.

The first view is whole; each later one says what has changed since the one before. A view is cut
into messages. A member uses a view only when all its parts have come, so nobody routes by half a
view. Views come by one stream, in order: one that does not follow what is here is the trainer's
error, and a member that meets one joins again, and is sent the whole.

Errors:  DialFailed for a member whose address cannot be read. BadMessage for a view that does not
         follow the one before, or is too large; an older view is ignored.
"""

import functools
from dataclasses import dataclass, replace
from operator import attrgetter

from p2pswarm.base.errors import BadMessage, DialFailed
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.run.messages.field_limits import MEMBERS_MAX, VIEW_PART_MAX
from p2pswarm.run.messages.membership import MemberRecord, View

RECORD_BYTES = 64  # of a record beside its address and its card
RECORDS_BYTES_MAX = 48 * 1024  # of one message; the numbers beside them take 5 KiB at most
RECORDS_MIN = 30  # that many fit, however long their addresses and cards are
PARTS_MAX = 2 * MEMBERS_MAX // RECORDS_MIN  # all join, and as many former ones are gone


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
    """Return where to dial a member; raises DialFailed if its address cannot be read."""
    try:
        return Contact(PeerId(member.peer), _address(member.address))
    except ValueError as error:
        raise DialFailed(f"a member without an address: {error}") from error


@functools.lru_cache(maxsize=MEMBERS_MAX)
def _address(text: str) -> Address:
    """An address that is written so; a push reads one, and views name the same again and again."""
    return Address.parse(text)


def view_parts(
    number: int,
    joined: tuple[MemberRecord, ...],
    since: int = 0,
    *,
    gone: tuple[int, ...] = (),
    ready: tuple[int, ...] = (),
) -> list[View]:
    """Cut a view into messages; without `since` it is whole."""
    records = _record_parts(joined)
    longest = max(len(gone), len(ready))
    parts = max(-(-longest // VIEW_PART_MAX), len(records), 1)
    records += [()] * (parts - len(records))
    cuts = [slice(at * VIEW_PART_MAX, (at + 1) * VIEW_PART_MAX) for at in range(parts)]
    return [
        View(number, since, at + 1 < parts, gone[cut], records[at], ready[cut])
        for at, cut in enumerate(cuts)
    ]


def _record_parts(records: tuple[MemberRecord, ...]) -> list[tuple[MemberRecord, ...]]:
    """Records cut so that each part fits into a message, beside the numbers of others."""
    parts: list[tuple[MemberRecord, ...]] = []
    begin = nbytes = 0
    for at, record in enumerate(records):
        size = RECORD_BYTES + len(record.address.encode()) + len(record.card)
        if at - begin == VIEW_PART_MAX or nbytes + size > RECORDS_BYTES_MAX:
            parts.append(records[begin:at])
            begin, nbytes = at, 0
        nbytes += size
    return [*parts, records[begin:]]


class MemberView:
    """The newest view."""

    def __init__(self) -> None:
        self._number = 0
        self._members: dict[bytes, MemberRecord] = {}
        self.members: tuple[MemberRecord, ...] = ()
        """All members, ready or not, in the order of their peer ids."""
        self._parts: list[View] = []
        """Of a view that is not complete yet."""
        self._ready: dict[int, tuple[MemberRecord, ...]] = {}
        """The ready members of the stages that were asked for since the view is here."""

    @property
    def peers(self) -> list[bytes]:
        """The ids of all members, in their order."""
        return list(self._members)

    def receive(self, part: View) -> bool:
        """Take a part; True if it completes a newer view; BadMessage if it does not follow ours."""
        if part.number <= self._number:
            return False
        first = self._parts[0] if self._parts else part
        same = (part.number, part.since) == (first.number, first.since)
        if part.since not in (0, self._number) or not same:
            raise BadMessage(
                f"view {part.number} follows view {part.since}, and view {self._number} is here"
            )
        self._parts.append(part)
        if len(self._parts) > PARTS_MAX:
            raise BadMessage(f"a view of more than {MEMBERS_MAX} members")
        if part.more:
            return False
        parts, self._parts = self._parts, []
        self._apply(parts)
        return True

    def _apply(self, parts: list[View]) -> None:
        known = {} if parts[0].since == 0 else {m.incarnation: m for m in self._members.values()}
        for number in (number for part in parts for number in part.gone):
            known.pop(number, None)
        known |= {member.incarnation: member for part in parts for member in part.joined}
        for number in (number for part in parts for number in part.ready):
            if number in known:
                known[number] = replace(known[number], ready=True)
        if len(known) > MEMBERS_MAX:
            raise BadMessage(f"a view of more than {MEMBERS_MAX} members")
        self.members = tuple(sorted(known.values(), key=attrgetter("peer")))
        self._members = {m.peer: m for m in self.members}
        self._number = parts[0].number
        self._ready.clear()

    def ready(self, stage: int) -> tuple[MemberRecord, ...]:
        """The members that may be given microbatches of `stage`."""
        if stage not in self._ready:
            there = tuple(m for m in self._members.values() if m.stage == stage and m.ready)
            self._ready[stage] = there
        return self._ready[stage]

    def record(self, peer: bytes) -> MemberRecord | None:
        """The record of a peer; None if the view does not name it."""
        return self._members.get(peer)

    def find(self, peer: bytes) -> Contact | None:
        """Return where to dial a member of the run; None if no view has named it."""
        record = self._members.get(peer)
        return contact(record) if record else None

    def donors(self, stage: int, me: PeerId | None) -> tuple[Contact, ...]:
        """The other members that hold the weights of `stage`."""
        return tuple(contact(m) for m in self.ready(stage) if me is None or m.peer != me.raw)
