"""Resumption: a link goes on over a new connection, in one round trip without asymmetric crypto.

    resume  = "PSP1" | session 16 | number u32 | nonce 16 | mac 16    who connects
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
from typing import ClassVar

from p2pswarm.base.errors import BadHandshake, UnknownLink
from p2pswarm.net.crypto.records import derive
from p2pswarm.net.endpoint.link_request import (
    MAC_BYTES,
    NONCE_BYTES,
    REQUEST_BYTES,
    LinkRequest,
)

RESUME_MAGIC = b"PSP1"
_NEXT = struct.Struct(">Q")
RESUME_BYTES = REQUEST_BYTES
RESUME_ANSWER_BYTES = NONCE_BYTES + _NEXT.size + MAC_BYTES
RESUME_CONFIRM_BYTES = _NEXT.size + MAC_BYTES
UNKNOWN_LINK = bytes(RESUME_ANSWER_BYTES)


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
class Resume(LinkRequest):
    """The first message on a connection that takes over a link."""

    magic: ClassVar[bytes] = RESUME_MAGIC
    label: ClassVar[bytes] = b"resume"
    refused: ClassVar[str] = "the peer's resumption is not authentic"

    def check(self, exporter: bytes, numbers: PathNumbers) -> None:
        """Raise BadHandshake unless one end of the link made it, and not we, and not before."""
        self.require_authentic(exporter)
        numbers.check_peers(self.number)

    def answer(self, exporter: bytes, nonce: bytes, wanted: int) -> bytes:
        """The acceptor's answer; `nonce`: 16 new random bytes. `wanted`: our next record."""
        head = nonce + _NEXT.pack(wanted)
        return head + self.reply_mac(exporter, head)

    def read_answer(self, exporter: bytes, raw: bytes) -> tuple[bytes, int]:
        """The acceptor's nonce, and the record that it wants first."""
        if raw == UNKNOWN_LINK:
            raise UnknownLink("the peer does not know the link any more")
        head = raw[:-MAC_BYTES]
        self.require_mac(raw[-MAC_BYTES:], self.reply_mac(exporter, head))
        return head[:NONCE_BYTES], int.from_bytes(head[NONCE_BYTES:])

    def confirm(self, exporter: bytes, nonce: bytes, wanted: int) -> bytes:
        """The dialler's confirmation; `nonce`: the acceptor's. `wanted`: our next record."""
        head = _NEXT.pack(wanted)
        return head + self._confirm_mac(exporter, nonce, head)

    def read_confirm(self, exporter: bytes, nonce: bytes, raw: bytes) -> int:
        """The record that the dialler wants first."""
        head = raw[:-MAC_BYTES]
        self.require_mac(raw[-MAC_BYTES:], self._confirm_mac(exporter, nonce, head))
        return int.from_bytes(head)

    def _confirm_mac(self, exporter: bytes, nonce: bytes, head: bytes) -> bytes:
        key = derive(exporter, self.label, self.nonce, nonce, self.number)[0]
        return hmac.digest(key, head, "sha256")[:MAC_BYTES]
