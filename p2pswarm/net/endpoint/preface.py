"""Prefaces: the first bytes of a connection that opens no link.

A dial-back knocks. Both sides of a punched connection say which attempt it belongs to. A node asks
where its connection is seen to come from. A dialler asks a relay for a circuit.

Errors:  BadHandshake for bytes that are none of these; DialFailed for a relay's refusal.
Source:  docs/reachability.md sections 3 and 4; docs/punching.md; docs/relays.md, "Bytes".
"""

import hashlib
import hmac
import ipaddress
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from p2pswarm.base.errors import BadHandshake, DialFailed, NobodyThere
from p2pswarm.base.ids import PEER_ID_BYTES, Address

KNOCK_MAGIC = b"PSD1"
KNOCK_NONCE_BYTES = 16
KNOCK_TOKEN_BYTES = 16
_KNOCK_TAG = b"p2pswarm-dial-back:"


def token_of(nonce: bytes) -> bytes:
    """The token that answers to a nonce."""
    return hashlib.sha256(_KNOCK_TAG + nonce).digest()[:KNOCK_TOKEN_BYTES]


def knock(nonce: bytes) -> bytes:
    """All that is sent on the connection.

    Who asks for it has chosen a nonce. What is sent is a hash of it, so that nobody has a peer send
    bytes of his choice to a port of his choice.
    """
    return KNOCK_MAGIC + token_of(nonce)


PUNCH_MAGIC = b"PSX1"
PUNCH_TOKEN_BYTES = 16
PUNCH_PREFACE_BYTES = len(PUNCH_MAGIC) + PUNCH_TOKEN_BYTES


def punch_preface(token: bytes) -> bytes:
    """The preface with a token that both sides have agreed on.

    Nobody knows then whose dial succeeded, so both say it. The token shows which attempt it belongs
    to.

        preface = "PSX1" | token 16
    """
    assert len(token) == PUNCH_TOKEN_BYTES
    return PUNCH_MAGIC + token


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
    """The address from which an observer saw a connection of ours come."""

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
        """Return whether a seal of this address is ours, and new."""
        epoch = int(now_s // SEAL_S)
        return any(hmac.compare_digest(seal, self._mac(seen, each)) for each in (epoch, epoch - 1))

    def _mac(self, seen: Address, epoch: int) -> bytes:
        text = f"{seen.host} {seen.port} {epoch}"
        return hmac.digest(self._key, text.encode(), "sha256")[:SEAL_BYTES]


def observation_request() -> bytes:
    """Return what the side that dials sends, and nothing more.

    A node that calls from its listening port learns so which outside port its router gives that
    port. The answer is shorter than the request, so that nobody is flooded with answers. It ends in
    a seal, which shows to whoever asks the observer that a connection did come from there
    (docs/punching.md).
    """
    return OBSERVATION_MAGIC.ljust(OBSERVATION_REQUEST_BYTES, b"\0")


def observation_answer(remote: Address, seal: bytes = NO_SEAL) -> bytes:
    """Return what the other side answers: where it sees the connection come from."""
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


CIRCUIT_MAGIC = b"PSC1"
CIRCUIT_REQUEST_BYTES = 64  # eight times the answer: a relay never sends more than it was sent
CIRCUIT_ANSWER_BYTES = 8
TICKET_BYTES = 16  # nobody guesses 128 bits
_ASK, _TAKE = 1, 2
_NAME_BYTES = {_ASK: PEER_ID_BYTES, _TAKE: TICKET_BYTES}
_KIND_AT = len(CIRCUIT_MAGIC)


class CircuitStatus(IntEnum):
    """The answers of a relay."""

    JOINED = 0
    NOT_RESERVED = 1
    FULL = 2
    NOT_TAKEN = 3
    NO_RELAY = 4
    NO_TICKET = 5


REASONS: dict[int, str] = {
    CircuitStatus.NOT_RESERVED: "it has no reservation of this peer",
    CircuitStatus.FULL: "it has too many circuits",
    CircuitStatus.NOT_TAKEN: "the peer did not come in time",
    CircuitStatus.NO_RELAY: "it is no relay",
    CircuitStatus.NO_TICKET: "it does not know our ticket",
}


@dataclass(frozen=True, slots=True)
class CircuitRequest:
    """A request to a relay: for a circuit to `peer`, or to be the end of one."""

    peer: bytes = b""
    """The id of the peer to be joined with; empty if there is a ticket."""
    ticket: bytes = b""
    """The ticket of a circuit that waits for us; empty if there is a peer."""

    @property
    def raw(self) -> bytes:
        """The request on the wire."""
        kind, name = (_ASK, self.peer) if self.peer else (_TAKE, self.ticket)
        assert len(name) == _NAME_BYTES[kind]
        head = CIRCUIT_MAGIC + bytes([kind])
        return head + bytes(CIRCUIT_REQUEST_BYTES - len(head) - len(name)) + name

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """The request in REQUEST_BYTES of unknown origin."""
        if len(raw) != CIRCUIT_REQUEST_BYTES or not raw.startswith(CIRCUIT_MAGIC):
            raise BadHandshake("it asks a relay with other bytes than the protocol's")
        kind = raw[_KIND_AT]
        name_bytes = _NAME_BYTES.get(kind)
        if name_bytes is None:
            raise BadHandshake(f"it asks a relay for something of kind {kind}")
        if any(raw[_KIND_AT + 1 : -name_bytes]):
            raise BadHandshake("its request to a relay is not padded with zeros")
        name = raw[-name_bytes:]
        return cls(peer=name) if kind == _ASK else cls(ticket=name)


def circuit_answer(status: CircuitStatus) -> bytes:
    """A relay's answer on the wire."""
    return CIRCUIT_MAGIC + bytes([status]) + bytes(CIRCUIT_ANSWER_BYTES - _KIND_AT - 1)


def check_circuit_answer(raw: bytes, relay: str) -> None:
    """Raise DialFailed unless it is joined; NobodyThere if the relay does not know the peer."""
    if (
        len(raw) != CIRCUIT_ANSWER_BYTES
        or not raw.startswith(CIRCUIT_MAGIC)
        or any(raw[_KIND_AT + 1 :])
    ):
        raise BadHandshake(f"{relay} does not answer as a relay does")
    status = raw[_KIND_AT]
    if status == CircuitStatus.JOINED:
        return
    kind = NobodyThere if status == CircuitStatus.NOT_RESERVED else DialFailed
    raise kind(f"relay {relay}: {REASONS.get(status, f'it refuses us with status {status}')}")
