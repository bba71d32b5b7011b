"""Resumption: a link goes on over a new connection, in one round trip without asymmetric crypto.

    resume  = "PSR1" | session 16 | number u32 | nonce 16 | mac 16    who connects
    answer  = nonce 16 | next u64 | mac 16                            who accepts; 40 zeros: unknown
    confirm = next u64 | mac 16                                       who connects, then records

The keys of the macs come from the exporter of the link's handshake, so only the two processes that
made the link can make them. `next` is the number of the record that the sender wants first.

A number names one connection. The side that dialled the link takes even ones, the other side odd
ones, and each is larger than that of the path in use. So a resume that comes again is stale, one
that is sent back to its sender has the wrong parity, and of two that cross both sides keep the
larger. Who accepts changes nothing before the confirm, which depends on its fresh nonce.

Units:   bytes.
Errors:  BadHandshake for whatever the peer sends; UnknownLink for an answer of zeros.
Source:  docs/paths.md.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import Self

from p2pswarm.crypto.records import derive
from p2pswarm.errors import BadHandshake, UnknownLink
from p2pswarm.transport.bulk.join import MAC_BYTES, NONCE_BYTES, SESSION_BYTES, session_of

MAGIC = b"PSR1"
NUMBER_MAX = (1 << 32) - 1
_RESUME = struct.Struct(f">{len(MAGIC)}s{SESSION_BYTES}sI{NONCE_BYTES}s")
_NEXT = struct.Struct(">Q")
RESUME_BYTES = _RESUME.size + MAC_BYTES
ANSWER_BYTES = NONCE_BYTES + _NEXT.size + MAC_BYTES
CONFIRM_BYTES = _NEXT.size + MAC_BYTES
UNKNOWN = bytes(ANSWER_BYTES)
_NO_NONCE = bytes(NONCE_BYTES)
REFUSED = "the peer's resumption is not authentic"


class PathNumbers:
    """The numbers of the connections of one link, as one side gives and takes them."""

    def __init__(self, *, dialled: bool) -> None:
        """`dialled`: whether we dialled the link."""
        self._dialled = dialled
        self._asked = 0
        self.newest = 0
        """The number of the connection that carries the link, or did last."""

    def take(self) -> int:
        """The number of our next connection; each is given once."""
        number = max(self._asked, self.newest) + 1
        self._asked = number + (number % 2 == self._dialled)
        return self._asked

    def check(self, number: int) -> None:
        """Raise BadHandshake if a connection comes too late to carry the link."""
        if number <= self.newest:
            raise BadHandshake(f"path {number} comes after path {self.newest}")

    def check_peers(self, number: int) -> None:
        """Raise BadHandshake unless the peer may have given this number to a newer connection."""
        self.check(number)
        if number % 2 != self._dialled:
            raise BadHandshake(f"path {number} has a number of ours")


@dataclass(frozen=True, slots=True)
class Resume:
    """The first message on a connection that takes over a link."""

    session: bytes
    number: int
    nonce: bytes
    mac: bytes

    @classmethod
    def make(cls, exporter: bytes, number: int, nonce: bytes) -> Self:
        """A resume with its mac; `nonce`: 16 new random bytes."""
        unsigned = cls(session_of(exporter), number, nonce, b"")
        return cls(unsigned.session, number, nonce, unsigned._mac(exporter))

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read RESUME_BYTES; `check` needs the session's exporter."""
        if len(raw) != RESUME_BYTES or not raw.startswith(MAGIC):
            raise BadHandshake(REFUSED)
        _, session, number, nonce = _RESUME.unpack_from(raw)
        return cls(session, number, nonce, raw[_RESUME.size :])

    @property
    def raw(self) -> bytes:
        """The RESUME_BYTES bytes for the wire."""
        return self._unsigned + self.mac

    def check(self, exporter: bytes, numbers: PathNumbers) -> None:
        """Raise BadHandshake unless one end of the link made it, and not we, and not before."""
        if not hmac.compare_digest(self.mac, self._mac(exporter)):
            raise BadHandshake(REFUSED)
        numbers.check_peers(self.number)

    def answer(self, exporter: bytes, nonce: bytes, wanted: int) -> bytes:
        """The acceptor's answer; `nonce`: 16 new random bytes. `wanted`: our next record."""
        head = nonce + _NEXT.pack(wanted)
        return head + self._answer_mac(exporter, head)

    def read_answer(self, exporter: bytes, raw: bytes) -> tuple[bytes, int]:
        """The acceptor's nonce, and the record that it wants first."""
        if raw == UNKNOWN:
            raise UnknownLink("the peer does not know the link any more")
        head = raw[:-MAC_BYTES]
        if not hmac.compare_digest(raw[-MAC_BYTES:], self._answer_mac(exporter, head)):
            raise BadHandshake(REFUSED)
        return head[:NONCE_BYTES], int.from_bytes(head[NONCE_BYTES:])

    def confirm(self, exporter: bytes, nonce: bytes, wanted: int) -> bytes:
        """The dialler's confirmation; `nonce`: the acceptor's. `wanted`: our next record."""
        head = _NEXT.pack(wanted)
        return head + self._confirm_mac(exporter, nonce, head)

    def read_confirm(self, exporter: bytes, nonce: bytes, raw: bytes) -> int:
        """The record that the dialler wants first."""
        head = raw[:-MAC_BYTES]
        if not hmac.compare_digest(raw[-MAC_BYTES:], self._confirm_mac(exporter, nonce, head)):
            raise BadHandshake(REFUSED)
        return int.from_bytes(head)

    @property
    def _unsigned(self) -> bytes:
        return _RESUME.pack(MAGIC, self.session, self.number, self.nonce)

    def _mac(self, exporter: bytes) -> bytes:
        key = derive(exporter, b"resume", _NO_NONCE, _NO_NONCE, self.number)[0]
        return hmac.digest(key, self._unsigned, "sha256")[:MAC_BYTES]

    def _answer_mac(self, exporter: bytes, head: bytes) -> bytes:
        key = derive(exporter, b"resume", self.nonce, _NO_NONCE, self.number)[1]
        return hmac.digest(key, head, "sha256")[:MAC_BYTES]

    def _confirm_mac(self, exporter: bytes, nonce: bytes, head: bytes) -> bytes:
        key = derive(exporter, b"resume", self.nonce, nonce, self.number)[0]
        return hmac.digest(key, head, "sha256")[:MAC_BYTES]
