"""What the pump in `service.py` asks of every machine that asks other peers.

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
    """One input, then drain `asks`, then the next input."""

    @property
    def ready(self) -> bool:
        """Whoever waits for the outcome may have it."""
        ...

    @property
    def finished(self) -> bool:
        """Nothing more is to be asked; late answers may still be told."""
        ...

    def poll(self, now_s: float) -> list[QueryRequest]:
        """What to ask whom now; the outcome of each is to be told."""
        ...

    def on_response(self, contact: Contact, reply: Message, now_s: float) -> None:
        """One who was asked has answered; if this raises BadMessage, tell `failed` next."""
        ...

    def failed(self, contact: Contact) -> None:
        """One who was asked has not."""
        ...

    def next_deadline_s(self) -> float:
        """When `on_deadline` wants to be called."""
        ...

    def on_deadline(self, now_s: float) -> None:
        """Time has passed."""
        ...
