"""StoreBatcher: collects records for each peer, so that one message stores many of them.

Units:   seconds on the caller's monotonic clock; bytes.
Errors:  BadMessage for a reply that does not fit the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Record, Store, Stored
from p2pswarm.net.wire.message import Message

WAIT_S = 0.25  # long enough to collect records, and short for a replica that is not urgent


class BatchOwner(Protocol):
    """Learns what became of a record."""

    def on_reply(self, contact: Contact, reply: Message | None) -> None:
        """Take the peer's answer for this record alone; None if none came."""
        ...


@dataclass(frozen=True, slots=True)
class BatchedRecord:
    """A record to store, and its owner."""

    record: Record
    owner: BatchOwner | None
    """None if the outcome does not matter, as with a repair."""


def store_of(batched: Sequence[BatchedRecord]) -> Store:
    """The request for all records of a batch."""
    return Store(tuple([each.record for each in batched]))


def stored_in(reply: Message | None, count: int) -> list[Stored | None]:
    """Split the reply to a batch into one for each of its `count` records."""
    if reply is None:
        return [None] * count
    if not isinstance(reply, Stored) or len(reply.verdicts) != count:
        raise BadMessage(f"{type(reply).__name__} does not answer a Store of {count} records")
    return [Stored(bytes([verdict])) for verdict in reply.verdicts]


@dataclass(slots=True)
class _Batch:
    """The records that wait for one peer."""

    contact: Contact
    due_s: float
    batched: list[BatchedRecord] = field(default_factory=list)
    size_bytes: int = 0


class StoreBatcher:
    """Batches by peer, in the order in which they are due."""

    def __init__(self, batches_max: int) -> None:
        """`batches_max`: a record that would start one more batch is dropped."""
        self._batches_max = batches_max
        self._batches: dict[Contact, _Batch] = {}
        self._full: list[_Batch] = []

    def add(self, contact: Contact, batched_record: BatchedRecord, now_s: float) -> bool:
        """Add a record to the peer's batch; False if `batches_max` batches wait already."""
        batch = self._batches.get(contact)
        size_bytes = batched_record.record.size_bytes
        if batch is not None and (
            batch.size_bytes + size_bytes > PAGE_BYTES or len(batch.batched) >= RECORDS_MAX
        ):
            self._full.append(self._batches.pop(contact))
            batch = None
        if batch is None:
            if len(self._batches) + len(self._full) >= self._batches_max:
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
                break  # the dict has the batches in the order of their start
            batches.append(self._batches.pop(contact))
        return [(batch.contact, batch.batched) for batch in batches]

    def next_deadline_s(self) -> float | None:
        """When the first batch is due, -inf if one is full; None if there is none."""
        if self._full:
            return float("-inf")
        first = next(iter(self._batches.values()), None)
        return first.due_s if first else None
