"""The messages of punching.

Units:   milliseconds as durations.
Source:  docs/punching.md, "Bytes".
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.endpoint.preface import PUNCH_TOKEN_BYTES, SEAL_BYTES
from p2pswarm.net.wire.message import Message, Range, Size, message

CANDIDATES_MAX = 8  # a socket and a SYN each
HOST_CHARS_MAX = 64  # an IPv6 number
PORT_MAX = 65535
HELD_MS_MAX = 60_000


@dataclass(frozen=True, slots=True)
class PunchCandidate(Message):
    """An address where the sender may be dialled during an attempt."""

    host: Annotated[str, Size(1, HOST_CHARS_MAX)]
    port: Annotated[int, Range(1, PORT_MAX)]
    seal: Annotated[bytes, Size(SEAL_BYTES)]
    """Of the relay that saw the sender there; empty for an address that nobody saw."""


@message(36)
@dataclass(frozen=True, slots=True)
class Offer(Message):
    """The facts that one side knows of itself; the initiator's second one means: dial now."""

    candidates: Annotated[tuple[PunchCandidate, ...], Size(CANDIDATES_MAX)] = ()
    hard: bool = False
    """Its NAT takes another outside port for each destination."""
    open: bool = False
    """It believes that it can be dialled as it is."""
    held_ms: Annotated[int, Range(0, HELD_MS_MAX)] = 0
    """The time that passed at the sender between the message that this one answers and this one."""


@message(35)
@dataclass(frozen=True, slots=True)
class Punch(Message):
    """Opens the stream of one attempt."""

    token: Annotated[bytes, Size(2 * PUNCH_TOKEN_BYTES, 2 * PUNCH_TOKEN_BYTES)]
    """The initiator's connections greet with the first half, the responder's with the second."""
    offer: Offer


@message(37)
@dataclass(frozen=True, slots=True)
class Vouch(Message):
    """Asks an observer whether the seals of these candidates are its own."""

    candidates: Annotated[tuple[PunchCandidate, ...], Size(CANDIDATES_MAX)]


@message(38)
@dataclass(frozen=True, slots=True)
class Vouched(Message):
    """The answer: for each candidate, in order."""

    seen: Annotated[tuple[bool, ...], Size(CANDIDATES_MAX)]
