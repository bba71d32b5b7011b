"""Endpoint: makes links to peers and keeps them. SKELETON: signatures are final, bodies follow.

Units:   bytes, seconds.
Errors:  DialFailed, BadHandshake from `Endpoint.link`; LinkLost from a link that ended.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from p2pswarm.crypto.identity import Identity
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.base import Net
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.events import StreamEvent


class Arrival:
    """Bytes that were granted room and are on their way: rpc/base.py's Arrival."""

    transfer: int

    async def wait(self) -> None:
        """Return when every byte is in place; raises LinkLost if they cannot come."""
        raise NotImplementedError

    def cancel(self) -> None:
        """Give the room back: late chunks are thrown away."""
        raise NotImplementedError


class Link:
    """A proven peer: streams for messages and rooms for bulk bytes."""

    peer: PeerId
    remote: Address
    """Where the control connection's other end is; see `contact` for where to dial it."""
    contact: Contact
    """The peer and where it listens, as far as it told."""
    rtt_s: float
    """Smoothed round trip of pings."""

    def open(self, data: bytes, *, ended: bool, priority: int = 0) -> int:
        """Open a stream with its first message (<= 60 KiB); returns its number.

        Raises Busy if too many streams are open, LinkLost if the link has ended.
        """
        raise NotImplementedError

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one message (<= 60 KiB); queued if credit is short.

        A stream that is gone (reset, or the link ended) swallows it: its event came or comes.
        Raises ValueError on a stream whose queue is full: ask `writable` first.
        """
        raise NotImplementedError

    def writable(self, stream: int) -> bool:
        """Whether `send` would go out now; if not, CreditGained(stream) tells when."""
        raise NotImplementedError

    def reset(self, stream: int, code: int) -> None:
        """Give a stream up, both ways; unknown or ended streams are ignored."""
        raise NotImplementedError

    def consumed(self, stream: int, n: int) -> None:
        """Give `n` bytes of credit back to the sender; ended streams need not."""
        raise NotImplementedError

    def expect(self, room: memoryview) -> Arrival:
        """Set `room` aside for one transfer from this peer."""
        raise NotImplementedError

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data` into the room that the peer numbered `transfer`."""
        raise NotImplementedError

    def close(self) -> None:
        """End the link; LinkEnded follows."""
        raise NotImplementedError


class Endpoint:
    """Our end of every link."""

    on_event: Callable[[Link, StreamEvent], None]

    def __init__(
        self,
        identity: Identity,
        net: Net,
        config: TransportConfig,
        entropy: Callable[[int], bytes],
    ) -> None:
        raise NotImplementedError

    @property
    def peer_id(self) -> PeerId:
        """Who we are."""
        raise NotImplementedError

    @property
    def contact(self) -> Contact:
        """Ourselves, as others should dial us."""
        raise NotImplementedError

    async def listen(self, at: Address) -> Address:
        """Accept links at `at`; port 0 picks one. Returns the address bound."""
        raise NotImplementedError

    async def link(self, to: Contact) -> Link:
        """The link to a peer: one that is up, or a new one; raises DialFailed, BadHandshake."""
        raise NotImplementedError

    def links(self) -> tuple[Link, ...]:
        """Every link that is up."""
        raise NotImplementedError

    async def close(self) -> None:
        """End every link and leave nothing running."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()
