"""LinkRequest: the first message on a connection that belongs to a link which is up already.

Whoever made the link proves it by a mac under the link's exporter: to join bulk to it, or to carry
it from now on. Nobody else can make such a message, or learn from it which link it names.

    request = magic 4 | session 16 | number u32 | nonce 16 | mac 16

Units:   bytes.
Errors:  BadHandshake for a message that is not authentic.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from p2pswarm.base.errors import BadHandshake
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
class LinkRequest:
    """A request that names a link; a subclass says what for."""

    magic: ClassVar[bytes]
    label: ClassVar[bytes]
    """Of the keys that its macs are made with."""
    refused: ClassVar[str]
    """The error of one that is not authentic."""
    session: bytes
    number: int
    nonce: bytes
    mac: bytes

    @classmethod
    def make(cls, exporter: bytes, number: int, nonce: bytes) -> Self:
        """A request with its mac; `nonce`: 16 new random bytes."""
        unsigned = cls(session_of(exporter), number, nonce, b"")
        return cls(unsigned.session, number, nonce, unsigned._mac(exporter))

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read REQUEST_BYTES; the mac is checked later, with the session's exporter."""
        if len(raw) != REQUEST_BYTES or not raw.startswith(cls.magic):
            raise BadHandshake(cls.refused)
        _, session, number, nonce = _REQUEST.unpack_from(raw)
        return cls(session, number, nonce, raw[_REQUEST.size :])

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
            raise BadHandshake(self.refused)

    def reply_mac(self, exporter: bytes, data: bytes) -> bytes:
        """The mac of the acceptor's answer."""
        key = derive(exporter, self.label, self.nonce, NO_NONCE, self.number)[1]
        return hmac.digest(key, data, "sha256")[:MAC_BYTES]

    @property
    def _unsigned(self) -> bytes:
        return _REQUEST.pack(self.magic, self.session, self.number, self.nonce)

    def _mac(self, exporter: bytes) -> bytes:
        key = derive(exporter, self.label, NO_NONCE, NO_NONCE, self.number)[0]
        return hmac.digest(key, self._unsigned, "sha256")[:MAC_BYTES]
