"""Query: a machine that asks other peers, its progress, and the alarm that keeps its deadlines.

Units:   seconds on the caller's monotonic clock.
Errors:  BadMessage for a reply of the wrong type.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.discovery.dht.lookup import Lookup
from p2pswarm.discovery.dht.messages import Find, Found, Store
from p2pswarm.net.wire.message import Message


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A request and the contact to send it to."""

    contact: Contact
    request: Message
    at_leisure: bool = False
    """True if it may wait and be sent with others; only for a `Store`."""


class Query(Protocol):
    """A question to many peers: a machine whose requests the pump sends.

    After each input, call `drain` until it returns nothing.
    """

    @property
    def ready(self) -> bool:
        """True if the tasks that wait for the outcome may go on."""
        ...

    @property
    def finished(self) -> bool:
        """True if there is nothing more to ask; late answers may still be reported."""
        ...

    def drain(self, now_s: float) -> list[QueryRequest]:
        """The requests to send now; report the outcome of each."""
        ...

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """An asked peer has answered; if this raises BadMessage, call `on_failure` next."""
        ...

    def on_failure(self, contact: Contact) -> None:
        """An asked peer did not answer, or broke the protocol."""
        ...

    def next_deadline_s(self) -> float | None:
        """The time to call `on_deadline`; None if nothing is due."""
        ...

    def on_deadline(self, now_s: float) -> None:
        """The deadline has come."""
        ...


class AlarmTimer(Protocol):
    """A timer of an event loop; `asyncio.TimerHandle` is one."""

    def when(self) -> float:
        """The time at which it fires."""
        ...

    def cancel(self) -> None:
        """Do not fire."""
        ...


class AlarmClock(Protocol):
    """The part of an event loop that an alarm uses."""

    def call_at(self, when: float, callback: Callable[[], None]) -> AlarmTimer:
        """Call `callback` at the time `when`."""
        ...


class Alarm:
    """One timer, which calls `ring` at the earliest deadline that was set, or before it.

    A deadline changes often, mostly to a later time. So the timer is changed only if it would fire
    too late. Firing too early does no harm: the owner asks its machine for the next deadline and
    sets the alarm again.
    """

    __slots__ = ("_clock", "_ring", "_timer")

    def __init__(self, clock: AlarmClock, ring: Callable[[], None]) -> None:
        self._clock = clock
        self._ring = ring
        self._timer: AlarmTimer | None = None

    def set(self, deadline_s: float | None) -> None:
        """Ring at `deadline_s` at the latest; None leaves the alarm as it is."""
        if deadline_s is None:
            return
        if self._timer is not None:
            if self._timer.when() <= deadline_s:
                return
            self._timer.cancel()
        self._timer = self._clock.call_at(deadline_s, self._on_time)

    def cancel(self) -> None:
        """Do not ring."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_time(self) -> None:
        self._timer = None
        self._ring()


class Route(Enum):
    """The route of a request."""

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
    """Follows one query to its end: how its requests are sent, and when its waiters may go on.

    A reply that does not fit its request counts as a failure of the peer.
    """

    __slots__ = ("_own", "query", "state")

    def __init__(self, query: Query, own: PeerId) -> None:
        self.query = query
        self.state = QueryState.RUNNING
        self._own = own

    def route(self, ask: QueryRequest) -> Route:
        """Return the route of a request of the query."""
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


class FindNode:
    """The query for the peers closest to an id, a lookup that sends `Find`."""

    def __init__(self, lookup: Lookup, first_round: int | None = None) -> None:
        """`first_round`: ready when this many peers were resolved; None: ready at the end."""
        self.lookup = lookup
        self._request = Find(lookup.target)
        self._first_round = first_round

    @property
    def ready(self) -> bool:
        """True if the lookup or its first round is over."""
        if self._first_round is not None and self.lookup.resolved >= self._first_round:
            return True
        return self.lookup.finished

    @property
    def finished(self) -> bool:
        """True if the closest peers are known."""
        return self.lookup.finished

    def drain(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        return [QueryRequest(contact, self._request) for contact in self.lookup.drain(now_s)]

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        del now_s
        if not isinstance(reply, Found):
            raise BadMessage(f"{type(reply).__name__} does not answer Find")
        assert contact.peer is not None
        closer = self.lookup.unverified.named(reply.peer_list, contact)
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
