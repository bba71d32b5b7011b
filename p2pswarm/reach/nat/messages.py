"""The messages of dial-backs.

Units:   milliseconds since 1970 on the sender's wall clock.
Errors:  BadMessage on arrival when a field breaks its limit.
Source:  docs/reachability.md section 3.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.net.endpoint.preface import KNOCK_NONCE_BYTES
from p2pswarm.net.wire.message import Message, Range, Size, message

HOST_CHARS_MAX = 64  # an IPv6 number with a zone
PORT_MAX = 65535


class DialOutcome(IntEnum):
    """What became of a dial-back, as the peer that dialled says."""

    CONNECTED = 0
    FAILED = 1
    NOT_TRIED = 2
    """Over a limit, or the peer sees us at no address that it may dial."""


@message(14)
@dataclass(frozen=True, slots=True)
class DialBack(Message):
    """Asks to be dialled at this port, at the host where the receiver sees the sender."""

    port: Annotated[int, Range(1, PORT_MAX)]
    nonce: Annotated[bytes, Size(KNOCK_NONCE_BYTES, KNOCK_NONCE_BYTES)]


@message(15)
@dataclass(frozen=True, slots=True)
class DialledBack(Message):
    """The answer to `DialBack`, when the dial is over."""

    outcome: Annotated[int, Range(0, max(DialOutcome))]
    host: Annotated[str, Size(HOST_CHARS_MAX)]
    """Where the sender sees the receiver's link; empty if it sees none."""
    port: Annotated[int, Range(0, PORT_MAX)]
    clock_ms: Annotated[int, Range(0, 2**53)]
