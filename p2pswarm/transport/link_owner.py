"""What a link tells its owner, the endpoint, and what it counts.

Units:   bytes.
"""

from dataclasses import dataclass
from typing import Protocol, TypeVar

from p2pswarm.transport.events import StreamEvent

L_contra = TypeVar("L_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What one link has carried: records of the control connection, payload in bulk."""

    control_sent_bytes: int
    control_received_bytes: int
    bulk_sent_bytes: int
    bulk_received_bytes: int
    bulk_connections: int


class LinkOwner(Protocol[L_contra]):
    """What a link needs of the endpoint."""

    def tell(self, link: L_contra, event: StreamEvent) -> None:
        """Pass an event to whoever uses the link."""
        ...

    def came_up(self, link: L_contra) -> None:
        """The link can be used."""
        ...

    def join_bulk(self, link: L_contra) -> None:
        """Dial the bulk connections of a link that we dialled."""
        ...

    def ended(self, link: L_contra) -> None:
        """Use the link no more."""
        ...

    def released(self, link: L_contra) -> None:
        """Its last socket is closed."""
        ...
