"""FindNode: the query for the peers closest to an id, a lookup that sends `Find`.

Units:   seconds on the caller's monotonic clock.
Errors:  BadMessage for a reply other than `Found`.
"""

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.lookup import Lookup
from p2pswarm.discovery.dht.messages import Find, Found
from p2pswarm.discovery.dht.query import QueryRequest
from p2pswarm.net.wire.message import Message


class FindNode:
    """A `Query` for the closest peers."""

    def __init__(self, lookup: Lookup, first_round: int | None = None) -> None:
        """`first_round`: ready when this many peers were resolved; None: ready at the end."""
        self.lookup = lookup
        self._request = Find(lookup.target)
        self._first_round = first_round

    @property
    def ready(self) -> bool:
        """Whether the lookup or its first round is over."""
        if self._first_round is not None and self.lookup.resolved >= self._first_round:
            return True
        return self.lookup.finished

    @property
    def finished(self) -> bool:
        """Whether the closest peers are known."""
        return self.lookup.finished

    def poll(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        return [QueryRequest(contact, self._request) for contact in self.lookup.poll(now_s)]

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        del now_s
        if not isinstance(reply, Found):
            raise BadMessage(f"{type(reply).__name__} does not answer Find")
        assert contact.peer is not None
        closer = self.lookup.hearsay.named(reply.peer_list, contact)
        self.lookup.on_response(contact.peer.raw, closer)

    def on_failure(self, contact: Contact) -> None:
        """See `Query`."""
        assert contact.peer is not None
        self.lookup.on_failure(contact.peer.raw)

    def next_deadline_s(self) -> float | None:
        """See `Query`."""
        return self.lookup.next_deadline_s()

    def on_deadline(self, now_s: float) -> None:
        """See `Query`."""
        self.lookup.on_deadline(now_s)
