"""Observation: a peer tells where a connection comes from, before anything else is known of it.

A node that calls from its listening port learns so which outside port its router gives that port.
The answer is shorter than the request, so that nobody is flooded with answers. It ends in a seal,
which shows to whoever asks the observer that a connection did come from there (docs/punching.md).

Units:   bytes; `now_s` seconds on the observer's monotonic clock.
Errors:  BadHandshake for an answer that cannot be read.
Source:  docs/reachability.md section 4; RFC 8489 (STUN) for the idea.
"""

import hmac
import ipaddress
import struct
from dataclasses import dataclass

from p2pswarm.base.errors import BadHandshake
from p2pswarm.base.ids import Address

OBSERVATION_MAGIC = b"PSO2"
OBSERVATION_REQUEST_BYTES = 64  # magic and zeros
SEAL_BYTES = 16
SEAL_KEY_BYTES = 32
SEAL_S = 300.0  # a seal is good for this time at least, and at most for twice as long
NO_SEAL = bytes(SEAL_BYTES)
_OBSERVATION = struct.Struct(f"!4s16sH{SEAL_BYTES}s")
OBSERVATION_ANSWER_BYTES = _OBSERVATION.size


@dataclass(frozen=True, slots=True)
class Sighting:
    """Where an observer saw a connection of ours come from."""

    address: Address
    seal: bytes
    """Shows to the observer itself that it saw this."""


class ObservationSeals:
    """The seals of one observer: macs under a key that nobody else has, so it keeps no table."""

    def __init__(self, key: bytes) -> None:
        """`key`: SEAL_KEY_BYTES random bytes."""
        self._key = key

    def seal(self, seen: Address, now_s: float) -> bytes:
        """The seal of an address that was seen now; none of one that is not the caller's own."""
        return NO_SEAL if seen.circuit or seen.web else self._mac(seen, int(now_s // SEAL_S))

    def vouches(self, seen: Address, seal: bytes, now_s: float) -> bool:
        """Whether a seal of this address is ours, and new."""
        epoch = int(now_s // SEAL_S)
        return any(hmac.compare_digest(seal, self._mac(seen, each)) for each in (epoch, epoch - 1))

    def _mac(self, seen: Address, epoch: int) -> bytes:
        text = f"{seen.host} {seen.port} {epoch}"
        return hmac.digest(self._key, text.encode(), "sha256")[:SEAL_BYTES]


def observation_request() -> bytes:
    """What the side that dials sends, and nothing more."""
    return OBSERVATION_MAGIC.ljust(OBSERVATION_REQUEST_BYTES, b"\0")


def observation_answer(remote: Address, seal: bytes = NO_SEAL) -> bytes:
    """What the other side answers: where it sees the connection come from."""
    address = ipaddress.ip_address(remote.host.partition("%")[0])
    mapped = b"\0" * 10 + b"\xff\xff" + address.packed
    raw = address.packed if address.version == 6 else mapped  # noqa: PLR2004
    return _OBSERVATION.pack(OBSERVATION_MAGIC, raw, remote.port, seal)


def read_observation(data: bytes) -> Sighting:
    """The sighting in an answer."""
    if len(data) != OBSERVATION_ANSWER_BYTES:
        raise BadHandshake(f"an observation of {len(data)} bytes")
    magic, raw, port, seal = _OBSERVATION.unpack(data)
    if magic != OBSERVATION_MAGIC or not port:
        raise BadHandshake("no observation")
    # an IPv4 address that is mapped into IPv6 becomes one again
    return Sighting(Address(str(ipaddress.IPv6Address(raw)), port), seal)
