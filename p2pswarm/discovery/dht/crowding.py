"""Crowding: more peers next to a key than chance puts there, and where to store and look then.

Ids are hashes, so honest peers are spread evenly. Whoever makes a few hundred keys has ids closer
to a key than all honest peers, would be the only holders of its records, and could keep silent. But
so many peers so close to one another are rarely there by chance: the n-th closest of a swarm of N
is at about n/N of all distances, and how far that varies is known (a sum of n exponential
variables). How full our buckets are tells N.

Around a *crowded* key, records are stored with and sought at all peers of a *region* in which some
dozens of honest peers are expected. These are found by looking up random ids in each part of it, so
ids next to the key, or next to any other id that can be foreseen, attract none of these lookups.
Nor do these lookups ask anybody who stands where the crowd does. The region grows with no number of
hostile ids, and the honest peers in it hold every record.

Units:   distances as shares of all, multiplied by the size of the swarm: *expected peers* within.
Source:  Sridhar et al., "Content Censorship in the InterPlanetary File System" (NDSS 2024): to
         detect by the distribution of distances, and to use a region instead; Cholez et al.,
         "Evaluation of Sybil Attacks Protection Schemes in KAD" (AIMS 2009).
"""

import hashlib
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import islice

from p2pswarm.base.ids import PEER_ID_BYTES, Contact, PeerId
from p2pswarm.discovery.dht.routing_table import ID_BITS, Table

CROWDED = {8: 1.5, 20: 7.0}
"""So many peers within so many expected ones are a crowd: by chance one key of 5,000 has one."""
DENSE_COUNT, DENSE = 8, 5.0
"""Such a key is watched: one of eight has that by chance. Twenty hold its records instead of eight;
else who stays just under `CROWDED` hides one key of five, where no honest peer is as close."""
BUCKETS_COUNTED = 3  # to tell the size of the swarm: about 12, 6 and 3 peers of many
COUNTED_LEAST = 4  # peers; fewer tell nothing
REGION_PEERS = 32  # expected honest ones, 64 at most: 20 of these are there nearly for certain
CROWD_PEERS = max(CROWDED.values())  # honest ones expected where a crowd stands
CROWD_SHARE_MAX = 1 / 8  # of all ids: a crowd around a key takes no more of a small swarm
PARTS = 8  # of a region, each with a lookup of its own that finds 20
REGION_MAX = 160  # peers of a region that hold a record and are asked: what the lookups find
PATIENCE_S = 2.0  # for each lookup that follows a suspicion: a put or get takes 5 s at most
REGION_QUORUM = 8  # holders of a region whose answers a larger quorum merges: some lack a record
REGION_FIRST = 32  # of these are asked at once by a put
REGION_SUCCESS = 24  # of these must say that they keep a record: some lie
ELSEWHERE = 2  # other keys under which records are, too: each needs a crowd of its own
KEYS_MAX = 64  # crowded keys that are remembered: 2 MB, if all of their regions are
CROWDED_S = 600.0  # how long a key counts as crowded; then it is looked at anew
REGION_S = 60.0  # how long the peers of a region are remembered


_TAG = b"p2pswarm-dht-elsewhere:"


class Spread(Enum):
    """The spread of the peers closest to a key."""

    EVEN = auto()
    DENSE = auto()
    """So close together that more of them should hold a record; one of eight is, by chance."""
    CROWDED = auto()
    """So close together as chance puts them hardly ever."""

    @classmethod
    def of(cls, distances: Sequence[int], size: float) -> "Spread":
        """The spread of peers, given by their distances from near to far."""
        if is_crowded(distances, size):
            return cls.CROWDED
        return cls.DENSE if is_dense(distances, size) else cls.EVEN


def size_of(table: Table) -> float:
    """About how many servers the swarm has; at least 1.

    Buckets with room have all peers of their ranges, so we count these. Only the widest such ranges
    count: whoever makes ids next to us, or next to a key close to us, is in one narrow range, and
    fills its bucket. A node that has not refreshed its buckets yet counts its closest neighbours.
    """
    counted, share = 1, 0.0
    for index, count in islice(table.sparse(), BUCKETS_COUNTED):
        counted += count
        share += 0.5 ** (index + 1)
    if counted > COUNTED_LEAST:
        return counted / share
    k = table.config.k
    near = table.nearest(table.own.raw, k)
    if len(near) < k:
        return 1.0 + len(near)
    farthest = near[-1].number ^ int.from_bytes(table.own.raw)
    return (k - 1) * (1 << ID_BITS) / farthest  # k - 1: without bias, where the k-th is the bound


