"""The identity of a peer: an Ed25519 key, its peer id, and signatures made with it.

Units:   keys and seeds are 32 raw bytes, signatures 64.
Source:  RFC 8032.
"""

import hashlib
from typing import Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import (
    Ed25519PrivateKey,
    Ed25519PublicKey,
)

from p2pswarm.base.ids import PeerId

KEY_BYTES = 32
SIGNATURE_BYTES = 64
TAG_BYTES_MAX = 255  # its length is signed as one byte
SEED_TAG = b"p2pswarm-identity-seed:"


class Identity:
    """A private key and the peer id that belongs to it.

    Every signature is made for one purpose, which a tag names. The length of the tag and the tag
    are signed before the data, so a signature for one purpose is never valid for another.
    """

    __slots__ = ("_key", "peer_id", "public_key")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key: bytes = key.public_key().public_bytes_raw()
        self.peer_id = PeerId.of_key(self.public_key)

    @classmethod
    def generate(cls, seed: bytes | None = None) -> Self:
        """A new identity from the system's entropy, or the one that belongs to `seed`."""
        if seed is None:
            return cls(Ed25519PrivateKey.generate())
        return cls.from_bytes(hashlib.sha256(SEED_TAG + seed).digest())

    @classmethod
    def from_bytes(cls, raw: bytes) -> Self:
        """Read the 32 bytes that `raw` gave."""
        if len(raw) != KEY_BYTES:
            raise ValueError(f"an identity has {KEY_BYTES} bytes, not {len(raw)}")
        return cls(Ed25519PrivateKey.from_private_bytes(raw))

    @property
    def raw(self) -> bytes:
        """The private key, 32 bytes; only the key file may hold it."""
        return self._key.private_bytes_raw()

    def sign(self, tag: bytes, data: bytes) -> bytes:
        """The 64-byte signature over `data` for the purpose `tag`."""
        return self._key.sign(_tagged(tag, data))

    def __repr__(self) -> str:
        return f"Identity({self.peer_id.short})"


def verify(public_key: bytes, tag: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether the holder of `public_key` signed `data` for the purpose `tag`."""
    signed = _tagged(tag, data)
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, signed)
    except (InvalidSignature, ValueError):  # ValueError: not 32 bytes
        return False
    return True


def _tagged(tag: bytes, data: bytes) -> bytes:
    if not 1 <= len(tag) <= TAG_BYTES_MAX:
        raise ValueError(f"a tag has 1..{TAG_BYTES_MAX} bytes, not {len(tag)}")
    return bytes([len(tag)]) + tag + data
