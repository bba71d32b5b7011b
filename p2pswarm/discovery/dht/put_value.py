"""PutValue: the query that stores a record with its holders; Publisher has our own values.

Source:  go-libp2p-kad-dht's optimistic provide, for returning before all have answered.
"""

import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from p2pswarm.base.errors import BadMessage, NoRoute, Refused, Unusable
from p2pswarm.base.ids import PEER_ID_BYTES, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator, raw_id
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import (
    REGION_FIRST,
    REGION_MAX,
    REGION_SUCCESS,
    Spread,
    keys_elsewhere,
)
from p2pswarm.discovery.dht.lookup import QueryRequest
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Record, Store, Stored
from p2pswarm.discovery.dht.records import Verdict, sign
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOptions:
    """The number of peers that are to hold a record, and how soon."""

    replicas: int
    """The number of peers that are to hold the record."""
    success: int
    """The number of peers that must hold it before `ready`; 0 if no task waits."""
    first: int
    """The number of peers that are asked at once; the rest are asked later."""
    patience_s: float
    """The query ends after this long in any case."""


class PutValue:
    """The query that stores a record with the peers closest to its key.

    The `replicas` closest peers are to hold the record. They are asked in the order of their
    distance, so that all publishers of a key use the same peers, and one holder knows every
    subkey. The first wave asks as many peers as success needs, or all of them if contacts are
    often dead. After success the caller goes on. The remaining peers get the record a little
    later, with other records in one message. The next peer replaces one that fails or is slow.
    """

    def __init__(
        self,
        record: Record,
        candidates: Sequence[Contact],
        options: PutOptions,
        timeouts: TimeoutEstimator,
    ) -> None:
        """`candidates`: the contacts to ask, closest first."""
        self.record = record
        self.refusals: list[int] = []
        """The verdicts of the peers that did not keep it."""
        self.held_by: list[Contact] = []
        """The peers that hold it."""
        self._request = Store((record,))
        self._left = list(candidates[::-1])
        self._replicas = min(options.replicas, len(candidates))
        self._success = min(options.success, self._replicas)
        self._first = min(options.first, self._replicas)
        self._timeouts = timeouts
        self._patience_s = options.patience_s
        self._waits: dict[Contact, float] = {}
        """The peers that were asked, and the time from which each is slow."""
        self._slow: dict[Contact, None] = {}
        self._end_s: float | None = None
        """The time at which the query ends in any case; set by the first `drain`."""

    @property
    def holders(self) -> int:
        """The number of peers that hold the record so far."""
        return len(self.held_by)

    @property
    def ready(self) -> bool:
        """True if enough peers hold the record, or no peer is left to ask."""
        return self.holders >= self._success or self.finished

    @property
    def finished(self) -> bool:
        """True if all replicas are placed, or no more can be."""
        if self.holders >= self._replicas:
            return True
        return not (self._left or self._waits or self._slow)

    def drain(self, now_s: float) -> list[QueryRequest]:
        """The requests of the first wave, with replacements; after success the others."""
        if self._end_s is None:
            self._end_s = now_s + self._patience_s
        asks: list[QueryRequest] = []
        if self.holders < self._success:
            while self._left and self.holders + len(self._waits) < self._first:
                contact = self._left.pop()
                self._waits[contact] = now_s + self._timeouts.hedge_s(raw_id(contact))
                asks.append(QueryRequest(contact, self._request))
            return asks
        while self._left and self.holders + len(self._waits) + len(self._slow) < self._replicas:
            contact = self._left.pop()
            self._slow[contact] = None
            asks.append(QueryRequest(contact, self._request, at_leisure=True))
        return asks

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        del now_s
        if not isinstance(reply, Stored) or len(reply.verdicts) != 1:
            raise BadMessage(f"{type(reply).__name__} does not answer Store")
        verdict = reply.verdicts[0]
        self._forget(contact)
        ours_alone = len(self.record.subkey) == PEER_ID_BYTES
        if verdict in (Verdict.KEPT, Verdict.SAME):
            self.held_by.append(contact)
        elif verdict == Verdict.OLDER and ours_alone:
            self.held_by.append(contact)  # it has what we published later
        else:
            self.refusals.append(verdict)

    def on_failure(self, contact: Contact) -> None:
        """See `Query`."""
        self._forget(contact)

    def _forget(self, contact: Contact) -> None:
        self._waits.pop(contact, None)
        self._slow.pop(contact, None)

    def next_deadline_s(self) -> float | None:
        """See `Query`."""
        return min(self._waits.values(), default=self._end_s)

    def on_deadline(self, now_s: float) -> None:
        """Replace slow peers, which may still answer, and end the query when its time is over."""
        for contact, slow_at_s in tuple(self._waits.items()):
            if slow_at_s <= now_s:
                del self._waits[contact]
                self._slow[contact] = None
        if self._end_s is not None and now_s >= self._end_s:
            self._left.clear()
            self._waits.clear()
            self._slow.clear()


REPUBLISH_SHARE = 1 / 3  # of the time to live, so that two attempts may fail


@dataclass(slots=True)
class Publication:
    """A value of ours."""

    key: bytes
    subkey: bytes
    value: bytes
    seq: int
    ttl_s: float
    due_s: float
    """The time to publish it again."""


CLOCK_VERDICTS = frozenset({Verdict.EXPIRED, Verdict.FUTURE})  # our clock and theirs differ
_VERDICTS = frozenset(map(int, Verdict))


