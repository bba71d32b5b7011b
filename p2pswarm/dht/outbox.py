"""Records that are to be stored soon, not now: gathered by peer, many in one message.

Units:   seconds on the caller's monotonic clock; bytes.
Errors:  none.
"""

from dataclasses import dataclass, field

from p2pswarm.dht.messages import PAGE_BYTES, RECORDS_MAX, Record
from p2pswarm.ids import Contact

WAIT_S = 0.25  # long enough to gather, short enough that nobody misses the replica
PEERS_MAX = 1024  # boxes at once; a record for one more is dropped, its owner will republish


@dataclass(frozen=True, slots=True)
class Parcel:
    """One record on its way, and whom to tell what became of it."""

    record: Record
    owner: object
    """None if nobody wants to know."""


@dataclass(slots=True)
class _Box:
    """What waits for one peer."""

    contact: Contact
    due_s: float
    parcels: list[Parcel] = field(default_factory=list)
    size_bytes: int = 0


class Outbox:
    """Boxes by peer, the one that is due first in front."""

    def __init__(self) -> None:
        self._boxes: dict[Contact, _Box] = {}
        self._full: list[_Box] = []

    def add(self, contact: Contact, parcel: Parcel, now_s: float) -> bool:
        """Put a record into the peer's box; False if there is no room for another box."""
        box = self._boxes.get(contact)
        size_bytes = parcel.record.size_bytes
        if box is not None and (
            box.size_bytes + size_bytes > PAGE_BYTES or len(box.parcels) >= RECORDS_MAX
        ):
            self._full.append(self._boxes.pop(contact))
            box = None
        if box is None:
            if len(self._boxes) + len(self._full) >= PEERS_MAX:
                return False
            box = self._boxes[contact] = _Box(contact, now_s + WAIT_S)
        box.parcels.append(parcel)
        box.size_bytes += size_bytes
        return True

    def due(self, now_s: float) -> list[tuple[Contact, list[Parcel]]]:
        """The boxes to send now."""
        boxes, self._full = self._full, []
        for contact, box in tuple(self._boxes.items()):
            if box.due_s > now_s:
                break  # boxes stand in the order of their making
            boxes.append(self._boxes.pop(contact))
        return [(box.contact, box.parcels) for box in boxes]

    def next_due_s(self) -> float:
        """When the first box is due; inf if all are empty."""
        if self._full:
            return float("-inf")
        first = next(iter(self._boxes.values()), None)
        return first.due_s if first else float("inf")
