"""The bytes of a circuit: what a connection to a relay begins with, and the relay's answer.

Units:   bytes.
Errors:  BadHandshake for bytes that are neither; DialFailed for a relay's refusal.
Source:  docs/relays.md, "Bytes".
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Self

from p2pswarm.base.errors import BadHandshake, DialFailed, NobodyThere
from p2pswarm.base.ids import PEER_ID_BYTES

CIRCUIT_MAGIC = b"PSC1"
CIRCUIT_REQUEST_BYTES = 64  # eight times the answer: a relay never sends more than it was sent
CIRCUIT_ANSWER_BYTES = 8
TICKET_BYTES = 16  # nobody guesses 128 bits
_ASK, _TAKE = 1, 2
_NAME_BYTES = {_ASK: PEER_ID_BYTES, _TAKE: TICKET_BYTES}
_KIND_AT = len(CIRCUIT_MAGIC)


class CircuitStatus(IntEnum):
    """What a relay answers."""

    JOINED = 0
    NOT_RESERVED = 1
    FULL = 2
    NOT_TAKEN = 3
    NO_RELAY = 4
    NO_TICKET = 5


REASONS = {
    CircuitStatus.NOT_RESERVED: "it has no reservation of this peer",
    CircuitStatus.FULL: "it has too many circuits",
    CircuitStatus.NOT_TAKEN: "the peer did not come in time",
    CircuitStatus.NO_RELAY: "it is no relay",
    CircuitStatus.NO_TICKET: "it does not know our ticket",
}


@dataclass(frozen=True, slots=True)
class CircuitRequest:
    """What a connection asks of a relay: `peer` for a circuit, or to be the end of one."""

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
    """Return if the circuit is joined; raises DialFailed with the reason, or BadHandshake.

    NobodyThere says that the relay knows no such peer: the peer has left it, or ended.
    """
    if (
        len(raw) != CIRCUIT_ANSWER_BYTES
        or not raw.startswith(CIRCUIT_MAGIC)
        or any(raw[_KIND_AT + 1 :])
    ):
        raise BadHandshake(f"{relay} does not answer as a relay does")
    status = raw[_KIND_AT]
    if status == CircuitStatus.JOINED:
        return
    if status == CircuitStatus.NOT_RESERVED:
        raise NobodyThere(f"relay {relay}: {REASONS[CircuitStatus.NOT_RESERVED]}")
    known = status in list(CircuitStatus)
    reason = REASONS[CircuitStatus(status)] if known else f"it refuses us with status {status}"
    raise DialFailed(f"relay {relay}: {reason}")
