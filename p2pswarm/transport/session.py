"""What two peers tell each other in the handshake, and what they know after it.

Units:   none.
Errors:  BadHandshake for an introduction that cannot be read.
Source:  docs/wire.md.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.crypto.handshake import Keys
from p2pswarm.errors import BadHandshake, BadMessage
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.wire.message import Message, Range, Size, decode, message

INCARNATION_BYTES = 16
PORT_MAX = 65535


@message(10)
@dataclass(frozen=True, slots=True)
class Introduction(Message):
    """Travels inside the handshake, encrypted and signed for."""

    incarnation: Annotated[bytes, Size(INCARNATION_BYTES, INCARNATION_BYTES)]
    """Random bytes of the sender's process: a peer that came back is told by it."""
    listen_port: Annotated[int, Range(0, PORT_MAX)]
    """Where the sender can be dialled; 0: nowhere."""
    observed_host: str
    """The receiver's address as the sender sees it."""


def read_introduction(payload: bytes) -> Introduction:
    """The peer's introduction."""
    try:
        introduction = decode(payload)
    except BadMessage as error:
        raise BadHandshake(f"the peer's introduction: {error}") from error
    if not isinstance(introduction, Introduction):
        raise BadHandshake("the peer introduced itself with another message")
    return introduction


@dataclass(frozen=True, slots=True)
class Session:
    """A finished handshake."""

    contact: Contact
    """The peer, proven, and where to dial it as far as it told."""
    remote: Address
    """The other end of the control connection."""
    dialled: bool
    """By us."""
    incarnation: bytes
    """The peer's."""
    keys: Keys
    exporter: bytes

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        assert self.contact.peer is not None
        return self.contact.peer
