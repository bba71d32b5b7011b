"""GetValue: the query for the records of a key, a lookup that sends `Get` and merges the answers.

With a quorum of 1 the first holder's answer is enough. With a larger quorum, that many holders
are asked, and the newest record of each subkey wins. `repairs` tells what the closest holders
lack of the records that were found.

Units:   seconds on the caller's monotonic clock; `_ms` milliseconds since 1970.
Errors:  BadMessage for a reply other than `Got`, or a record that a peer must not send.
Source:  go-libp2p-kad-dht, `searchValueQuorum` and its correction of stale holders.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.lookup import Lookup
from p2pswarm.discovery.dht.messages import HOPS_MAX, Get, Got, Record
from p2pswarm.discovery.dht.query import QueryRequest
from p2pswarm.discovery.dht.records import SignatureCache, merge
from p2pswarm.net.wire.message import Message

PAGES_MAX = 64  # read from one holder: 3 MiB, or 8,192 subkeys
REPAIRS_MAX = 2  # by one get; the next reader repairs the others


@dataclass(frozen=True, slots=True, kw_only=True)
class GetOptions:
    """What to get, and from how many holders."""

    request: Get
    """The request to each peer."""
    quorum: int
    """The query ends when this many holders have answered with records."""
    wall_less_loop_s: float
    """The wall clock minus the loop's clock."""
    carried: int = 0
    """How many of the first requests may be carried on by the peers that receive them."""
    pages: int = PAGES_MAX
    """The most pages to read from one holder."""


class GetValue:
    """A `Query` for the records of one key."""

    def __init__(
        self, lookup: Lookup, options: GetOptions, config: DhtConfig, signatures: SignatureCache
    ) -> None:
        self.records: dict[bytes, Record] = {}
        """The newest record of each subkey."""
        self.lookup = lookup
        self._options = options
        self._config = config
        self._signatures = signatures
        self._heard: dict[Contact, dict[bytes, Record]] = {}
        """The records of each peer that answered."""
        self._cut: dict[Contact, None] = {}
        """The peers that have more records than they have sent."""
        self._next: list[QueryRequest] = []
        self._paging: dict[Contact, int] = {}
        self._carried = options.carried
        self.more = False
        """Whether a holder had more pages than `pages`."""
        self.clocks_differ = False
        """Whether a holder gave a record that by our clock is long over, or too far ahead."""
        self._all_answered = True

    @property
    def ready(self) -> bool:
        """Whether the records may be used."""
        return self.finished

    @property
    def finished(self) -> bool:
        """Whether a quorum has answered, or no peer is left to ask."""
        return self.lookup.finished

    @property
    def unsure(self) -> bool:
        """Whether there may be records though none was found: not all who were asked answered."""
        return not self.records and not (self._heard and self._all_answered)

    def poll(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        further, self._next = self._next, []
        return further + [QueryRequest(each, self._request()) for each in self.lookup.poll(now_s)]

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
        told = self._heard.setdefault(contact, {})
        merge(told, sound)
        merge(self.records, sound)
        pages = self._paging.get(contact, 0) + 1
        self._paging[contact] = pages
        if reply.more and reply.records and not self.finished:
            if pages < self._options.pages:
                after = reply.records[-1].subkey
                self._next.append(
                    QueryRequest(contact, replace(self._options.request, after=after))
                )
                return
            self.more = True
        if reply.more:
            self._cut[contact] = None
        assert contact.peer is not None
        closer = self.lookup.hearsay.named(reply.peer_list, contact)
        self.lookup.on_response(contact.peer.raw, closer)
        if sum(1 for held in self._heard.values() if held) >= self._options.quorum:
            self.lookup.stop()

    def _sound(self, record: Record, now_ms: int) -> bool:
        """Whether a record is valid; BadMessage if its sender broke the protocol.

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
        assert contact.peer is not None
        self.lookup.on_failure(contact.peer.raw)

    def next_deadline_s(self) -> float | None:
        """See `Query`."""
        return self.lookup.next_deadline_s()

    def on_deadline(self, now_s: float) -> None:
        """See `Query`."""
        self.lookup.on_deadline(now_s)
        if self.lookup.finished:
            self._all_answered = False  # who is late is waited for no longer

    def repairs(self) -> Iterator[tuple[Contact, list[Record]]]:
        """The closest peers whose answers lacked records, and the records that each one lacks."""
        if not self.records or len(self._heard) == 1:
            return
        nearest = self.lookup.closest(self._config.replicas)
        repaired = 0
        for contact in nearest:
            told = self._heard.get(contact)
            if told is None or contact in self._cut:
                continue
            lacking = [r for r in self.records.values() if told.get(r.subkey) != r]
            if lacking and repaired < REPAIRS_MAX:
                repaired += 1
                yield contact, lacking
