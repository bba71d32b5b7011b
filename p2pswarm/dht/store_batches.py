"""Records that are to be stored soon, not now: gathered by peer, many in one message.

Units:   seconds on the caller's monotonic clock; bytes.
Errors:  none.
"""

from dataclasses import dataclass, field

from p2pswarm.dht.messages import PAGE_BYTES, RECORDS_MAX, Record
from p2pswarm.ids import Contact

WAIT_S = 0.25  # long enough to get_value, short enough that nobody misses the replica
PEERS_MAX = 1024  # batches at once; a record for one more is dropped, its owner will republish


@dataclass(frozen=True, slots=True)
class BatchedRecord:
    """One record on its way, and whom to tell what became of it."""

    record: Record
    owner: object
    """None if nobody wants to know."""


@dataclass(slots=True)
class _Batch:
    """What waits for one peer."""

    contact: Contact
    due_s: float
    batched: list[BatchedRecord] = field(default_factory=list)
    size_bytes: int = 0


class StoreBatcher:
    """Boxes by peer, the one that is due first in front."""

    def __init__(self) -> None:
        self._batches: dict[Contact, _Batch] = {}
        self._full: list[_Batch] = []

    def add(self, contact: Contact, batched_record: BatchedRecord, now_s: float) -> bool:
        """Put a record into the peer's batch; False if there is no room for another batch."""
        batch = self._batches.get(contact)
        size_bytes = batched_record.record.size_bytes
        if batch is not None and (
            batch.size_bytes + size_bytes > PAGE_BYTES or len(batch.batched) >= RECORDS_MAX
        ):
            self._full.append(self._batches.pop(contact))
            batch = None
        if batch is None:
            if len(self._batches) + len(self._full) >= PEERS_MAX:
                return False
            batch = self._batches[contact] = _Batch(contact, now_s + WAIT_S)
        batch.batched.append(batched_record)
        batch.size_bytes += size_bytes
        return True

    def due(self, now_s: float) -> list[tuple[Contact, list[BatchedRecord]]]:
        """The batches to send now."""
        batches, self._full = self._full, []
        for contact, batch in tuple(self._batches.items()):
            if batch.due_s > now_s:
                break  # batches stand in the order of their making
            batches.append(self._batches.pop(contact))
        return [(batch.contact, batch.batched) for batch in batches]

    def next_due_s(self) -> float:
        """When the first batch is due; inf if all are empty."""
        if self._full:
            return float("-inf")
        first = next(iter(self._batches.values()), None)
        return first.due_s if first else float("inf")
