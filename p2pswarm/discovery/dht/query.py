"""Query: a machine that asks other peers; a LookupQuery asks those that a lookup finds.

Errors:  BadMessage for a reply of the wrong type.
"""

from dataclasses import dataclass
from typing import Protocol

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Contact
from p2pswarm.discovery.dht.call_outcomes import raw_id
from p2pswarm.discovery.dht.lookup import Lookup
from p2pswarm.discovery.dht.messages import Find, Found
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

    @property
    def finished(self) -> bool:
        """True if there is nothing more to ask; late answers may still be reported."""

    def drain(self, now_s: float) -> list[QueryRequest]:
        """The requests to send now; report the outcome of each."""

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """An asked peer has answered; if this raises BadMessage, call `on_failure` next."""

    def on_failure(self, contact: Contact) -> None:
        """An asked peer did not answer, or broke the protocol."""

    def next_deadline_s(self) -> float | None:
        """The time to call `on_deadline`; None if nothing is due."""

    def on_deadline(self, now_s: float) -> None:
        """The deadline has come."""


class LookupQuery:
    """A query that asks the peers of a lookup, and ends with it."""

    def __init__(self, lookup: Lookup) -> None:
        self.lookup = lookup

    @property
    def ready(self) -> bool:
        """True if the lookup is over."""
        return self.lookup.finished

    @property
    def finished(self) -> bool:
        """True if the lookup is over."""
        return self.lookup.finished

    def on_failure(self, contact: Contact) -> None:
        """See `Query`."""
        self.lookup.on_failure(raw_id(contact))

    def next_deadline_s(self) -> float | None:
        """See `Query`."""
        return self.lookup.next_deadline_s()

    def on_deadline(self, now_s: float) -> None:
        """See `Query`."""
        self.lookup.on_deadline(now_s)


class FindNode(LookupQuery):
    """The query for the peers closest to an id, a lookup that sends `Find`."""

    def __init__(self, lookup: Lookup, first_round: int | None = None) -> None:
        """`first_round`: ready when this many peers were resolved; None: ready at the end."""
        super().__init__(lookup)
        self._request = Find(lookup.target)
        self._first_round = first_round

    @property
    def ready(self) -> bool:
        """True if the lookup or its first round is over."""
        if self._first_round is not None and self.lookup.resolved >= self._first_round:
            return True
        return self.lookup.finished

    def drain(self, now_s: float) -> list[QueryRequest]:
        """See `Query`."""
        return [QueryRequest(contact, self._request) for contact in self.lookup.drain(now_s)]

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """See `Query`."""
        del now_s
        if not isinstance(reply, Found):
            raise BadMessage(f"{type(reply).__name__} does not answer Find")
        closer = self.lookup.unverified.named(reply.peer_list, contact)
        self.lookup.on_response(raw_id(contact), closer)
