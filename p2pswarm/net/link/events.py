"""The events of a link, as values: the transport makes them, and rpc acts on them.

A stream carries messages both ways inside a link. Each side sends DATA until it ends
its half, or one side resets the stream. Events come in the order of the wire, from
inside the event loop's read callback, so their handlers must be quick.
"""

from dataclasses import dataclass

from p2pswarm.base.errors import SwarmError
from p2pswarm.net.guard.bans import told_ban
from p2pswarm.net.wire import frames

RESET_REFUSED = 1  # too many streams are open; codes 0..15 are the transport's, from 16 on rpc's


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream."""

    stream: int
    """Its handle: the number on the wire, or a larger one if that was used before."""
    data: bytes
    """The first message."""
    ended: bool
    """True if the peer sends no more; we may still answer."""


@dataclass(frozen=True, slots=True)
class StreamData:
    """The peer sent one message: all that one call of its `send` took."""

    stream: int
    data: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer gave the stream up: nothing more comes, and nothing more may be sent."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class CreditGained:
    """A stream that was not writable is writable again."""

    stream: int


@dataclass(frozen=True, slots=True)
class LinkEnded:
    """The link is over; every stream on it has ended with this error."""

    error: SwarmError


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link can be used. Only the endpoint sees this event and `BulkWanted`."""


@dataclass(frozen=True, slots=True)
class BulkWanted:
    """The endpoint is to dial bulk connections and join them to the link."""

    connections: int


@dataclass(frozen=True, slots=True)
class BulkSpare:
    """So many bulk connections are of no use. Only the link sees this event."""

    connections: int


@dataclass(frozen=True, slots=True)
class Ponged:
    """Our ping came back. Only the link sees this event and the next two."""

    payload: bytes
    """The 8 bytes of the ping."""


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The peer opens no more streams on this link."""


@dataclass(frozen=True, slots=True)
class AskedForBulk:
    """The peer wants us to join bulk connections."""


@dataclass(frozen=True, slots=True)
class PeerClosed:
    """The peer has ended the link. Only the link sees this event."""

    why: str = "closed by the peer"


@dataclass(frozen=True, slots=True)
class BulkDone:
    """The peer has every byte of a transfer, or wants no more of it. Only the link sees this."""

    transfer: int


@dataclass(frozen=True, slots=True)
class BulkCount:
    """The peer tells what came on a bulk connection so far. Only the link sees this event."""

    number: int
    """The number under which the connection joined."""
    chunks: int
    """The number of whole chunks."""
    over: bool
    """True if the peer reads no more on it."""


@dataclass(frozen=True, slots=True)
class PathBroken:
    """The present path brought a record that is not authentic. Only the link sees this event."""


@dataclass(frozen=True, slots=True)
class PathAltered:
    """The peer says that a path brought it such a record. Only the link sees this event."""

    number: int
    """The number of that path."""


@dataclass(frozen=True, slots=True)
class PathWanted:
    """The link should get another path: its own is gone, or silent. Only the endpoint sees this."""

    error: SwarmError


BulkNotice = BulkDone | BulkCount
LinkEvent = Ponged | GoneAway | AskedForBulk | PeerClosed | BulkNotice | PathAltered
StreamEvent = StreamOpened | StreamData | StreamReset | CreditGained | LinkEnded
EndpointEvent = LinkUp | BulkWanted | PathWanted
LinkNotice = EndpointEvent | BulkSpare | BulkNotice | PathBroken | PathAltered


def link_event(kind: int, payload: bytes) -> LinkEvent:
    """The event of a frame on stream 0 that no stream is concerned with."""
    if kind == frames.BULK_DONE:
        return BulkDone(*frames.TRANSFER.unpack(payload))
    if kind in (frames.BULK_OVER, frames.BULK_CAME):
        number, chunks = frames.CHANNEL.unpack(payload)
        return BulkCount(number, chunks, over=kind == frames.BULK_OVER)
    if kind == frames.ALTERED:
        return PathAltered(*frames.NUMBER.unpack(payload))
    if kind == frames.GOAWAY:
        return GoneAway()
    if kind == frames.ASK_BULK:
        return AskedForBulk()
    return PeerClosed(told_ban(payload)) if payload else PeerClosed()
