"""Records that are to be stored soon, not now: gathered by peer, many in one message.

Units:   seconds on the caller's monotonic clock; bytes.
Errors:  BadMessage for a reply that is none to the batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from p2pswarm.dht.messages import PAGE_BYTES, RECORDS_MAX, Record, Store, Stored
from p2pswarm.errors import BadMessage
from p2pswarm.ids import Contact
from p2pswarm.wire.message import Message

WAIT_S = 0.25  # long enough to gather records, short enough that nobody misses the replica


class BatchOwner(Protocol):
    """Whoever wants to know what became of a record."""

    def on_reply(self, contact: Contact, reply: Message | None) -> None:
        """The peer's answer for this record alone; None if there is none."""
        ...


@dataclass(frozen=True, slots=True)
class BatchedRecord:
    """One record on its way, and whom to tell what became of it."""

    record: Record
    owner: BatchOwner | None
    """None if nobody wants to know, as with a repair."""


def store_of(listen_address: str, batched: Sequence[BatchedRecord]) -> Store:
    """One request for all records of a batch."""
    return Store(listen_address, tuple([each.record for each in batched]))


def stored_in(reply: Message | None, count: int) -> list[Stored | None]:
    """What the reply to a batch of `count` records says of each of them."""
    if reply is None:
        return [None] * count
    if not isinstance(reply, Stored) or len(reply.verdicts) != count:
        raise BadMessage(f"{type(reply).__name__} is no answer to a Store of {count} records")
    return [Stored(bytes([verdict])) for verdict in reply.verdicts]


@dataclass(slots=True)
class _Batch:
    """What waits for one peer."""

    contact: Contact
    due_s: float
    batched: list[BatchedRecord] = field(default_factory=list)
    size_bytes: int = 0


class StoreBatcher:
    """Batches by peer, in the order in which they are due."""

    def __init__(self, batches_max: int) -> None:
        """A record for one batch more than `batches_max` is dropped; its owner republishes."""
        self._batches_max = batches_max
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
                break  # batches stand in the order of their making
            batches.append(self._batches.pop(contact))
        return [(batch.contact, batch.batched) for batch in batches]

    def next_deadline_s(self) -> float | None:
        """When the first batch is due, -inf for one that is full; None if there is none."""
        if self._full:
            return float("-inf")
        first = next(iter(self._batches.values()), None)
        return first.due_s if first else None
