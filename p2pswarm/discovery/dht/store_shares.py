"""StoreShares: which publisher uses how much of a store, and whose record makes room.

The publisher that uses most gives up its oldest record. So a flood drives out itself: who
keeps little here loses nothing, whatever keys the flood chooses. Keys far from us do not go
first, because whoever floods a store chooses keys close to it.

Publishers are kept in levels of size. Those of one level count as equal, and the one that
came to it first gives first. So a change costs the same however many publishers there are.

Units:   bytes.
Errors:  none.
Source:  Suter et al., "Buffer management schemes for supporting TCP in gigabit routers"
         (1999): drop from the longest queue.
"""

from dataclasses import dataclass, field

from p2pswarm.discovery.dht.messages import Record

LEVEL_BITS = 2  # four levels for each doubling: shares that differ by a quarter count as equal


@dataclass(slots=True, eq=False)
class StoredRecord:
    """A kept record."""

    record: Record
    size_bytes: int
    """What it uses of the store."""
    proven: bool
    """Whether its signature was checked."""


@dataclass(slots=True)
class _Share:
    """What one publisher uses."""

    records: dict[StoredRecord, None] = field(default_factory=dict)
    """The oldest first."""
    size_bytes: int = 0
    level: int = 0


class StoreShares:
    """The publishers of a store's records."""

    def __init__(self) -> None:
        self._shares: dict[bytes, _Share] = {}
        self._levels: dict[int, dict[bytes, None]] = {}
        self._highest = 0
        """No level above it has a publisher."""

    def used(self, publisher: bytes) -> tuple[int, int]:
        """How many records a publisher has here, and their bytes."""
        share = self._shares.get(publisher)
        return (len(share.records), share.size_bytes) if share else (0, 0)

    def add(self, stored: StoredRecord) -> None:
        """Charge a record to its publisher."""
        publisher = stored.record.public_key
        share = self._shares.get(publisher)
        if share is None:
            share = self._shares[publisher] = _Share()
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
        """Whether some publisher uses more than `size_bytes`."""
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
