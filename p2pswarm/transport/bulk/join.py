"""BulkJoin: a bulk connection joins a link in one round trip, without asymmetric crypto.

    join   = "PSB1" | session 16 | number u32 | nonce 16 | mac 16     dialler
    answer = nonce 16 | mac 16                                        acceptor

The keys of both macs come from the exporter of the link's handshake, so only the
link's two ends can make them. The keys of the connection come from the exporter and
both nonces. A number joins a link only once, so a replayed join is refused.

Units:   bytes.
Errors:  BadHandshake for whatever the peer sends.
Source:  docs/wire.md.
"""

import hmac
import struct
from dataclasses import dataclass
from typing import Self

from p2pswarm.crypto.records import derive
from p2pswarm.errors import BadHandshake

MAGIC = b"PSB1"
NONCE_BYTES = 16
MAC_BYTES = 16
SESSION_BYTES = 16
_JOIN = struct.Struct(f">{len(MAGIC)}s{SESSION_BYTES}sI{NONCE_BYTES}s")
JOIN_BYTES = _JOIN.size + MAC_BYTES
ANSWER_BYTES = NONCE_BYTES + MAC_BYTES
NUMBER_MAX = (1 << 32) - 1
_NO_NONCE = bytes(NONCE_BYTES)
TRIES = 3  # to join one connection; each has a number of its own
REFUSED = "the peer's join is not authentic"


def session_of(exporter: bytes) -> bytes:
    """The link's public name of 16 bytes, the same on both sides."""
    return derive(exporter, b"session", _NO_NONCE, _NO_NONCE, 0)[0][:SESSION_BYTES]


@dataclass(frozen=True, slots=True)
class BulkJoin:
    """The first message on a bulk connection, from the dialler."""

    session: bytes
    number: int
    nonce: bytes
    mac: bytes

    @classmethod
    def make(cls, exporter: bytes, number: int, nonce: bytes) -> Self:
        """A join with its mac; `nonce`: 16 new random bytes."""
        session = session_of(exporter)
        unsigned = cls(session, number, nonce, b"")
        return cls(session, number, nonce, unsigned._mac(exporter))

    @classmethod
    def parse(cls, raw: bytes) -> Self:
        """Read JOIN_BYTES; `answer` checks the mac later, with the session's exporter."""
        if len(raw) != JOIN_BYTES or not raw.startswith(MAGIC):
            raise BadHandshake(REFUSED)
        _, session, number, nonce = _JOIN.unpack_from(raw)
        return cls(session, number, nonce, raw[_JOIN.size :])

    @property
    def raw(self) -> bytes:
        """The JOIN_BYTES bytes for the wire."""
        return self._unsigned + self.mac

    def answer(self, exporter: bytes, nonce: bytes) -> bytes:
        """The acceptor's answer; BadHandshake if the join is not authentic.

        `nonce`: 16 new random bytes.
        """
        if not hmac.compare_digest(self.mac, self._mac(exporter)):
            raise BadHandshake(REFUSED)
        return nonce + self._answer_mac(exporter, nonce)

    def check_answer(self, exporter: bytes, raw: bytes) -> bytes:
        """The nonce in the acceptor's answer; BadHandshake if the answer is not authentic."""
        nonce = raw[:NONCE_BYTES]
        if not hmac.compare_digest(raw[NONCE_BYTES:], self._answer_mac(exporter, nonce)):
            raise BadHandshake(REFUSED)
        return nonce

    def keys(self, exporter: bytes, nonce: bytes) -> tuple[bytes, bytes]:
        """The keys (dialler to acceptor, acceptor to dialler); `nonce`: the acceptor's."""
        return derive(exporter, b"bulk", self.nonce, nonce, self.number)

    @property
    def _unsigned(self) -> bytes:
        return _JOIN.pack(MAGIC, self.session, self.number, self.nonce)

    def _mac(self, exporter: bytes) -> bytes:
        key = derive(exporter, b"join", _NO_NONCE, _NO_NONCE, self.number)[0]
        return hmac.digest(key, self._unsigned, "sha256")[:MAC_BYTES]

    def _answer_mac(self, exporter: bytes, nonce: bytes) -> bytes:
        key = derive(exporter, b"join", self.nonce, _NO_NONCE, self.number)[1]
        return hmac.digest(key, nonce, "sha256")[:MAC_BYTES]
