"""The owner of links, as a link sees it: the endpoint; and what the links of one owner share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from p2pswarm.net.bulk.count_memory import CountMemory
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.link.events import EndpointEvent, StreamEvent
from p2pswarm.net.link.reply_memory import ReplyMemory

L = TypeVar("L")


class LinkOwner(Protocol[L]):
    """The owner of links, which learns what happens on them: the endpoint."""

    on_event: Callable[[L, StreamEvent], None]
    """Called in the event loop with what happens on streams, and with the end of the link."""

    def on_link(self, link: L, event: EndpointEvent) -> None:
        """The link can be used, wants bulk connections, or another path."""
        ...

    def ended(self, link: L) -> None:
        """Stop using the link; `on_event` is called next."""
        ...

    def bulk_left(self, link: L, number: int) -> None:
        """One of its bulk connections is closed."""
        ...

    def released(self, link: L) -> None:
        """Its last socket is closed."""
        ...


@dataclass(frozen=True, slots=True)
class NodeShares:
    """What all links of a node share."""

    upload: UploadShare
    replies: ReplyMemory
    unacknowledged: ReplyMemory
    counts: CountMemory = field(default_factory=CountMemory)
