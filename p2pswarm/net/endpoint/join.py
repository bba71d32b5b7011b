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

from dataclasses import dataclass
from typing import ClassVar

from p2pswarm.net.crypto.records import derive
from p2pswarm.net.endpoint.link_request import (
    MAC_BYTES,
    NONCE_BYTES,
    REQUEST_BYTES,
    LinkRequest,
)

JOIN_MAGIC = b"PSB1"
JOIN_BYTES = REQUEST_BYTES
JOIN_ANSWER_BYTES = NONCE_BYTES + MAC_BYTES
JOIN_TRIES = 3  # to join one connection; each has a number of its own


@dataclass(frozen=True, slots=True)
class BulkJoin(LinkRequest):
    """The first message on a bulk connection, from the dialler."""

    magic: ClassVar[bytes] = JOIN_MAGIC
    label: ClassVar[bytes] = b"join"
    refused: ClassVar[str] = "the peer's join is not authentic"

    def answer(self, exporter: bytes, nonce: bytes) -> bytes:
        """The acceptor's answer; BadHandshake if the join is not authentic.

        `nonce`: 16 new random bytes.
        """
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
