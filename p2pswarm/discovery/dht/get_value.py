"""GetValue: the query for the records of a key; ValueReader makes those of our own gets.

Units:   seconds on the caller's monotonic clock; `_ms` and `wall_s` on the wall clock.
Source:  go-libp2p-kad-dht, `searchValueQuorum` and its correction of stale holders.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator, raw_id
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import REGION_QUORUM, size_of
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions, LookupQuery, QueryRequest
from p2pswarm.discovery.dht.messages import HOPS_MAX, RECORDS_MAX, Get, Got, Record
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache, merge
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.wire.message import Message

PAGES_MAX = 64  # read from one holder: 3 MiB, or 8,192 subkeys
REPAIRS_MAX = 2  # by one get; the next reader repairs the others


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """The records to get, and the number of holders to ask."""

    request: Get
    """The request to each peer."""
    quorum: int
    """The query ends when this many holders have answered with records."""
    wall_less_loop_s: float
    """The wall clock minus the loop's clock."""
    carried: int = 0
    """The number of first requests that the peers that receive them may carry on."""
    pages: int = PAGES_MAX
    """The most pages to read from one holder."""


class GetValue(LookupQuery):
    """The query for the records of a key, a lookup that sends `Get` and merges the answers.

    With a quorum of 1 the first holder's answer is enough. With a larger quorum, that many holders
    are asked, and the newest record of each subkey wins. `repairs` tells what the closest holders
    lack of the records that were found.
    """

    def __init__(
        self, lookup: Lookup, options: GetOptions, config: DhtConfig, signatures: SignatureCache
    ) -> None:
        super().__init__(lookup)
        self.records: dict[bytes, Record] = {}
        """The newest record of each subkey."""
        self._options = options
        self._config = config
        self._signatures = signatures
        self._answers: dict[Contact, dict[bytes, Record]] = {}
        """The records of each peer that answered."""
        self._cut: dict[Contact, None] = {}
        """The peers that have more records than they have sent."""
        self._next: list[QueryRequest] = []
        self._paging: dict[Contact, int] = {}
        self._carried = options.carried
        self.more = False
        """True if a holder had more pages than `pages`."""
        self.clocks_differ = False
        """True if a holder gave a record that by our clock is long over, or too far ahead."""
        self._all_answered = True

    @property
    def unsure(self) -> bool:
        """True if there may be records though none was found: not all who were asked answered."""
        return not self.records and not (self._answers and self._all_answered)

    def drain(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        further, self._next = self._next, []
        return further + [QueryRequest(each, self._request()) for each in self.lookup.drain(now_s)]

    def _request(self) -> Get:
        if not self._carried:
            return self._options.request
        self._carried -= 1
        return replace(self._options.request, hops=HOPS_MAX)

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        if not isinstance(reply, Got):
            raise BadMessage(f"{type(reply).__name__} does not answer Get")
        now_ms = int(1000 * (now_s + self._options.wall_less_loop_s))
        sound = [record for record in reply.records if self._sound(record, now_ms)]
        merge(self._answers.setdefault(contact, {}), sound)
        merge(self.records, sound)
        pages = self._paging.get(contact, 0) + 1
        self._paging[contact] = pages
        if reply.more and reply.records and not self.finished:
            if pages < self._options.pages:
                after = reply.records[-1].subkey
                request = replace(self._options.request, after=after)
                self._next.append(QueryRequest(contact, request))
                return
            self.more = True
        if reply.more:
            self._cut[contact] = None
        closer = self.lookup.unverified.named(reply.peer_list, contact)
        self.lookup.on_response(raw_id(contact), closer)
        if sum(map(bool, self._answers.values())) >= self._options.quorum:
            self.lookup.stop()

    def _sound(self, record: Record, now_ms: int) -> bool:
        """Return whether a record is valid; BadMessage if its sender broke the protocol.

        A wrong signature may also be the publisher's fault, and a wrong time may be our clock's, so
        the sender is not blamed for them.
        """
        if record.key != self._options.request.key:
            raise BadMessage("a record of another key")
        if not self._signatures.holds(record):
            return False
        skew_ms = int(1000 * self._config.skew_s)
        latest_ms = now_ms + int(1000 * self._config.ttl_most_s) + skew_ms
        if not now_ms - skew_ms < record.expires_ms <= latest_ms:
            self.clocks_differ = True
        return now_ms < record.expires_ms <= latest_ms

    def on_failure(self, contact: Contact) -> None:
        """See `Query`."""
        self._all_answered = False
        super().on_failure(contact)

    def on_deadline(self, now_s: float) -> None:
        """See `Query`."""
        super().on_deadline(now_s)
        if self.lookup.finished:
            self._all_answered = False  # who is late is waited for no longer

    def repairs(self) -> Iterator[tuple[Contact, list[Record]]]:
        """The closest peers whose answers lacked records, and the records that each one lacks."""
        if not self.records or len(self._answers) == 1:
            return
        repaired = 0
        for contact in self.lookup.closest(self._config.replicas):
            held = self._answers.get(contact)
            if held is None or contact in self._cut:
                continue
            lacking = [r for r in self.records.values() if held.get(r.subkey) != r]
            if lacking and repaired < REPAIRS_MAX:
                repaired += 1
                yield contact, lacking


class NegativeCache:
    """The keys that were recently not found, so that they are not looked up again.

    At most `misses_max` keys, each for `keep_s`.
    """

    def __init__(self, misses_max: int, keep_s: float) -> None:
        self._keep_s = keep_s
        self._until_s: RecentItems[bytes, float] = RecentItems(misses_max)

    def add(self, key: bytes, now_s: float) -> None:
        """Note that a key was not found; if the cache is full, the oldest key is dropped."""
        self._until_s[key] = now_s + self._keep_s

    def forget(self, key: bytes) -> None:
        """Forget a key, because it is there or may be."""
        self._until_s.pop(key, None)

    def holds(self, key: bytes, now_s: float) -> bool:
        """Return whether a key was recently not found."""
        return self._until_s.get(key, now_s) > now_s


HELD_PAGE_RECORDS = 64  # 5 ms, if all of their signatures are still to be checked
HELD_PAGES_MAX = PAGES_MAX * RECORDS_MAX // HELD_PAGE_RECORDS  # as much as from another holder


class ValueReader:
    """Makes the queries of our own gets, and remembers the keys that were not found.

    If the routing table alone knows the holders of a key, a get is one call to the holder with the
    shortest round trip. Otherwise it is a lookup whose first requests may be carried on by the
    peers that receive them.
    """

    def __init__(
        self,
        own: PeerId,
        table: Table,
        store: RecordStore,
        timeouts: TimeoutEstimator,
        signatures: SignatureCache,
        unverified: UnverifiedContacts,
    ) -> None:
        self._own = own
        self._table = table
        self._store = store
        self._timeouts = timeouts
        self._signatures = signatures
        self._unverified = unverified
        self._config = table.config
        self.misses = NegativeCache(table.config.misses, table.config.negative_s)
        self.clocks_differ = False
        """True if the last get found only what is over, or too far ahead, by our clock."""
        self.unsure = False
        """True if the last get found nothing, and not all who were asked have answered."""

    def held(
        self, key: bytes, now_ms: int, pages_max: int = HELD_PAGES_MAX, *, anyway: bool = False
    ) -> Iterator[dict[bytes, Record]]:
        """The records that we hold ourselves, if we are a holder of the key at present, or anyway.

        They come page by page, since checking a page's signatures takes some milliseconds. A copy
        from a time when we were a holder may lack newer records.
        """
        if key not in self._store or not (anyway or self._is_holder(key)):
            return
        after = b""
        for _ in range(pages_max):
            records = list(islice(self._store.read(key, now_ms, after), HELD_PAGE_RECORDS))
            yield {record.subkey: record for record in records if self._signatures.holds(record)}
            if len(records) < HELD_PAGE_RECORDS:
                return
            after = records[-1].subkey

    def _is_holder(self, key: bytes) -> bool:
        near = self._table.nearest(key, self._config.replicas)
        if len(near) < self._config.replicas:
            return True
        return self._own.distance(key) <= near[-1].number ^ int.from_bytes(key)

    def query(
        self,
        key: bytes,
        quorum: int,
        now_s: float,
        wall_s: float,
        patience_s: float | None = None,
    ) -> GetValue:
        """The query of a get that `held` cannot answer."""
        config = self._config
        near = self._table.nearest(key, config.k)
        replicas = near[: config.replicas]
        sure = self._table.sure(key, replicas, config.replicas, now_s)
        options = LookupOptions(
            width=config.k,
            settle=config.replicas,
            patience_s=patience_s or config.lookup_s,
            first=quorum if sure else config.alpha,
            choice=config.replicas_success if sure else 1,
            least_scope=config.least_scope,
            size=size_of(self._table),
        )
        lookup = Lookup(key, self._own.raw, options, self._timeouts, now_s, self._unverified)
        lookup.on_contacts([each.contact for each in (replicas if sure else near)])
        get_options = GetOptions(
            request=Get(key, b"", quorum > 1, 0),
            quorum=quorum,
            wall_less_loop_s=wall_s - now_s,
            carried=0 if sure or quorum > 1 else config.carried,
        )
        return GetValue(lookup, get_options, config, self._signatures)

    def among(
        self, request: Get, quorum: int, holders: Sequence[Contact], now_s: float, wall_s: float
    ) -> GetValue:
        """The query of a get that asks the peers of a crowded key's region and no others."""
        options = LookupOptions(
            width=len(holders),
            settle=len(holders),
            patience_s=self._config.lookup_s,
            asks=len(holders),
            least_scope=self._config.least_scope,
            closed=True,
        )
        first = holders[0].peer if holders else None
        # they are in a random order; that of their distances to the key is what the crowd chose
        target = first.raw if first else request.key
        lookup = Lookup(target, self._own.raw, options, self._timeouts, now_s, self._unverified)
        lookup.on_contacts(holders)
        enough = quorum if quorum == 1 else max(quorum, REGION_QUORUM)
        get_options = GetOptions(request=request, quorum=enough, wall_less_loop_s=wall_s - now_s)
        return GetValue(lookup, get_options, self._config, self._signatures)

    def on_outcome(
        self, key: bytes, get_value: GetValue, now_s: float
    ) -> Iterator[tuple[Contact, Record]]:
        """Note whether a get found the key; yields records to store with holders that lack them."""
        self.clocks_differ = get_value.clocks_differ and not get_value.records
        self.unsure = get_value.unsure
        if get_value.records:
            self.misses.forget(key)
        elif not get_value.lookup.crowded:  # else others are asked now
            self.misses.add(key, now_s)
        for contact, records in get_value.repairs():
            for record in records:
                yield contact, record
