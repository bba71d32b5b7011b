"""QueryProgress: how a query's requests are sent, and when the tasks that wait may go on.

Units:   seconds on the caller's monotonic clock.
Errors:  none: a reply that does not fit its request counts as a failure of the peer.
"""

from enum import Enum, auto

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.messages import Store
from p2pswarm.discovery.dht.query import Query, QueryRequest
from p2pswarm.net.wire.message import Message


class Route(Enum):
    """How a request is sent."""

    CALL = auto()
    BATCH = auto()
    """Send it a little later, with other records for the same peer."""
    OURSELVES = auto()
    """Keep the record in our own store: no call is needed."""


class QueryState(Enum):
    """The progress of a query."""

    RUNNING = auto()
    READY = auto()
    """The outcome is known; more requests may follow."""
    FINISHED = auto()


class QueryProgress:
    """Follows one query to its end."""

    __slots__ = ("_own", "query", "state")

    def __init__(self, query: Query, own: PeerId) -> None:
        self.query = query
        self.state = QueryState.RUNNING
        self._own = own

    def route(self, ask: QueryRequest) -> Route:
        """How to send a request of the query."""
        if not isinstance(ask.request, Store):
            return Route.CALL
        if ask.at_leisure:
            return Route.BATCH
        return Route.OURSELVES if ask.contact.peer == self._own else Route.CALL

    def on_reply(self, contact: Contact, reply: Message | None, now_s: float) -> bool:
        """Pass a reply to the query, None if none came; returns False if it did not fit."""
        if reply is None:
            self.query.on_failure(contact)
            return True
        try:
            self.query.on_response(contact, reply, now_s)
        except BadMessage:
            self.query.on_failure(contact)
            return False
        return True

    def advance(self) -> list[QueryState]:
        """The states that the query has reached since the last call, in order."""
        reached: list[QueryState] = []
        if self.state is QueryState.RUNNING and self.query.ready:
            reached.append(QueryState.READY)
        if self.state is not QueryState.FINISHED and self.query.finished:
            reached.append(QueryState.FINISHED)
        if reached:
            self.state = reached[-1]
        return reached

    def next_deadline_s(self) -> float | None:
        """The query's next deadline; None once it has finished."""
        return None if self.state is QueryState.FINISHED else self.query.next_deadline_s()
