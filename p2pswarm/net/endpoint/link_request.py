"""LinkRequest: the first message on a connection that belongs to a link which is up already.

Whoever made the link proves it by a mac under the link's exporter: to join bulk to it, or to carry
it from now on. Nobody else can make such a message, or learn from it which link it names.

    request = magic 4 | session 16 | number u32 | nonce 16 | mac 16

Both take one round trip and no asymmetric cryptography.

Errors:  BadHandshake for a message that is not authentic; UnknownLink for an answer of zeros.
Source:  docs/wire.md, docs/paths.md.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import Self

from p2pswarm.base.errors import BadHandshake, UnknownLink
from p2pswarm.net.crypto.records import derive

MAGIC_BYTES = 4
NONCE_BYTES = 16
MAC_BYTES = 16
SESSION_BYTES = 16
NO_NONCE = bytes(NONCE_BYTES)
_REQUEST = struct.Struct(f">{MAGIC_BYTES}s{SESSION_BYTES}sI{NONCE_BYTES}s")
REQUEST_BYTES = _REQUEST.size + MAC_BYTES


def session_of(exporter: bytes) -> bytes:
    """The link's public name of 16 bytes, the same on both sides."""
    return derive(exporter, b"session", NO_NONCE, NO_NONCE, 0)[0][:SESSION_BYTES]


@dataclass(frozen=True, slots=True)
class RequestKind:
    """The purpose of a request."""

    magic: bytes
    label: bytes
    """Of the keys that its macs are made with."""
    refusal: str
    """The error of one that is not authentic."""


JOIN = RequestKind(b"PSB1", b"join", "the peer's join is not authentic")
RESUME = RequestKind(b"PSP1", b"resume", "the peer's resumption is not authentic")


@dataclass(frozen=True, slots=True)
class LinkRequest:
    """A request that names a link."""

    kind: RequestKind
    session: bytes
    number: int
    nonce: bytes
    mac: bytes

    @classmethod
    def make(cls, kind: RequestKind, exporter: bytes, number: int, nonce: bytes) -> Self:
        """A request with its mac; `nonce`: 16 new random bytes."""
        unsigned = cls(kind, session_of(exporter), number, nonce, b"")
        return cls(kind, unsigned.session, number, nonce, unsigned._mac(exporter))

    @classmethod
    def parse(cls, kind: RequestKind, raw: bytes) -> Self:
        """Read REQUEST_BYTES; the mac is checked later, with the session's exporter."""
        if len(raw) != REQUEST_BYTES or not raw.startswith(kind.magic):
            raise BadHandshake(kind.refusal)
        _, session, number, nonce = _REQUEST.unpack_from(raw)
        return cls(kind, session, number, nonce, raw[_REQUEST.size :])

    @property
    def raw(self) -> bytes:
        """The REQUEST_BYTES bytes for the wire."""
        return self._unsigned + self.mac

    def require_authentic(self, exporter: bytes) -> None:
        """Raise BadHandshake unless one end of the link made it."""
        self.require_mac(self.mac, self._mac(exporter))

    def require_mac(self, mac: bytes, right: bytes) -> None:
        """Raise BadHandshake unless a mac is the right one."""
        if not hmac.compare_digest(mac, right):
            raise BadHandshake(self.kind.refusal)

    def reply_mac(self, exporter: bytes, data: bytes) -> bytes:
        """The mac of the acceptor's answer."""
        key = derive(exporter, self.kind.label, self.nonce, NO_NONCE, self.number)[1]
        return hmac.digest(key, data, "sha256")[:MAC_BYTES]

    def confirm_mac(self, exporter: bytes, nonce: bytes, data: bytes) -> bytes:
        """The mac of the dialler's confirmation; `nonce`: the acceptor's."""
        key = derive(exporter, self.kind.label, self.nonce, nonce, self.number)[0]
        return hmac.digest(key, data, "sha256")[:MAC_BYTES]

    @property
    def _unsigned(self) -> bytes:
        return _REQUEST.pack(self.kind.magic, self.session, self.number, self.nonce)

    def _mac(self, exporter: bytes) -> bytes:
        key = derive(exporter, self.kind.label, NO_NONCE, NO_NONCE, self.number)[0]
        return hmac.digest(key, self._unsigned, "sha256")[:MAC_BYTES]


JOIN_ANSWER_BYTES = NONCE_BYTES + MAC_BYTES
JOIN_TRIES = 3  # to join one connection; each has a number of its own


class BulkJoin(LinkRequest):
    """The first message on a bulk connection, from the dialler.

        join   = "PSB1" | session 16 | number u32 | nonce 16 | mac 16     dialler
        answer = nonce 16 | mac 16                                        acceptor

    The keys of both macs come from the exporter of the link's handshake, so only the link's two
    ends can make them. The keys of the connection come from the exporter and both nonces. A number
    joins a link only once, so a replayed join is refused.
    """

    __slots__ = ()

    def answer(self, exporter: bytes, nonce: bytes) -> bytes:
        """The acceptor's answer with its `nonce`; BadHandshake if the join is not authentic."""
        self.require_authentic(exporter)
        return nonce + self.reply_mac(exporter, nonce)

    def check_answer(self, exporter: bytes, raw: bytes) -> bytes:
        """The nonce in the acceptor's answer; BadHandshake if the answer is not authentic."""
        nonce = raw[:NONCE_BYTES]
        self.require_mac(raw[NONCE_BYTES:], self.reply_mac(exporter, nonce))
        return nonce

    def keys(self, exporter: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """The keys (dialler to acceptor, acceptor to dialler); `nonce`: the acceptor's."""
        return derive(exporter, b"bulk", self.nonce, nonce, self.number)


_NEXT = struct.Struct(">Q")
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


class Resume(LinkRequest):
    """The first message on a connection that takes over a link.

        resume  = "PSP1" | session 16 | number u32 | nonce 16 | mac 16    dialler
        answer  = nonce 16 | next u64 | mac 16                            acceptor
        confirm = next u64 | mac 16                                       dialler, then records

    An answer of 40 zeros says that the link is unknown.

    The keys of the macs come from the exporter of the link's handshake, so only the two processes
    that made the link can make them. `next` is the number of the record that the sender wants
    first.

    A number names one connection. The side that dialled the link takes even ones, the other side
    odd ones, and each is larger than that of the path in use. So a resume that comes again is
    stale, one that is sent back to its sender has the wrong parity, and of two that cross both
    sides keep the larger. Who accepts changes nothing before the confirm, which depends on its
    fresh nonce.
    """

    __slots__ = ()

    def check(self, exporter: bytes, numbers: PathNumbers) -> None:
        """Raise BadHandshake unless one end of the link made it, and not we, and not before."""
        self.require_authentic(exporter)
        numbers.check_peers(self.number)

    def answer(self, exporter: bytes, nonce: bytes, wanted: int) -> bytes:
        """The acceptor's answer with its `nonce`; `wanted`: our next record."""
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
        return head + self.confirm_mac(exporter, nonce, head)

    def read_confirm(self, exporter: bytes, nonce: bytes, raw: bytes) -> int:
        """The record that the dialler wants first."""
        head = raw[:-MAC_BYTES]
        self.require_mac(raw[-MAC_BYTES:], self.confirm_mac(exporter, nonce, head))
        return int.from_bytes(head)
