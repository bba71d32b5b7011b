"""Records: who may sign one, which of two is newer, and the store that keeps those of others.

A record is signed by its publisher, so any peer may deliver it. Of two records for the same subkey
the one with the higher (seq, expires) counts on every node. So all copies agree, in whatever order
and however often they are merged.

A subkey of 32 bytes is a peer's id, and only that peer may sign for it. Every other subkey is
shared, and the last writer wins.

Units:   `_ms` milliseconds since 1970 on the wall clock; bytes.
Errors:  ValueError for a key, subkey or value of ours that no node would keep.
Source:  BEP 44 (mutable items: key, salt, seq, signature); RFC 8032 for Ed25519;
         go-libp2p-kad-dht's validator (Validate, Select).
"""

import hashlib
import heapq
import struct
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum

from p2pswarm.base.ids import PEER_ID_BYTES, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import SUBKEY_BYTES_MAX, VALUE_BYTES_MAX, Record
from p2pswarm.net.crypto.identity import Identity, verify

TAG = b"p2pswarm-dht-record-1:"  # separates these signatures from every other use of the key
PROOFS_MAX = 8192  # remembered digests of valid signatures, 1 MB
_HEAD = struct.Struct(">32sQQB")
_unsigned = b"\0" * 64


def sign(
    identity: Identity, key: bytes, subkey: bytes, value: bytes, seq: int, expires_ms: int
) -> Record:
    """Make a signed record of ours; ValueError if no node would keep it."""
    if len(key) != PEER_ID_BYTES or len(subkey) > SUBKEY_BYTES_MAX:
        raise ValueError(f"a key has 32 bytes, a subkey 0..64; not {len(key)} and {len(subkey)}")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"a value has {VALUE_BYTES_MAX} bytes at most, not {len(value)}")
    if len(subkey) == PEER_ID_BYTES and subkey != identity.peer_id.raw:
        raise ValueError("a subkey of 32 bytes is a peer's id, and this one is not ours")
    draft = Record(key, subkey, value, seq, expires_ms, identity.public_key, _unsigned)
    signature = identity.sign(TAG, _body(draft))
    return Record(key, subkey, value, seq, expires_ms, identity.public_key, signature)


def _body(record: Record) -> bytes:
    """The signed bytes: they have every field, and differ for any two records."""
    head = _HEAD.pack(record.key, record.seq, record.expires_ms, len(record.subkey))
    return b"".join((head, record.subkey, record.value))


def rank(record: Record) -> tuple[int, int, bytes, bytes, bytes]:
    """The order of the records of a subkey, of which the highest counts; no two are equal."""
    return record.seq, record.expires_ms, record.signature, record.public_key, record.value


def merge(into: dict[bytes, Record], records: Iterable[Record]) -> None:
    """Add records to `into`, which keeps the newest of each subkey."""
    for record in records:
        known = into.get(record.subkey)
        if known is None or (known is not record and rank(record) > rank(known)):
            into[record.subkey] = record


def written_by(record: Record, peer: PeerId) -> bool:
    """Return whether `peer`, which its link has authenticated, published the record."""
    return PeerId.of_key(record.public_key) == peer


class SignatureCache:
    """Checks signatures, and remembers the valid ones."""

    def __init__(self) -> None:
        self._true: dict[bytes, None] = {}

    def holds(self, record: Record) -> bool:
        """Return whether the publisher has signed the record and may write its subkey."""
        body = _body(record)
        digest = hashlib.sha256(record.public_key + record.signature + body).digest()
        if digest in self._true:
            return True
        if not may_write(record) or not verify(record.public_key, TAG, body, record.signature):
            return False
        self._true[digest] = None
        if len(self._true) > PROOFS_MAX:
            del self._true[next(iter(self._true))]
        return True


def may_write(record: Record) -> bool:
    """Return whether the subkey belongs to the record's publisher, or to no peer."""
    if len(record.subkey) != PEER_ID_BYTES:
        return True
    return PeerId.of_key(record.public_key).raw == record.subkey


LEVEL_BITS = 2  # four levels for each doubling: shares that differ by a quarter count as equal


@dataclass(slots=True, eq=False)
class StoredRecord:
    """A kept record."""

    record: Record
    size_bytes: int
    """Its share of the store."""
    proven: bool
    """True if its signature was checked."""


@dataclass(slots=True)
class _Share:
    """The share of one publisher."""

    records: dict[StoredRecord, None] = field(default_factory=dict)
    """The oldest first."""
    size_bytes: int = 0
    level: int = 0


