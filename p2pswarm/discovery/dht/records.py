"""Signed records: which peer may sign which subkey, and which of two records is newer.

A record is signed by its publisher, so any peer may deliver it. Of two records for the
same subkey the one with the higher (seq, expires) counts on every node. So all copies
agree, in whatever order and however often they are merged.

A subkey of 32 bytes is a peer's id, and only that peer may sign for it. Every other
subkey is shared, and the last writer wins.

Units:   `_ms` milliseconds since 1970 on the wall clock.
Errors:  ValueError for a key, subkey or value of ours that no node would keep.
Source:  BEP 44 (mutable items: key, salt, seq, signature); RFC 8032 for Ed25519.
"""

import hashlib
import struct
from collections.abc import Iterable

from p2pswarm.base.ids import PEER_ID_BYTES, PeerId
from p2pswarm.discovery.dht.messages import SUBKEY_BYTES_MAX, VALUE_BYTES_MAX, Record
from p2pswarm.net.crypto.identity import Identity, verify

TAG = b"p2pswarm-dht-record-1:"  # separates these signatures from every other use of the key
PROOFS_MAX = 8192  # remembered digests of valid signatures, 1 MB
_HEAD = struct.Struct(">32sQQB")
_unsigned = b"\0" * 64


def sign(
    identity: Identity, key: bytes, subkey: bytes, value: bytes, seq: int, expires_ms: int
) -> Record:
    """Make a signed record of ours; ValueError if no node would keep it."""
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
    """The signed bytes: they have every field, and differ for any two records."""
    head = _HEAD.pack(record.key, record.seq, record.expires_ms, len(record.subkey))
    return b"".join((head, record.subkey, record.value))


def newer(a: Record, b: Record) -> Record:
    """The record that counts; the signature decides ties, so every node agrees."""
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
    """Add records to `into`, which keeps the newest of each subkey."""
    for record in records:
        known = into.get(record.subkey)
        if known is None or (known is not record and _rank(record) > _rank(known)):
            into[record.subkey] = record


def written_by(record: Record, peer: PeerId) -> bool:
    """Whether `peer`, which its link has authenticated, published the record."""
    return PeerId.of_key(record.public_key) == peer


class SignatureCache:
    """Checks signatures, and remembers the valid ones."""

    def __init__(self) -> None:
        self._true: dict[bytes, None] = {}

    def holds(self, record: Record) -> bool:
        """Whether the publisher has signed the record and may write its subkey."""
        body = _body(record)
        digest = hashlib.sha256(record.public_key + record.signature + body).digest()
        if digest in self._true:
            return True
        if not may_write(record) or not verify(record.public_key, TAG, body, record.signature):
            return False
        self._true[digest] = None
        if len(self._true) > PROOFS_MAX:
            del self._true[next(iter(self._true))]
        return True


def may_write(record: Record) -> bool:
    """Whether the subkey belongs to the record's publisher, or to no peer."""
    if len(record.subkey) != PEER_ID_BYTES:
        return True
    return PeerId.of_key(record.public_key).raw == record.subkey
