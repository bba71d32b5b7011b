"""What every machine that asks other peers has in common: the pump asks whom it names.

Units:   seconds on the caller's monotonic clock.
Errors:  BadMessage for a reply that is not of its kind.
"""

from dataclasses import dataclass
from typing import Protocol

from p2pswarm.ids import Contact
from p2pswarm.wire.message import Message


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """Whom to ask, and what."""

    contact: Contact
    request: Message
    at_leisure: bool = False
    """It may wait and travel with others; requests to store only."""


class Query(Protocol):
    """A question to many peers. Give one input, drain `poll`, then give the next input."""

    @property
    def ready(self) -> bool:
        """Whether those who wait for the outcome may have it."""
        ...

    @property
    def finished(self) -> bool:
        """Whether nothing more is to be asked; late answers may still be told."""
        ...

    def poll(self, now_s: float) -> list[QueryRequest]:
        """What to ask whom now; the outcome of each is to be told."""
        ...

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """A peer that was asked has answered; if this raises BadMessage, tell `on_failure` next."""
        ...

    def on_failure(self, contact: Contact) -> None:
        """A peer that was asked has not answered, or not as it should."""
        ...

    def next_deadline_s(self) -> float | None:
        """When `on_deadline` wants to be called; None if nothing is due."""
        ...

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        ...
