"""Responder: the answers to other peers, from our table and store, and by asking on their behalf.

Units:   seconds on the caller's monotonic clock; `wall_s` and `_ms` on the wall clock.
"""

from collections.abc import Sequence
from dataclasses import replace

from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import CallRecorder, TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.get_value import GetOptions, GetValue, NegativeCache
from p2pswarm.discovery.dht.lookup import Lookup, LookupOptions
from p2pswarm.discovery.dht.messages import (
    PAGE_BYTES,
    RECORDS_MAX,
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    PeerList,
    Ping,
    Pong,
    Record,
    Store,
    Stored,
    peer_list,
)
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.rpc.base import CardSource
from p2pswarm.net.wire.message import Message

Request = Identify | Find | Get | Store | Ping

NO_PEERS = PeerList((), b"")


class Responder:
    """Makes the answers to other peers, from our routing table and our store."""

    def __init__(
        self,
        own: PeerId,
        table: Table,
        store: RecordStore,
        recorder: CallRecorder,
        misses: NegativeCache,
        cards: CardSource,
    ) -> None:
        """`recorder` learns of every peer that asks; `misses` forgets every stored key."""
        self._own = own
        self._table = table
        self._store = store
        self._recorder = recorder
        self._misses = misses
        self._cards = cards

    def answer(self, peer: PeerId, request: Request, now_s: float, now_ms: int) -> Message:
        """The reply to a request of a peer."""
        self._recorder.on_request(peer, now_s)
        match request:
            case Identify():
                return Identified(self._own.raw, self._near(request.target, peer))
            case Find():
                return Found(self._near(request.target, peer))
            case Get():
                return self.get(peer, request, now_ms)
            case Store():
                return self.store(peer, request, now_ms)
            case _:
                return Pong()

    def get(self, peer: PeerId, request: Get, now_ms: int) -> Got:
        """A page of the records we have, or the closest servers we know, or both if wanted."""
        records: list[Record] = []
        left_bytes, more = PAGE_BYTES, False
        for record in self._store.read(request.key, now_ms, request.after):
            left_bytes -= record.size_bytes
            if left_bytes < 0 or len(records) == RECORDS_MAX:
                more = True
                break
            records.append(record)
        near = NO_PEERS if records and not request.closer else self._near(request.key, peer)
        return Got(tuple(records), more, near)

    def store(self, peer: PeerId, request: Store, now_ms: int) -> Stored:
        """Keep the records that may be kept; returns a verdict for each."""
        for record in request.records:
            self._misses.forget(record.key)
        offer = self._store.offer
        return Stored(bytes([offer(record, peer, now_ms) for record in request.records]))

    def _near(self, target: bytes, asker: PeerId) -> PeerList:
        """The k servers closest to `target` where we found them, without the peer that asks."""
        k = self._table.config.k
        near = [each for each in self._table.nearest(target, k + 1) if each.raw != asker.raw]
        contacts = [each.contact for each in near[:k]]
        cards = [(self._cards.of(each.peer), each.address) for each in contacts if each.peer]
        return peer_list((card, address) for card, address in cards if card is not None)


def to_be_carried(request: Get, got: Got) -> bool:
    """Return whether to carry on a request that we would answer with `got`."""
    return not got.records and request.hops > 0


class QueryProxy:
    """Makes the queries of gets that we carry on for other peers; at most `carrying` run at a time.

    We have links to the contacts that we know; the peer that asks would have to dial them first.
    """

    def __init__(
        self,
        own: PeerId,
        config: DhtConfig,
        timeouts: TimeoutEstimator,
        signatures: SignatureCache,
        unverified: UnverifiedContacts,
    ) -> None:
        self._own = own
        self._config = config
        self._timeouts = timeouts
        self._signatures = signatures
        self._unverified = unverified
        self._carrying = 0

    def begin(self) -> bool:
        """Return whether one more request may be carried on now; call `on_end` at its end."""
        if self._carrying >= self._config.carrying:
            return False
        self._carrying += 1
        return True

    def on_end(self) -> None:
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
        key, own = request.key, self._own.raw
        lookup = Lookup(key, own, options, self._timeouts, now_s, self._unverified)
        lookup.on_contacts(named)
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