def expected_within(distance: int, size: float) -> float:
    """Return the number of peers of a swarm that are expected within a distance of any id."""
    return size * distance / (1 << ID_BITS)


def is_crowded(distances: Sequence[int], size: float) -> bool:
    """Return whether the closest peers, given by their distances in order, are a crowd."""
    return any(
        len(distances) >= count and expected_within(distances[count - 1], size) < most
        for count, most in CROWDED.items()
    )


def is_dense(distances: Sequence[int], size: float) -> bool:
    """Return whether the closest peers are so close that more of them should hold a record."""
    many = len(distances) >= DENSE_COUNT
    return many and expected_within(distances[DENSE_COUNT - 1], size) < DENSE


def crowd_within(size: float) -> int:
    """The distance from a crowded key within which a crowd stands: nobody there leads a lookup.

    Ids next to the key are closer to every point of its region than most honest peers of our table,
    and name only each other. In a swarm of few it is less, so that somebody is left to ask.
    """
    return int(min(CROWD_PEERS / size, CROWD_SHARE_MAX) * (1 << ID_BITS))


@dataclass(frozen=True, slots=True)
class Crowd:
    """Where a crowd stands: closer than `within` to a key."""

    key: bytes
    within: int

    def holds(self, peer: PeerId) -> bool:
        """Return whether a peer stands there."""
        return peer.distance(self.key) < self.within


def distances_to(key: bytes, contacts: Iterable[Contact]) -> list[int]:
    """The distances of contacts to a key, in their order."""
    return [each.peer.distance(key) for each in contacts if each.peer is not None]


def points_around(key: bytes, size: float, rng: random.Random) -> list[bytes]:
    """A random id in each part of a key's region: look these up to find the region's peers."""
    shared = 0
    while size / 2 ** (shared + 1) >= REGION_PEERS:
        shared += 1
    free = ID_BITS - shared
    prefix = int.from_bytes(key) >> free << free
    part_bits = free - (PARTS - 1).bit_length()
    return [
        (prefix | part << part_bits | rng.getrandbits(part_bits)).to_bytes(PEER_ID_BYTES)
        for part in range(PARTS)
    ]


def closest_of(key: bytes, points: Sequence[bytes]) -> bytes:
    """The point that is closest to a key."""
    number = int.from_bytes(key)
    return min(points, key=lambda each: int.from_bytes(each) ^ number)


def keys_elsewhere(key: bytes) -> list[bytes]:
    """The keys under which the records of a key are stored, too, and sought if they are missed."""
    return [hashlib.sha256(_TAG + bytes([number]) + key).digest() for number in range(ELSEWHERE)]


class CrowdedKeys:
    """The keys around which a crowd was seen a short time ago, and the peers of their regions."""

    def __init__(self) -> None:
        self._seen_s: dict[bytes, float] = {}
        """Time at which a crowd was seen; the oldest first."""
        self._regions: dict[bytes, tuple[float, list[Contact]]] = {}

    def add(self, key: bytes, now_s: float) -> None:
        """Note a crowd around a key."""
        if not self.holds(key, now_s):
            self._seen_s.pop(key, None)  # to the end of the dict
            self._seen_s[key] = now_s
        if len(self._seen_s) > KEYS_MAX:
            oldest = next(iter(self._seen_s))
            del self._seen_s[oldest]
            self._regions.pop(oldest, None)

    def holds(self, key: bytes, now_s: float) -> bool:
        """Return whether a crowd was seen around a key."""
        seen_s = self._seen_s.get(key)
        return seen_s is not None and now_s - seen_s < CROWDED_S

    def on_region(self, key: bytes, region: list[Contact], now_s: float) -> None:
        """Note the peers of a crowded key's region."""
        if key in self._seen_s:
            self._regions[key] = now_s, region

    def region(self, key: bytes, now_s: float) -> list[Contact]:
        """The peers of a crowded key's region as they were a short time ago; empty if unknown."""
        learned_s, region = self._regions.get(key, (float("-inf"), []))
        return region if now_s - learned_s < REGION_S else []


def members(found: Iterable[Sequence[Contact]], rng: random.Random) -> list[Contact]:
    """The peers that some lookups have found, each once, in a random order."""
    union = list({each.peer: each for contacts in found for each in contacts}.values())
    rng.shuffle(union)
    return union[:REGION_MAX]
