"""RecordStore: the records that a node keeps for others.

The store refuses records that have expired, expire too late, are forged or too large. A
record that comes from its own publisher over an authenticated link is genuine. So it is
kept and sent to readers before its signature is checked; a reader checks the signature
anyway. `prove` checks it soon after the first read, so that a record with a wrong
signature does not stay. We also check it before we use the record ourselves.

Each publisher has a quota. When memory is full, the publisher that uses most gives up its
oldest records (`store_shares.py`). Refusing a record costs little, however much is kept.

Units:   `_ms` milliseconds since 1970 on the wall clock; bytes.
Errors:  none: every offered record gets a `Verdict`.
Source:  BEP 44; go-libp2p-kad-dht's validator (Validate, Select).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.expiries import Expiries
from p2pswarm.discovery.dht.messages import SUBKEY_BYTES_MAX, VALUE_BYTES_MAX, Record
from p2pswarm.discovery.dht.records import SignatureCache, may_write, newer, written_by
from p2pswarm.discovery.dht.store_shares import StoredRecord, StoreShares

PROVED_AT_ONCE = 64  # signatures: 5 ms
EXPIRED_AT_ONCE = 512  # records: 5 ms
HELD_BYTES = 1500
"""Of an empty record with its key and its publisher, measured in a node whose store a flood has
exchanged three times: 1,120 of objects, and memory of those that went which nobody uses again."""


class Verdict(IntEnum):
    """What became of an offered record."""

    KEPT = 0
    SAME = 1
    """We hold the same record."""
    OLDER = 2
    """We hold a newer record."""
    EXPIRED = 3
    FUTURE = 4
    """It expires later than any record may, or the clocks differ."""
    FORGED = 5
    TOO_LARGE = 6
    QUOTA = 7
    """The publisher has used its quota here."""
    FULL = 8
    """The store is full, and nobody uses more of it than the publisher."""


@dataclass(slots=True)
class _KeyRecords:
    """The records of one key."""

    by_subkey: dict[bytes, StoredRecord] = field(default_factory=dict)
    order: list[bytes] = field(default_factory=list)
    """The subkeys, sorted: a reader of one page pays for no other."""


class RecordStore:
    """Records by key and subkey."""

    def __init__(self, config: DhtConfig, signatures: SignatureCache) -> None:
        self._config = config
        self._signatures = signatures
        self._keys: dict[bytes, _KeyRecords] = {}
        self._shares = StoreShares()
        self._expiries = Expiries()
        self._unproven: dict[StoredRecord, None] = {}
        """Records that were read and are still to be checked."""
        self._count = 0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def offer(self, record: Record, sender: PeerId, now_ms: int) -> Verdict:
        """Keep a record that `sender` sent us, if it may be kept."""
        refusal = self._invalid(record, now_ms)
        if refusal is not None:
            return refusal
        held = self._held(record.key, record.subkey)
        if held is not None and newer(held.record, record) is held.record:
            return Verdict.SAME if held.record == record else Verdict.OLDER
        size_bytes = used_bytes(record)
        refusal = self._beyond_share(record, size_bytes, held)
        if refusal is not None:
            return refusal
        proven = False
        if not (written_by(record, sender) and may_write(record)):
            proven = self._signatures.holds(record)  # the dearest check comes last
            if not proven:
                return Verdict.FORGED
        self._keep(StoredRecord(record, size_bytes, proven), held)
        return Verdict.KEPT

    def _invalid(self, record: Record, now_ms: int) -> Verdict | None:
        """Why a record must be refused whoever signed it, or None."""
        if record.expires_ms <= now_ms:
            return Verdict.EXPIRED
        latest_ms = now_ms + int(1000 * (self._config.ttl_most_s + self._config.skew_s))
        if record.expires_ms > latest_ms:
            return Verdict.FUTURE
        if len(record.value) > VALUE_BYTES_MAX or len(record.subkey) > SUBKEY_BYTES_MAX:
            return Verdict.TOO_LARGE
        return None

    def _beyond_share(
        self, record: Record, size_bytes: int, held: StoredRecord | None
    ) -> Verdict | None:
        """Why a publisher may not keep so much here, or None; `held`: what would be replaced."""
        config, publisher = self._config, record.public_key
        freed_bytes = held.size_bytes if held else 0
        records, used_bytes = self._shares.used(publisher)
        records, used_bytes = records + 1, used_bytes + size_bytes
        if held is not None and held.record.public_key == publisher:
            records, used_bytes = records - 1, used_bytes - freed_bytes
        if records > config.records_per_publisher or used_bytes > config.bytes_per_publisher:
            return Verdict.QUOTA
        if self.size_bytes - freed_bytes + size_bytes <= config.store_bytes:
            return None
        fits = size_bytes <= config.store_bytes and self._shares.largest_exceeds(used_bytes)
        return None if fits else Verdict.FULL

    def _keep(self, stored: StoredRecord, held: StoredRecord | None) -> None:
        record = stored.record
        if held is not None:
            self._forget(record.key, record.subkey)
        while self.size_bytes + stored.size_bytes > self._config.store_bytes:
            first = self._shares.first_to_go().record
            self._forget(first.key, first.subkey)
        records = self._keys.get(record.key)
        if records is None:
            records = self._keys[record.key] = _KeyRecords()
        records.by_subkey[record.subkey] = stored
        insort(records.order, record.subkey)
        self._shares.add(stored)
        self.size_bytes += stored.size_bytes
        self._count += 1
        self._expiries.add(stored)

    def _held(self, key: bytes, subkey: bytes) -> StoredRecord | None:
        records = self._keys.get(key)
        return records.by_subkey.get(subkey) if records else None

    def _forget(self, key: bytes, subkey: bytes) -> None:
        records = self._keys[key]
        stored = records.by_subkey.pop(subkey)
        del records.order[bisect_left(records.order, subkey)]
        if not records.order:
            del self._keys[key]
        self._unproven.pop(stored, None)
        self._expiries.remove(stored)
        self._shares.remove(stored)
        self.size_bytes -= stored.size_bytes
        self._count -= 1

    def read(self, key: bytes, now_ms: int, after: bytes = b"") -> Iterator[Record]:
        """The records after the subkey `after`, in order, for a reader that checks signatures.

        An empty `after` starts at the beginning, the empty subkey included. Nothing may be kept
        or forgotten between two records.
        """
        self.expire(now_ms)  # so that no reader passes over the same expired ones for long
        records = self._keys.get(key)
        if records is None:
            return
        first = bisect_right(records.order, after) if after else 0
        for at in range(first, len(records.order)):
            held = records.by_subkey[records.order[at]]
            if held.record.expires_ms <= now_ms:
                continue
            if not held.proven:
                self._unproven[held] = None
            yield held.record

    @property
    def unproven(self) -> bool:
        """Whether records were read whose signatures are still to be checked."""
        return bool(self._unproven)

    def prove(self) -> None:
        """Check signatures of records that were read; forget records with a wrong one.

        Checks PROVED_AT_ONCE at most: `unproven` tells whether there are more.
        """
        for _ in range(min(PROVED_AT_ONCE, len(self._unproven))):
            held, _ = self._unproven.popitem()
            held.proven = self._signatures.holds(held.record)
            if not held.proven:
                self._forget(held.record.key, held.record.subkey)

    def next_expiry_ms(self) -> int | None:
        """The time at which the first record may expire; None if the store is empty."""
        return self._expiries.next_ms()

    def expire(self, now_ms: int) -> None:
        """Forget records that have expired, EXPIRED_AT_ONCE at most.

        If there are more, `next_expiry_ms` is over still.
        """
        left = EXPIRED_AT_ONCE
        while left and (due := self._expiries.due(now_ms, left)):
            left -= len(due)
            for stored in due:
                self._forget(stored.record.key, stored.record.subkey)


def used_bytes(record: Record) -> int:
    """What a record uses of a store, in memory: at most, since keys and publishers are shared."""
    return HELD_BYTES + len(record.subkey) + len(record.value)
