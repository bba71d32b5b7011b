"""ValueReader: the queries of our own gets, and what to do after each.

If the routing table alone knows the holders of a key, a get is one call to the holder with
the shortest round trip. Otherwise it is a lookup whose first requests may be carried on by
the peers that receive them.

Units:   seconds on the caller's monotonic clock; `_ms` and `wall_s` on the wall clock.
Errors:  none.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.crowding import REGION_QUORUM, size_of
from p2pswarm.discovery.dht.get_value import PAGES_MAX, GetOptions, GetValue
from p2pswarm.discovery.dht.hearsay import Hearsay
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.messages import RECORDS_MAX, Get, Record
from p2pswarm.discovery.dht.negative_cache import NegativeCache
from p2pswarm.discovery.dht.record_store import RecordStore
from p2pswarm.discovery.dht.records import SignatureCache
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator

HELD_PAGE_RECORDS = 64  # 5 ms, if all of their signatures are still to be checked
HELD_PAGES_MAX = PAGES_MAX * RECORDS_MAX // HELD_PAGE_RECORDS  # as much as from another holder


class ValueReader:
    """Makes the queries of our own gets, and remembers the keys that were not found."""

    def __init__(
        self,
        own: PeerId,
        table: Table,
        store: RecordStore,
        timeouts: TimeoutEstimator,
        signatures: SignatureCache,
        hearsay: Hearsay,
    ) -> None:
        self._own = own
        self._table = table
        self._store = store
        self._timeouts = timeouts
        self._signatures = signatures
        self._hearsay = hearsay
        self._config = table.config
        self.misses = NegativeCache(table.config.misses, table.config.negative_s)
        self.clocks_differ = False
        """Whether the last get found only what is over, or too far ahead, by our clock."""
        self.unsure = False
        """Whether the last get found nothing, and not all who were asked have answered."""

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
        lookup = Lookup(key, self._own.raw, options, self._timeouts, now_s, self._hearsay)
        lookup.learned([each.contact for each in (replicas if sure else near)])
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
        lookup = Lookup(target, self._own.raw, options, self._timeouts, now_s, self._hearsay)
        lookup.learned(holders)
        enough = quorum if quorum == 1 else max(quorum, REGION_QUORUM)
        get_options = GetOptions(request=request, quorum=enough, wall_less_loop_s=wall_s - now_s)
        return GetValue(lookup, get_options, self._config, self._signatures)

    def ended(
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
