"""Query: the interface of a machine that asks other peers; the pump sends its requests.

Units:   seconds on the caller's monotonic clock.
Errors:  BadMessage for a reply of the wrong type.
"""

from dataclasses import dataclass
from typing import Protocol

from p2pswarm.base.ids import Contact
from p2pswarm.net.wire.message import Message


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """A request and the contact to send it to."""

    contact: Contact
    request: Message
    at_leisure: bool = False
    """Whether it may wait and be sent with others; only for a `Store`."""


class Query(Protocol):
    """A question to many peers. After each input, call `poll` until it returns nothing."""

    @property
    def ready(self) -> bool:
        """Whether the tasks that wait for the outcome may go on."""
        ...

    @property
    def finished(self) -> bool:
        """Whether there is nothing more to ask; late answers may still be reported."""
        ...

    def poll(self, now_s: float) -> list[QueryRequest]:
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
