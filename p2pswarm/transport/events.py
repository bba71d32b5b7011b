"""What happens on a link, as values: the transport gives them, rpc acts on them.

A stream is messages both ways inside a link: both sides send DATA until each has
ended its half, or either resets it. Events come in the order of the wire, from
inside the event loop's read callback, so a handler of one must be quick.

Units:   bytes.
"""

from dataclasses import dataclass

from p2pswarm.errors import SwarmError

RESET_REFUSED = 1  # too many streams are open; codes 0..15 are the transport's, from 16 on rpc's


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream."""

    stream: int
    """What we call it: its number on the wire, or larger if that may have been used before."""
    data: bytes
    """The first message."""
    ended: bool
    """The peer sends no more; we may still answer."""


@dataclass(frozen=True, slots=True)
class StreamData:
    """The peer sent one message: what one `send` took, whole."""

    stream: int
    data: bytes
    ended: bool


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer gave the stream up: nothing more comes, nothing more may be sent."""

    stream: int
    code: int


@dataclass(frozen=True, slots=True)
class CreditGained:
    """A stream that was not writable is again."""

    stream: int


@dataclass(frozen=True, slots=True)
class LinkEnded:
    """The link is over; every stream on it has ended with this error."""

    error: SwarmError


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The link can be used. The endpoint keeps this and the next to itself."""


@dataclass(frozen=True, slots=True)
class BulkWanted:
    """Bulk connections are to be dialled and joined to the link."""

    connections: int


@dataclass(frozen=True, slots=True)
class Ponged:
    """Our ping came back. The link keeps this and the next two to itself."""

    payload: bytes
    """The 8 bytes of the ping."""


@dataclass(frozen=True, slots=True)
class GoneAway:
    """The peer opens no more streams on this link."""


@dataclass(frozen=True, slots=True)
class AskedForBulk:
    """The peer wants us to join bulk connections."""


LinkEvent = Ponged | GoneAway | AskedForBulk
StreamEvent = StreamOpened | StreamData | StreamReset | CreditGained | LinkEnded
EndpointEvent = LinkUp | BulkWanted
