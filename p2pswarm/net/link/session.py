"""The introduction that peers send in the handshake, and the session that follows from it.

Errors:  BadHandshake for an introduction that cannot be read, or has another peer's card.
Source:  docs/wire.md.
"""

from dataclasses import dataclass, replace
from typing import Annotated

from p2pswarm.base.errors import BadHandshake, BadMessage
from p2pswarm.base.ids import PORT_MAX, Address, Contact, PeerId
from p2pswarm.net.cards.card import CARD_BYTES_MAX, Card, decode_card
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.wire.message import Message, Range, Size, decode, message

INCARNATION_BYTES = 16


@message(10)
@dataclass(frozen=True, slots=True)
class Introduction(Message):
    """A peer's payload in the handshake, encrypted and authenticated."""

    incarnation: Annotated[bytes, Size(INCARNATION_BYTES, INCARNATION_BYTES)]
    """Random bytes of the sender's process; they differ when the peer was started again."""
    listen_port: Annotated[int, Range(0, PORT_MAX)]
    """The port at which the sender can be dialled; 0 if it cannot."""
    observed_host: str
    """The receiver's address as the sender sees it."""
    card: Annotated[bytes, Size(1, CARD_BYTES_MAX)]
    """The sender's card; the last field."""


def read_introduction(payload: bytes) -> Introduction:
    """Decode the peer's introduction; BadHandshake if it is none."""
    try:
        introduction = decode(payload)
    except BadMessage as error:
        raise BadHandshake(f"the peer's introduction: {error}") from error
    if not isinstance(introduction, Introduction):
        raise BadHandshake("the peer introduced itself with another message")
    try:
        host = introduction.observed_host and Address(introduction.observed_host, 0).host
    except ValueError as error:  # we would announce it, and could introduce ourselves no more
        raise BadHandshake(f"the peer's introduction: {error}") from error
    return replace(introduction, observed_host=host)


def introduced_card(introduction: Introduction, peer: PeerId) -> Card:
    """The card of the proven peer; BadHandshake if it introduces itself with another."""
    try:
        card = decode_card(introduction.card)
    except BadMessage as error:
        raise BadHandshake(f"the peer's card: {error}") from error
    if card.peer != peer:
        raise BadHandshake(f"{peer.short} introduced itself with the card of {card.peer.short}")
    return card


@dataclass(frozen=True, slots=True)
class Session:
    """The result of a finished handshake."""

    peer: PeerId
    """The peer at the other end, proven."""
    contact: Contact
    """The peer, and where to dial it as far as the peer has told us."""
    remote: Address
    """The address of the other end of the control connection."""
    dialled: bool
    incarnation: bytes
    keys: Keys
    exporter: bytes
    """A secret of 32 bytes, from which the keys of bulk connections are derived."""
    card: Card
    introduced: bytes
    """Our introduction; our card is its end."""
