"""Signed values: which peer may sign what, and which of two records is newer.

A record is its publisher's statement, whichever peer delivers it. Of two for the same
subkey the one with the higher (seq, expires) counts, on every node alike, so that copies
which were merged in any order, any number of times, agree.

A subkey of 32 bytes is a peer's id, and only that peer may sign for it. Any other
subkey is shared: the last writer wins.

Units:   `_ms` milliseconds since 1970 on the wall clock.
Errors:  ValueError for a value that our own caller made too large or too lasting.
Source:  BEP 44 (mutable items: key, salt, seq, signature); RFC 8032 for Ed25519.
"""

import hashlib
import struct
from collections.abc import Iterable

from p2pswarm.crypto.identity import Identity, verify
from p2pswarm.dht.messages import SUBKEY_BYTES_MAX, VALUE_BYTES_MAX, Record
from p2pswarm.ids import PEER_ID_BYTES, PeerId

TAG = b"p2pswarm-dht-record-1:"  # separates these signatures from every other use of the key
PROOFS_MAX = 8192  # remembered digests of true signatures, 1 MB
_HEAD = struct.Struct(">32sQQB")
_unsigned = b"\0" * 64


def sign(
    identity: Identity, key: bytes, subkey: bytes, value: bytes, seq: int, expires_ms: int
) -> Record:
    """Make a record of ours; ValueError if no node would keep it."""
    if len(key) != PEER_ID_BYTES or len(subkey) > SUBKEY_BYTES_MAX:
        raise ValueError(f"a key has 32 bytes, a subkey 0..64; not {len(key)} and {len(subkey)}")
    if len(value) > VALUE_BYTES_MAX:
        raise ValueError(f"a value has {VALUE_BYTES_MAX} bytes at most, not {len(value)}")
    if len(subkey) == PEER_ID_BYTES and subkey != identity.peer_id.raw:
        raise ValueError("a subkey of 32 bytes is a peer's id, and this one is not ours")
    draft = Record(key, subkey, value, seq, expires_ms, identity.public_key, _unsigned)
    signature = identity.sign(TAG, _body(draft))
    return Record(key, subkey, value, seq, expires_ms, identity.public_key, signature)


def _body(record: Record) -> bytes:
    """What is signed: every field, so written that no two records look alike."""
    head = _HEAD.pack(record.key, record.seq, record.expires_ms, len(record.subkey))
    return b"".join((head, record.subkey, record.value))


def newer(a: Record, b: Record) -> Record:
    """The record that counts. The signature breaks ties, so every node agrees."""
    return a if _rank(a) >= _rank(b) else b


def _rank(record: Record) -> tuple[int, int, bytes, bytes, bytes]:
    return (
        record.seq,
        record.expires_ms,
        record.signature,
        record.public_key,
        record.value,
    )


def merge(into: dict[bytes, Record], records: Iterable[Record]) -> None:
    """Keep the newest record of each subkey."""
    for record in records:
        known = into.get(record.subkey)
        if known is None or (known is not record and _rank(record) > _rank(known)):
            into[record.subkey] = record


def written_by(record: Record, peer: PeerId) -> bool:
    """Whether this peer, which its link has authenticated, published the record."""
    return PeerId.of_key(record.public_key) == peer


class SignatureCache:
    """Checks signatures, and checks none of them twice."""

    def __init__(self) -> None:
        self._true: dict[bytes, None] = {}

    def holds(self, record: Record) -> bool:
        """Whether its publisher signed the record, and may write its subkey."""
        body = _body(record)
        mark = hashlib.sha256(record.public_key + record.signature + body).digest()
        if mark in self._true:
            return True
        if not may_write(record) or not verify(record.public_key, TAG, body, record.signature):
            return False
        self._true[mark] = None
        if len(self._true) > PROOFS_MAX:
            del self._true[next(iter(self._true))]
        return True


def may_write(record: Record) -> bool:
    """Whether the subkey belongs to its publisher, or to no peer."""
    if len(record.subkey) != PEER_ID_BYTES:
        return True
    return PeerId.of_key(record.public_key).raw == record.subkey
