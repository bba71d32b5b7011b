"""Carrier: asks other peers on behalf of the peer that asks us.

We have links to the contacts that we know; the peer that asks would have to dial them first.

Units:   seconds on the caller's monotonic clock; `wall_s` on the wall clock.
Errors:  none: a get that is not carried on is answered from our own table and store.
"""

from collections.abc import Sequence
from dataclasses import replace

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.get_value import GetOptions, GetValue
from p2pswarm.discovery.dht.hearsay import Hearsay
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Get, Got
from p2pswarm.discovery.dht.records import SignatureCache
from p2pswarm.discovery.dht.responder import NO_PEERS
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator


def to_be_carried(request: Get, got: Got) -> bool:
    """Whether to carry on a request that we would answer with `got`."""
    return not got.records and request.hops > 0


class Carrier:
    """Makes the queries of gets that we carry on; at most `carrying` run at a time."""

    def __init__(
        self,
        own: PeerId,
        config: DhtConfig,
        timeouts: TimeoutEstimator,
        signatures: SignatureCache,
        hearsay: Hearsay,
    ) -> None:
        self._own = own
        self._config = config
        self._timeouts = timeouts
        self._signatures = signatures
        self._hearsay = hearsay
        self._carrying = 0

    def begin(self) -> bool:
        """Whether one more request may be carried on now; if so, call `ended` at its end."""
        if self._carrying >= self._config.carrying:
            return False
        self._carrying += 1
        return True

    def ended(self) -> None:
        """Note that a request is no longer carried on."""
        self._carrying -= 1

    def query(
        self, request: Get, named: Sequence[Contact], now_s: float, wall_s: float
    ) -> GetValue:
        """The query that carries a request on to peers that we know."""
        config = self._config
        options = LookupOptions(
            width=config.k,
            settle=config.k,
            patience_s=config.carry_s,
            first=config.carry_width,
            asks=config.carry_width,
            least_scope=config.least_scope,
        )
        lookup = Lookup(request.key, self._own.raw, options, self._timeouts, now_s, self._hearsay)
        lookup.learned(named)
        ours = replace(request, closer=False, hops=request.hops - 1)
        get_options = GetOptions(request=ours, quorum=1, wall_less_loop_s=wall_s - now_s, pages=1)
        return GetValue(lookup, get_options, config, self._signatures)

    def answer(self, get_value: GetValue, got: Got) -> Got:
        """The answer: the records that were found if they fit one message, else `got`."""
        records = sorted(get_value.records.values(), key=lambda record: record.subkey)
        size_bytes = sum(record.size_bytes for record in records)
        fits = len(records) <= RECORDS_MAX and size_bytes <= PAGE_BYTES
        if not records or get_value.more or not fits:
            return got
        return Got(tuple(records), False, NO_PEERS)
