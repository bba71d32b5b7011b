"""PutValue: the query that stores a record with the peers closest to its key.

The `replicas` closest peers are to hold the record. They are asked in the order of their
distance, so that all publishers of a key use the same peers, and one holder knows every
subkey. The first wave asks as many peers as success needs, or all of them if contacts are
often dead. After success the caller goes on. The remaining peers get the record a little
later, with other records in one message. The next peer replaces one that fails or is slow.

Units:   seconds on the caller's monotonic clock.
Errors:  BadMessage for a reply other than `Stored`.
Source:  go-libp2p-kad-dht's optimistic provide, for returning before all have answered.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PEER_ID_BYTES, Contact
from p2pswarm.discovery.dht.messages import Record, Store, Stored
from p2pswarm.discovery.dht.query import QueryRequest
from p2pswarm.discovery.dht.record_store import Verdict
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator
from p2pswarm.net.wire.message import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class PutOptions:
    """How many peers are to hold a record, and how soon."""

    replicas: int
    """How many peers are to hold the record."""
    success: int
    """How many peers must hold it before `ready`; 0 if no task waits."""
    first: int
    """How many peers are asked at once; the rest are asked later."""
    patience_s: float
    """The query ends after this long in any case."""


class PutValue:
    """A `Query` for a record's holders."""

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
        """The time at which the query ends in any case; set by the first `poll`."""

    @property
    def holders(self) -> int:
        """How many peers hold the record so far."""
        return len(self.held_by)

    @property
    def ready(self) -> bool:
        """Whether enough peers hold the record, or no peer is left to ask."""
        return self.holders >= self._success or self.finished

    @property
    def finished(self) -> bool:
        """Whether all replicas are placed, or no more can be."""
        if self.holders >= self._replicas:
            return True
        return not (self._left or self._waits or self._slow)

    def poll(self, now_s: float) -> list[QueryRequest]:
        """The requests of the first wave, with replacements; after success the others."""
        if self._end_s is None:
            self._end_s = now_s + self._patience_s
        asks: list[QueryRequest] = []
        if self.holders < self._success:
            while self._left and self.holders + len(self._waits) < self._first:
                contact = self._left.pop()
                assert contact.peer is not None
                self._waits[contact] = now_s + self._timeouts.hedge_s(contact.peer.raw)
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
        if verdict in (Verdict.KEPT, Verdict.SAME):
            self.held_by.append(contact)
        elif verdict == Verdict.OLDER and self._ours_alone:
            self.held_by.append(contact)  # it has what we published later
        else:
            self.refusals.append(verdict)

    @property
    def _ours_alone(self) -> bool:
        """Whether no other peer may write the record's subkey."""
        return len(self.record.subkey) == PEER_ID_BYTES

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
