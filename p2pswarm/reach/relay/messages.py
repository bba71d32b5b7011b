"""The messages of a reservation: a stream of the link between a peer and its relay.

Units:   milliseconds as durations, bytes per second.
Errors:  BadMessage on arrival when a field breaks its limit.
Source:  docs/relays.md, "Bytes".
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.endpoint.preface import TICKET_BYTES
from p2pswarm.net.wire.message import Message, Range, Size, message

LASTS_MS_MAX = 24 * 3600 * 1000  # nobody plans further
CIRCUITS_MAX = 65_535
RATE_MAX = 2**53


@message(32)
@dataclass(frozen=True, slots=True)
class Reserve(Message):
    """From a peer that wants to be reached through the relay; on the open stream: renew."""


@message(33)
@dataclass(frozen=True, slots=True)
class Reserved(Message):
    """The relay's answer to every `Reserve`."""

    lasts_ms: Annotated[int, Range(1, LASTS_MS_MAX)]
    """From now; renew at half of it."""
    circuits_max: Annotated[int, Range(1, CIRCUITS_MAX)]
    """The most circuits of this peer at a time."""
    pair_bytes_per_s: Annotated[int, Range(0, RATE_MAX)]
    """The most that all circuits with one dialler carry; 0: no limit."""


@message(34)
@dataclass(frozen=True, slots=True)
class Incoming(Message):
    """From the relay: somebody asks for the peer. It takes the circuit with the ticket."""

    ticket: Annotated[bytes, Size(TICKET_BYTES, TICKET_BYTES)]
