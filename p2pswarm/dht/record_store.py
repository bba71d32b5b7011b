"""RecordStore: the records that a node keeps for others.

The store refuses records that have expired, expire too late, are forged or too large. A
record that comes from its own publisher over an authenticated link is genuine. So it is
kept and sent to readers before its signature is checked; a reader checks the signature
anyway. `prove` checks it soon after the first read, so that a record with a wrong
signature does not stay. We also check it before we use the record ourselves.

Each publisher has a quota. When memory is full, the keys farthest from us are forgotten
first, because other nodes are closer to them.

Units:   `_ms` milliseconds since 1970 on the wall clock; bytes.
Errors:  none: every offered record gets a `Verdict`.
Source:  BEP 44; go-libp2p-kad-dht's validator (Validate, Select).
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.messages import SUBKEY_BYTES_MAX, VALUE_BYTES_MAX, Record
from p2pswarm.dht.records import SignatureCache, may_write, newer, written_by
from p2pswarm.ids import PeerId

FREED_SHARE = 0.05  # of a full store, in one go: one sort serves many records
ENDS_SPARE = 1024  # expiries of replaced records that may stay in the heap


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
    """The store is full of keys that are closer to us."""


@dataclass(slots=True)
class _StoredRecord:
    """A kept record, and whether its signature was checked."""

    record: Record
    proven: bool


@dataclass(slots=True)
class _Share:
    """How much of its quota one publisher uses."""

    records: int = 0
    size_bytes: int = 0


class RecordStore:
    """Records by key and subkey."""

    def __init__(self, own: PeerId, config: DhtConfig, signatures: SignatureCache) -> None:
        self._own_number = int.from_bytes(own.raw)
        self._config = config
        self._signatures = signatures
        self._keys: dict[bytes, dict[bytes, _StoredRecord]] = {}
        self._shares: dict[bytes, _Share] = {}
        self._ends: list[tuple[int, bytes, bytes]] = []
        """A heap of (expires_ms, key, subkey); entries of replaced records stay for a while."""
        self._unproven: dict[tuple[bytes, bytes], None] = {}
        """(key, subkey) of records that were read and are still to be checked."""
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
        held = self._keys.get(record.key, {}).get(record.subkey)
        if held is not None and newer(held.record, record) is held.record:
            return Verdict.SAME if held.record == record else Verdict.OLDER
        proven = False
        if not (written_by(record, sender) and may_write(record)):
            proven = self._signatures.holds(record)
            if not proven:
                return Verdict.FORGED
        if not self._within_quota(record, held):
            return Verdict.QUOTA
        if not self._make_space(record, held):
            return Verdict.FULL
        self._keep(record, held, proven=proven)
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

    def _within_quota(self, record: Record, held: _StoredRecord | None) -> bool:
        share = self._shares.get(record.public_key, _Share())
        records, size_bytes = share.records + 1, share.size_bytes + record.size_bytes
        if held is not None and held.record.public_key == record.public_key:
            records, size_bytes = records - 1, size_bytes - held.record.size_bytes
        config = self._config
        return records <= config.records_per_publisher and size_bytes <= config.bytes_per_publisher

    def _make_space(self, record: Record, held: _StoredRecord | None) -> bool:
        """Forget keys that are farther away if needed; returns whether the record fits then."""
        space_bytes = self._config.store_bytes - record.size_bytes
        freed_bytes = held.record.size_bytes if held else 0
        if self.size_bytes - freed_bytes <= space_bytes:
            return True
        wanted_bytes = space_bytes - int(FREED_SHARE * self._config.store_bytes)
        own_distance = self._distance(record.key)
        for key in sorted(self._keys, key=self._distance, reverse=True):
            if self.size_bytes <= wanted_bytes or self._distance(key) <= own_distance:
                break
            for subkey in tuple(self._keys[key]):
                self._forget(key, subkey)
        return self.size_bytes <= space_bytes

    def _distance(self, key: bytes) -> int:
        return int.from_bytes(key) ^ self._own_number

    def _keep(self, record: Record, held: _StoredRecord | None, *, proven: bool) -> None:
        if held is not None:
            self._forget(record.key, record.subkey)
        self._keys.setdefault(record.key, {})[record.subkey] = _StoredRecord(record, proven)
        share = self._shares.setdefault(record.public_key, _Share())
        share.records += 1
        share.size_bytes += record.size_bytes
        self.size_bytes += record.size_bytes
        self._count += 1
        heapq.heappush(self._ends, (record.expires_ms, record.key, record.subkey))
        if len(self._ends) > ENDS_SPARE + 2 * self._count:
            self._ends = [
                (held.record.expires_ms, key, subkey)
                for key, by_subkey in self._keys.items()
                for subkey, held in by_subkey.items()
            ]
            heapq.heapify(self._ends)

    def _forget(self, key: bytes, subkey: bytes) -> None:
        record = self._keys[key].pop(subkey).record
        self._unproven.pop((key, subkey), None)
        if not self._keys[key]:
            del self._keys[key]
        share = self._shares[record.public_key]
        share.records -= 1
        share.size_bytes -= record.size_bytes
        if not share.records:
            del self._shares[record.public_key]
        self.size_bytes -= record.size_bytes
        self._count -= 1

    def read(self, key: bytes, now_ms: int, after: bytes = b"") -> Iterator[Record]:
        """The records after the subkey `after`, in order, for a reader that checks signatures.

        An empty `after` starts at the beginning, the empty subkey included.
        """
        for subkey in sorted(self._keys.get(key, ())):
            if after and subkey <= after:
                continue
            held = self._keys[key][subkey]
            if held.record.expires_ms <= now_ms:
                self._forget(key, subkey)
                continue
            if not held.proven:
                self._unproven[key, subkey] = None
            yield held.record

    @property
    def unproven(self) -> bool:
        """Whether records were read whose signatures are still to be checked."""
        return bool(self._unproven)

    def prove(self) -> None:
        """Check the signatures of records that were read; forget records with a wrong one."""
        for key, subkey in tuple(self._unproven):
            held = self._keys[key][subkey]
            held.proven = self._signatures.holds(held.record)
            if not held.proven:
                self._forget(key, subkey)
        self._unproven.clear()

    def next_expiry_ms(self) -> int | None:
        """The time at which the first record may expire; None if the store is empty."""
        return self._ends[0][0] if self._ends else None

    def expire(self, now_ms: int) -> None:
        """Forget records that have expired."""
        while self._ends and self._ends[0][0] <= now_ms:
            _, key, subkey = heapq.heappop(self._ends)
            held = self._keys.get(key, {}).get(subkey)
            if held is not None and held.record.expires_ms <= now_ms:
                self._forget(key, subkey)
