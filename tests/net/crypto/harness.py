"""A side of a handshake that cheats."""

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from p2pswarm.net.crypto.noise_xx import NoiseXX
from p2pswarm.net.crypto.suite import TAG_BYTES


class ShortKey:
    """Stands for an X25519 key, and shows only the first bytes of its public half."""

    def __init__(self, key: X25519PrivateKey, size: int) -> None:
        self._key = key
        self._size = size

    def public_key(self) -> "ShortKey":
        return self

    def public_bytes_raw(self) -> bytes:
        return self._key.public_key().public_bytes_raw()[: self._size]

    def exchange(self, public: X25519PublicKey) -> bytes:
        return self._key.exchange(public)


def with_short_key(side: NoiseXX, size: int) -> bytes:
    """The message of `side` with `size` bytes, authentic ones, where its static key belongs.

    It ends with them: a reader that expects a whole key would else take the payload for a part.
    """
    side._static = ShortKey(side._static, size)
    return side.write(b"")[:-TAG_BYTES]
