"""The routing table: bucket i has the peers whose ids share exactly i leading bits with ours.

Shapes:  bucket i holds 0..k contacts, i in 0..255.
Source:  Maymounkov and Mazieres, "Kademlia" (2002), 2.2, 2.4 and 4.1; go-libp2p-kbucket's diversity
         filter for the caps on networks.
"""

import ipaddress
import random
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from p2pswarm.base.ids import PEER_ID_BYTES, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.net.os.addresses import address_groups, believable

CHECK_EVERY_S = 5.0  # one ping per bucket in this time, however many newcomers there are


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A server that we have met; a handshake has proven its id."""

    contact: Contact
    raw: bytes
    """Its id."""
    number: int = field(repr=False)
    """The id as a number, to measure distances by."""
    near_net: str
    """The /24 network of its address; empty for a private network, which has no cap."""
    wide_net: str
    """The /16 network of its address, or empty."""
    heard_s: float
    """The time at which it last reached us."""


class Bucket:
    """One k-bucket: at most `capacity` live contacts at one distance, and `waiting` newcomers.

    A full bucket never drops a contact that still answers, because a node that has stayed long is
    likely to stay longer. So a newcomer waits while the contact that has been silent longest is
    checked. The bucket does not ping: it returns the contact to check, and its caller reports the
    outcome.
    """

    __slots__ = ("_capacity", "_live", "_next_check_s", "_per_net", "_waiting", "_waiting_most")

    def __init__(self, capacity: int, waiting: int, per_net: int) -> None:
        if capacity < 1:
            raise ValueError(f"a bucket holds 1 contact or more, not {capacity}")
        self._capacity = capacity
        self._waiting_most = waiting
        self._per_net = per_net
        self._live: dict[bytes, Neighbour] = {}
        self._waiting: dict[bytes, Neighbour] = {}
        self._next_check_s = float("-inf")

    def __len__(self) -> int:
        return len(self._live)

    @property
    def full(self) -> bool:
        """True if a newcomer would have to wait."""
        return len(self._live) >= self._capacity

    @property
    def live(self) -> Collection[Neighbour]:
        """The live contacts, in the order in which they came."""
        return self._live.values()

    def get(self, raw: bytes) -> Neighbour | None:
        """The live contact with this id."""
        return self._live.get(raw)

    def renew(self, neighbour: Neighbour) -> None:
        """Note that a live contact has reached us again."""
        self._live[neighbour.raw] = neighbour

    def on_newcomer(self, newcomer: Neighbour) -> Neighbour | None:
        """Note that `newcomer`, which is not live here, reached us at `newcomer.heard_s`.

        Returns the live contact to check if the newcomer has to wait for it. Report the
        outcome with `renew` or `lost`. A missing report does no harm: `CHECK_EVERY_S` later
        the bucket asks for another check.
        """
        if self._crowded(newcomer):
            return None
        if not self.full:
            self._live[newcomer.raw] = newcomer
            self._waiting.pop(newcomer.raw, None)
            return None

        self._waiting[newcomer.raw] = newcomer
        if len(self._waiting) > self._waiting_most:
            del self._waiting[min(self._waiting.values(), key=_silence).raw]

        if newcomer.heard_s < self._next_check_s:
            return None
        self._next_check_s = newcomer.heard_s + CHECK_EVERY_S
        return min(self._live.values(), key=_silence)

    def on_loss(self, raw: bytes, barred: Collection[str] = ()) -> Neighbour | None:
        """Drop a contact that did not answer; the freshest newcomer takes its place.

        Newcomers from a wide network in `barred` go on waiting. Returns the newcomer that
        came in, or None if there is none or `raw` is not here.
        """
        self._waiting.pop(raw, None)
        if self._live.pop(raw, None) is None:
            return None
        allowed = [each for each in self._waiting.values() if each.wide_net not in barred]
        if not allowed:
            return None
        newcomer = max(allowed, key=_silence)
        del self._waiting[newcomer.raw]
        self._live[newcomer.raw] = newcomer
        return newcomer

    def _crowded(self, newcomer: Neighbour) -> bool:
        """Return whether enough contacts of its network are here, live and waiting together."""
        if not newcomer.near_net:
            return False
        alike = [
            each.raw != newcomer.raw and each.near_net == newcomer.near_net
            for each in (*self._live.values(), *self._waiting.values())
        ]
        return sum(alike) >= self._per_net


def _silence(neighbour: Neighbour) -> tuple[float, bytes]:
    """A sort key: the longest silent first; the id decides ties, so every run agrees."""
    return neighbour.heard_s, neighbour.raw


ID_BITS = 8 * PEER_ID_BYTES
NEVER = float("-inf")
HEARD_STEP_S = 1.0  # a contact that calls often is not updated every time
SURE_REFRESHES = 2.0  # a bucket counts as complete for two refresh periods
SEEN_HOSTS = 16_384  # hosts whose network is remembered


class Table:
    """The servers we know.

    Of the peers close to us the table knows all, of the others at most k at each distance. It
    tells which contact to check and which buckets to refresh, but sends nothing itself.

    If a bucket has been refreshed and is not full, we know every peer in its range. So in a small
    swarm, or close to us, the table alone knows which peers are closest to a key, and no lookup is
    needed. `sure` tells when that is so.

    Raises ValueError for a contact without an id; a peer can cause none.
    """

    def __init__(self, own: PeerId, config: DhtConfig) -> None:
        self.own = own
        self._own_number = int.from_bytes(own.raw)
        self.config = config
        self.depth = 0
        """The number of the deepest bucket plus one; when it grows there is more to refresh."""
        self._buckets: dict[int, Bucket] = {}
        self._refreshed_s: dict[int, float] = {}
        self._complete_s: dict[int, float] = {}
        self._refused_s: dict[int, float] = {}
        self._deep_from, self._deep_s = ID_BITS, NEVER
        """At the time `_deep_s` we knew every peer in the buckets from `_deep_from` on."""
        self._strikes: Counter[bytes] = Counter()
        self._wide: Counter[str] = Counter()

    def __len__(self) -> int:
        return sum(len(bucket) for bucket in self._buckets.values())

    def __iter__(self) -> Iterator[Neighbour]:
        """All live contacts, the farthest buckets first."""
        for index in sorted(self._buckets):
            yield from self._buckets[index].live

    def get(self, raw: bytes) -> Neighbour | None:
        """The live contact with this id."""
        bucket = self._buckets.get(self.index(raw))
        return bucket.get(raw) if bucket else None

    def index(self, raw: bytes) -> int:
        """The number of leading bits that an id shares with ours: its bucket's number."""
        return ID_BITS - (int.from_bytes(raw) ^ self._own_number).bit_length()

    def on_contact(self, contact: Contact, now_s: float) -> Contact | None:
        """Note that a proven server has reached us; returns a contact to check, or None."""
        if contact.peer is None:
            raise ValueError(f"{contact.address} has no id yet: greet it first")
        if not believable(contact.address, self.config.least_scope):
            return None
        raw = contact.peer.raw
        index = self.index(raw)
        known = self.get(raw)
        if known is not None:
            self._strikes.pop(raw, None)
            self._renew(self._buckets[index], known, contact, now_s)
            return None
        if raw == self.own.raw:
            return None
        newcomer = neighbour(contact, now_s)
        if newcomer.wide_net and self._wide[newcomer.wide_net] >= self.config.per_wide_net:
            self._refused_s[index] = now_s
            return None
        return self._insert(index, newcomer)

    def _renew(self, bucket: Bucket, known: Neighbour, contact: Contact, now_s: float) -> None:
        if contact.address == known.contact.address:
            if now_s - known.heard_s >= HEARD_STEP_S:
                bucket.renew(replace(known, heard_s=now_s))
            return
        self._drop(bucket, known)  # it has moved, and its new network has caps, too
        self.on_contact(contact, now_s)

    def _insert(self, index: int, newcomer: Neighbour) -> Contact | None:
        bucket = self._buckets.get(index)
        if bucket is None:
            config = self.config
            bucket = Bucket(config.k, config.waiting, config.per_near_net)
            self._buckets[index] = bucket
            self.depth = max(self.depth, index + 1)
        check = bucket.on_newcomer(newcomer)
        if bucket.get(newcomer.raw) is not None:
            self._wide[newcomer.wide_net] += 1
        else:
            self._refused_s[index] = newcomer.heard_s
        return check.contact if check else None

    def fill(self, index: int, neighbours: Iterable[Neighbour]) -> None:
        """Add neighbours to the bucket `index`, to which they belong; for large simulations.

        It counts as refreshed at time 0.
        """
        self._refreshed_s.setdefault(index, 0.0)
        for each in neighbours:
            if not each.wide_net or self._wide[each.wide_net] < self.config.per_wide_net:
                self._insert(index, each)

    def sparse(self) -> Iterator[tuple[int, int]]:
        """Each bucket that was refreshed and still has room, by number, and what it holds.

        So it has about all peers of its range.
        """
        for index in range(self.depth):
            bucket = self._buckets.get(index)
            if self._looked_s(index) > NEVER and not (bucket and bucket.full):
                yield index, len(bucket or ())

    def on_failure(self, raw: bytes) -> None:
        """Note that a contact did not answer; after `strikes` failures in a row it is dropped."""
        if self.get(raw) is None:
            return
        self._strikes[raw] += 1
        if self._strikes[raw] >= self.config.strikes:
            self.drop(raw)

    def drop(self, raw: bytes) -> None:
        """Drop a contact at once, because it broke the protocol or does not serve."""
        known = self.get(raw)
        if known is not None:
            self._drop(self._buckets[self.index(raw)], known)

    def on_successor(self, found: Contact) -> None:
        """Drop who was where another peer was found now: others would be told of it for long."""
        for each in list(self):
            if each.contact.address == found.address and each.contact.peer != found.peer:
                self.drop(each.raw)

    def _drop(self, bucket: Bucket, known: Neighbour) -> None:
        self._strikes.pop(known.raw, None)
        self._wide[known.wide_net] -= 1
        most = self.config.per_wide_net
        barred = [net for net, count in self._wide.items() if net and count >= most]
        newcomer = bucket.on_loss(known.raw, barred)
        if newcomer is not None:
            self._wide[newcomer.wide_net] += 1
        if not self._wide[known.wide_net]:
            del self._wide[known.wide_net]

    def nearest(self, key: bytes, count: int) -> list[Neighbour]:
        """The `count` contacts closest to `key`, closest first."""
        target = int.from_bytes(key)
        found: list[Neighbour] = []
        for ring in self._outwards(target):
            ring.sort(key=lambda each: each.number ^ target)
            found += ring
            if len(found) >= count:
                break
        return found[:count]

    def closest(self, key: bytes) -> list[Contact]:
        """The k contacts closest to `key`, closest first."""
        return [each.contact for each in self.nearest(key, self.config.k)]

    def _outwards(self, target: int) -> Iterator[list[Neighbour]]:
        """Our contacts in groups; each contact is closer to `target` than all in the next group."""
        here = ID_BITS - (target ^ self._own_number).bit_length()
        buckets = self._buckets
        if here in buckets:
            yield list(buckets[here].live)
        yield [each for i, bucket in buckets.items() if i > here for each in bucket.live]
        for i in sorted((i for i in buckets if i < here), reverse=True):
            yield list(buckets[i].live)

    def sure(self, key: bytes, found: Sequence[Neighbour], count: int, now_s: float) -> bool:
        """Return whether we know all of the `count` servers closest to `key`.

        `found` is the result of `nearest(key, count)`.
        """
        here = self.index(key)
        last = self.index(found[-1].raw) if len(found) == count else 0
        if not self._complete(here, now_s):
            return False
        if last == here:
            return True
        ring = (*range(here + 1, self.depth), *range(last, here))
        return self._complete(ID_BITS, now_s) and all(self._complete(i, now_s) for i in ring)

    def _complete(self, index: int, now_s: float) -> bool:
        """Return whether we know every peer in the range of a bucket."""
        bucket = self._buckets.get(index)
        if bucket is not None and bucket.full:
            return False
        looked_s = self._complete_s.get(index, NEVER)
        if index >= self._deep_from:
            looked_s = max(looked_s, self._deep_s)
        fresh = now_s - looked_s <= SURE_REFRESHES * self.config.refresh_s
        return fresh and self._refused_s.get(index, NEVER) < looked_s

    def on_refresh(self, key: bytes, answered: Sequence[bytes], now_s: float) -> None:
        """Note the end of a lookup that asked the k closest to `key`; `answered` has their ids."""
        indexes = [self.index(raw) for raw in answered]
        here = self.index(key)
        self._refreshed_s[here] = now_s
        if len(answered) < self.config.k:
            self._deep_from, self._deep_s = 0, now_s  # these are all peers of the swarm
        elif here == ID_BITS:
            self._deep_from, self._deep_s = min(indexes) + 1, now_s
        elif any(index != here for index in indexes):
            self._complete_s[here] = now_s  # peers in its range are closer than peers outside

    def stale(self, now_s: float, rng: random.Random) -> list[bytes]:
        """A random id to look up in each bucket that is due to be refreshed."""
        latest_s = now_s - self.config.refresh_s
        return [self._id_in(i, rng) for i in range(self.depth) if self._looked_s(i) <= latest_s]

    def at_every_distance(self, rng: random.Random) -> list[bytes]:
        """A random id in each bucket, but in those that a lookup of our own id covers."""
        nearest = self.nearest(self.own.raw, self.config.k)
        whole = len(nearest) < self.config.k  # too few to tell how far such a lookup reaches
        count = self.depth if whole else self.index(nearest[-1].raw) + 1
        return [self._id_in(index, rng) for index in range(count)]

    def next_refresh_s(self) -> float | None:
        """Return when the first bucket is due, -inf for one never refreshed; None without any."""
        looked_s = [self._looked_s(index) for index in range(self.depth)]
        return min(looked_s) + self.config.refresh_s if looked_s else None

    def _looked_s(self, index: int) -> float:
        """The time of the last lookup that covered a bucket."""
        looked_s = self._refreshed_s.get(index, NEVER)
        return max(looked_s, self._deep_s) if index >= self._deep_from else looked_s

    def _id_in(self, index: int, rng: random.Random) -> bytes:
        """A random id that shares exactly `index` leading bits with ours."""
        free = ID_BITS - index - 1
        flipped = self._own_number ^ (1 << free)
        number = (flipped >> free << free) | rng.getrandbits(free) if free else flipped
        return number.to_bytes(PEER_ID_BYTES)


def neighbour(contact: Contact, heard_s: float) -> Neighbour:
    """The table's entry for a contact."""
    assert contact.peer is not None
    raw = contact.peer.raw
    near_net, wide_net = networks(contact.address.host)
    number = int.from_bytes(raw)
    return Neighbour(contact, raw, number, near_net, wide_net, heard_s)


@lru_cache(maxsize=SEEN_HOSTS)
def networks(host: str) -> tuple[str, str]:
    """The /24 and /16 (IPv6: /48 and /32) of a public address; empty if it is private.

    For a host name, both are its last two labels, because their owner owns all names below. A
    name without a dot belongs to the local network.
    """
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        domain = ".".join(host.lower().rstrip(".").split(".")[-2:])
        return (domain, domain) if "." in domain else ("", "")
    if not ip.is_global:
        return "", ""
    _, wide, near, _ = address_groups(host)
    return near, wide