class Publisher:
    """Our own values: it signs them, chooses their holders, and tells when to publish them again.

    Each value has a higher sequence number than the last.
    """

    def __init__(self, identity: Identity, config: DhtConfig, rng: random.Random) -> None:
        self._identity = identity
        self._config = config
        self._rng = rng
        self._seq = 0
        self._ours: dict[tuple[bytes, bytes], Publication] = {}
        """By key and subkey."""

    def publication(
        self, key: bytes, subkey: bytes, value: bytes, ttl_s: float, now_ms: int
    ) -> Publication:
        """A value with its sequence number; ValueError if no peer keeps a value that long."""
        if not 0 < ttl_s <= self._config.ttl_most_s:
            raise ValueError(f"a value lives up to {self._config.ttl_most_s:g} s, not {ttl_s}")
        # the wall clock goes on while the node is down, so its numbers rise after a restart
        self._seq = max(self._seq + 1, now_ms)
        return Publication(key, subkey, value, self._seq, ttl_s, 0.0)

    def sign(self, publication: Publication, now_ms: int) -> Record:
        """The signed record of a publication; its time to live starts now."""
        expires_ms = now_ms + int(1000 * publication.ttl_s)
        key, subkey = publication.key, publication.subkey
        return sign(self._identity, key, subkey, publication.value, publication.seq, expires_ms)

    def copies(self, record: Record) -> list[Record]:
        """The record under the other keys where it is sought if it is not found under its own."""
        rest = record.subkey, record.value, record.seq, record.expires_ms
        return [sign(self._identity, key, *rest) for key in keys_elsewhere(record.key)]

    def options(self, failure_share: float, spread: Spread, *, waited_for: bool) -> PutOptions:
        """The options of a put; when contacts are often dead, all holders are asked at once."""
        config = self._config
        crowded = spread is Spread.CROWDED
        success = REGION_SUCCESS if crowded else config.replicas_success
        if not waited_for:
            success = 0
        calm = failure_share <= config.calm_share
        all_at_once = REGION_FIRST if crowded else config.replicas
        return PutOptions(
            replicas={Spread.EVEN: config.replicas, Spread.DENSE: config.k}.get(spread, REGION_MAX),
            success=success,
            first=success if calm or not waited_for else all_at_once,
            patience_s=config.lookup_s,
        )

    def candidates(self, key: bytes, found: Sequence[Contact], own: Contact) -> list[Contact]:
        """The k contacts closest to a key, with ourselves among them if we are a server."""
        near = [each for each in found if each.peer is not None]
        if self._config.server and own.peer is not None:
            distances = [each.peer.distance(key) for each in near if each.peer]
            near.insert(bisect_left(distances, own.peer.distance(key)), own)
        return near[: self._config.k]

    # when to publish again

    def keep(self, publication: Publication, now_s: float) -> None:
        """Publish a value again from time to time, in place of one with its key and subkey.

        Raises ValueError if there are too many values.
        """
        place = publication.key, publication.subkey
        most = self._config.records_per_publisher
        if place not in self._ours and len(self._ours) >= most:
            raise ValueError(f"{most} values are published already: withdraw some of them")
        self._ours[place] = publication
        self._postpone(publication, now_s)

    def withdraw(self, key: bytes, subkey: bytes) -> None:
        """Let a value expire."""
        self._ours.pop((key, subkey), None)

    def due(self, now_s: float) -> list[Publication]:
        """The values to publish now; each is due again after a third of its time to live."""
        due = [each for each in self._ours.values() if each.due_s <= now_s]
        for publication in due:
            self._postpone(publication, now_s)
        return due

    def keeps(self, publication: Publication) -> bool:
        """Return whether a publication was neither withdrawn nor replaced."""
        return self._ours.get((publication.key, publication.subkey)) is publication

    def next_deadline_s(self) -> float | None:
        """The time at which the first value is due; None without values."""
        return min((each.due_s for each in self._ours.values()), default=None)

    def _postpone(self, publication: Publication, now_s: float) -> None:
        jitter = self._config.jitter
        pause_s = publication.ttl_s * REPUBLISH_SHARE
        publication.due_s = now_s + pause_s * self._rng.uniform(1 - jitter, 1 + jitter)


def holders_of(put_value: PutValue, own: PeerId) -> int:
    """Return the number of peers that hold the record; raises the reason if none does.

    By our own clock we would keep it ourselves: that says nothing where all others refuse it for
    their clocks, since they would not believe it.
    """
    refusals = {Verdict(each) for each in put_value.refusals if each in _VERDICTS}
    clocks_differ = bool(refusals & CLOCK_VERDICTS)
    others = sum(1 for each in put_value.held_by if each.peer != own)
    if put_value.holders and (others or not clocks_differ):
        return put_value.holders
    if clocks_differ:
        raise Unusable(
            "the clocks of other peers differ by minutes: set this machine's clock, or theirs"
        )
    if Verdict.OLDER in refusals:
        raise Refused(
            "another peer's value under this subkey is newer: a subkey that is this node's id is "
            "its own"
        )
    if refusals:
        names = ", ".join(sorted(each.name for each in refusals))
        raise Refused(f"no peer kept the value: {names}")
    raise NoRoute("no peer could be reached to keep the value")


WAIT_S = 0.25  # long enough to collect records, and short for a replica that is not urgent


@dataclass(frozen=True, slots=True)
class BatchedRecord:
    """A record to store, and who learns what became of it."""

    record: Record
    on_reply: Callable[[Contact, Message | None], None] | None = None
    """Takes the peer's answer for this record alone, None if none came."""


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
    """Collects records for each peer, so that one message stores many of them."""

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
        """Return when the first batch is due, -inf if one is full; None if there is none."""
        if self._full:
            return float("-inf")
        first = next(iter(self._batches.values()), None)
        return first.due_s if first else None
