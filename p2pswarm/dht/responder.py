"""What we answer to other peers, from our table and our store.

Units:   `_ms` milliseconds since 1970 on the wall clock.
Errors:  none: a request that passed the codec has an answer.
"""

from p2pswarm.dht.messages import (
    PAGE_BYTES,
    RECORDS_MAX,
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    PeerList,
    Record,
    Store,
    Stored,
    peer_list,
)
from p2pswarm.dht.record_store import RecordStore
from p2pswarm.dht.routing_table import Table
from p2pswarm.ids import PeerId

NO_PEERS = PeerList(b"", ())


class Responder:
    """Makes the replies of one node."""

    def __init__(self, own: PeerId, table: Table, store: RecordStore) -> None:
        self._own = own
        self._table = table
        self._store = store

    def identify(self, peer: PeerId, request: Identify) -> Identified:
        """Our id, and the servers that the newcomer should meet."""
        return Identified(self._own.raw, self._near(request.target, peer))

    def find(self, peer: PeerId, request: Find) -> Found:
        """The servers closest to the target that we know."""
        return Found(self._near(request.target, peer))

    def get(self, peer: PeerId, request: Get, now_ms: int) -> Got:
        """The records we have, or the closest servers we know, or both if both are wanted."""
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
        """Keep what may be kept."""
        offer = self._store.offer
        return Stored(bytes([offer(record, peer, now_ms) for record in request.records]))

    def _near(self, target: bytes, asker: PeerId) -> PeerList:
        """The k servers closest to `target`, without the peer that asks."""
        k = self._table.config.k
        near = self._table.nearest(target, k + 1)
        return peer_list(
            [(each.raw, each.listen_address) for each in near if each.raw != asker.raw][:k]
        )