class StoreShares:
    """The publishers of a store's records: the share of each, and whose record makes room.

    The publisher that uses most gives up its oldest record. So a flood drives out itself: who
    keeps little here loses nothing, whatever keys the flood chooses. Keys far from us do not go
    first, because whoever floods a store chooses keys close to it.

    Publishers are kept in levels of size. Those of one level count as equal, and the one that came
    to it first gives first. So a change costs the same however many publishers there are.

    Source: Suter et al., "Buffer management schemes for supporting TCP in gigabit routers" (1999):
    drop from the longest queue.
    """

    def __init__(self) -> None:
        self._shares: dict[bytes, _Share] = {}
        self._levels: dict[int, dict[bytes, None]] = {}
        self._highest = 0
        """No level above it has a publisher."""

    def used(self, publisher: bytes) -> tuple[int, int]:
        """Return the number of records that a publisher has here, and their bytes."""
        share = self._shares.get(publisher)
        return (len(share.records), share.size_bytes) if share else (0, 0)

    def add(self, stored: StoredRecord) -> None:
        """Charge a record to its publisher."""
        publisher = stored.record.public_key
        share = self._shares.setdefault(publisher, _Share())
        share.records[stored] = None
        self._resize(publisher, share, stored.size_bytes)

    def remove(self, stored: StoredRecord) -> None:
        """Charge a record no longer."""
        publisher = stored.record.public_key
        share = self._shares[publisher]
        del share.records[stored]
        self._resize(publisher, share, -stored.size_bytes)
        if not share.records:
            del self._shares[publisher]

    def _resize(self, publisher: bytes, share: _Share, change_bytes: int) -> None:
        share.size_bytes += change_bytes
        level = level_of(share.size_bytes)
        if level == share.level:
            return
        if share.level:
            del self._levels[share.level][publisher]
        if level:
            self._levels.setdefault(level, {})[publisher] = None
            self._highest = max(self._highest, level)
        share.level = level

    def largest_exceeds(self, size_bytes: int) -> bool:
        """Return whether some publisher uses more than `size_bytes`."""
        return self._largest() > level_of(size_bytes)

    def first_to_go(self) -> StoredRecord:
        """The oldest record of the publisher that uses most; there must be one."""
        largest = next(iter(self._levels[self._largest()]))
        return next(iter(self._shares[largest].records))

    def _largest(self) -> int:
        """The level of the publisher that uses most; 0 if there is none."""
        while self._highest and not self._levels.get(self._highest):
            self._highest -= 1
        return self._highest


def level_of(size_bytes: int) -> int:
    """The level of a share: 0 if it is empty; it grows with the logarithm of its size."""
    bits = size_bytes.bit_length()
    first_bits = size_bytes << LEVEL_BITS + 1 >> bits
    return (bits << LEVEL_BITS) + (first_bits & (1 << LEVEL_BITS) - 1)


TICK_MS = 1000


class Expiries:
    """The kept records by the second in which each expires.

    Records of one second are kept together, so that keeping, replacing and forgetting one cost the
    same however many there are, and `due` can be asked for a portion. A record leaves up to a
    second late; who reads checks the time itself.

    Source: Varghese and Lauck, "Hashed and hierarchical timing wheels" (1987), scheme 4.
    """

    def __init__(self) -> None:
        self._by_tick: dict[int, dict[StoredRecord, None]] = {}
        self._ticks: list[int] = []
        """A heap of the keys of `_by_tick`, each once: 3,606 if no record lasts over an hour."""

    def add(self, stored: StoredRecord) -> None:
        """Note when a record expires."""
        tick = _tick_of(stored)
        records = self._by_tick.get(tick)
        if records is None:
            records = self._by_tick[tick] = {}
            heapq.heappush(self._ticks, tick)
        records[stored] = None

    def remove(self, stored: StoredRecord) -> None:
        """Note that a record is no longer kept."""
        del self._by_tick[_tick_of(stored)][stored]

    def next_ms(self) -> int | None:
        """The time at which the first record may expire; None if nothing is noted."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def due(self, now_ms: int, most: int) -> list[StoredRecord]:
        """Some records that have expired, at most so many, of one second; `remove` each."""
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            records = self._by_tick[self._ticks[0]]
            if records:
                return [*records][-most:]
            del self._by_tick[heapq.heappop(self._ticks)]
        return []


def _tick_of(stored: StoredRecord) -> int:
    """The first tick at which a record has expired."""
    return -(-stored.record.expires_ms // TICK_MS)


PROVED_AT_ONCE = 64  # signatures: 5 ms
EXPIRED_AT_ONCE = 512  # records: 5 ms
HELD_BYTES = 1500
"""Of an empty record with its key and its publisher, measured in a node whose store a flood has
exchanged three times: 1,120 of objects, and memory of those that went which nobody uses again."""


class Verdict(IntEnum):
    """The fate of an offered record."""

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
    """The records that a node keeps for others, by key and subkey.

    The store refuses records that have expired, expire too late, are forged or too large. A record
    that comes from its own publisher over an authenticated link is genuine. So it is kept and sent
    to readers before its signature is checked; a reader checks the signature anyway. `prove`
    checks it soon after the first read, so that a record with a wrong signature does not stay. We
    also check it before we use the record ourselves.

    Each publisher has a quota. When memory is full, the publisher that uses most gives up its
    oldest records (`StoreShares`). Refusing a record costs little, however much is kept.
    """

    def __init__(self, config: DhtConfig, signatures: SignatureCache) -> None:
        self._config = config
        self._signatures = signatures
        self._keys: defaultdict[bytes, _KeyRecords] = defaultdict(_KeyRecords)
        self._shares = StoreShares()
        self._expiries = Expiries()
        self._unproven: dict[StoredRecord, None] = {}
        """Records that were read and are still to be checked."""
        self.size_bytes = 0

    def __len__(self) -> int:
        return sum(len(records.order) for records in self._keys.values())

    def __contains__(self, key: bytes) -> bool:
        return key in self._keys

    def offer(self, record: Record, sender: PeerId, now_ms: int) -> Verdict:
        """Keep a record that `sender` sent us, if it may be kept."""
        refusal = self._invalid(record, now_ms)
        if refusal is not None:
            return refusal
        held = self._held(record.key, record.subkey)
        if held is not None and rank(held.record) >= rank(record):
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
        """Return why a record must be refused whoever signed it, or None."""
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
        """Return why a publisher may not keep so much here, or None; `held`: what it replaces."""
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
        records = self._keys[record.key]
        records.by_subkey[record.subkey] = stored
        insort(records.order, record.subkey)
        self._shares.add(stored)
        self.size_bytes += stored.size_bytes
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
        """True if records were read whose signatures are still to be checked."""
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
    """Return the memory of a record in a store: at most, since keys and publishers are shared."""
    return HELD_BYTES + len(record.subkey) + len(record.value)
