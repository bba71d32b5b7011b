"""Responder: the answers to other peers, from our routing table and our store.

Units:   seconds on the caller's monotonic clock; `_ms` milliseconds since 1970.
Errors:  none.
"""

from collections.abc import Iterable, Iterator

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.bucket import Neighbour
from p2pswarm.discovery.dht.call_outcomes import CallRecorder
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
from p2pswarm.discovery.dht.negative_cache import NegativeCache
from p2pswarm.discovery.dht.record_store import RecordStore
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.net.cards.card import Card
from p2pswarm.net.rpc.base import CardSource
from p2pswarm.net.wire.message import Message

Request = Identify | Find | Get | Store | Ping

NO_PEERS = PeerList((), b"")


class Responder:
    """Makes the replies of one node."""

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
        self._recorder.asked_by(peer, now_s)
        match request:
            case Identify():
                return self.identify(peer, request)
            case Find():
                return self.find(peer, request)
            case Get():
                return self.get(peer, request, now_ms)
            case Store():
                return self.store(peer, request, now_ms)
            case _:
                return Pong()

    def identify(self, peer: PeerId, request: Identify) -> Identified:
        """Our id, and the servers closest to the newcomer that we know."""
        return Identified(self._own.raw, self._near(request.target, peer))

    def find(self, peer: PeerId, request: Find) -> Found:
        """The servers closest to the target that we know."""
        return Found(self._near(request.target, peer))

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

    def known(self, target: bytes) -> list[Contact]:
        """The k servers closest to `target` that we know."""
        return [each.contact for each in self._table.nearest(target, self._table.config.k)]

    def _near(self, target: bytes, asker: PeerId) -> PeerList:
        """The k servers closest to `target` where we found them, without the peer that asks."""
        k = self._table.config.k
        near = self._table.nearest(target, k + 1)
        return peer_list(self._found([each for each in near if each.raw != asker.raw][:k]))

    def _found(self, near: Iterable[Neighbour]) -> Iterator[tuple[Card, Address]]:
        for each in near:
            assert each.contact.peer is not None
            card = self._cards.of(each.contact.peer)
            if card is not None:
                yield card, each.contact.address
