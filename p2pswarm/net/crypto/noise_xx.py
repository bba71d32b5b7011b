"""Noise XX: three messages after which both sides share keys and know each other's X25519 key.

    -> e
    <- e, ee, s, es
    -> s, se

This file follows the specification and knows nothing of p2pswarm, so that the public
test vectors run through it unchanged.

Units:   keys and hashes are 32 raw bytes.
Source:  Perrin, "The Noise Protocol Framework", revision 34, sections 5 and 7.5.
"""

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from hashlib import sha256

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.crypto.suite import HASH_BYTES, KEY_BYTES, TAG_BYTES, Suite, hkdf

PATTERN = (("e",), ("e", "ee", "s", "es"), ("s", "se"))
REFUSED = "the peer's handshake is not authentic or not of this network"


class Role(Enum):
    """The two sides of a handshake; the value is the parity of a side's messages."""

    INITIATOR = 0
    RESPONDER = 1


@dataclass(frozen=True, slots=True)
class Split:
    """The results of a finished handshake, 32 bytes each: a key for what each side sends."""

    initiator_key: bytes
    responder_key: bytes
    exporter: bytes
    """A secret from which more keys are derived: the last HKDF's third output."""


class _Symmetric:
    """The hash of the transcript, the chaining key and the newest cipher key (Noise 5.2)."""

    def __init__(self, suite: Suite, prologue: bytes) -> None:
        self._suite = suite
        self._key = b""
        self._count = 0
        self.chain = self.hash = suite.noise_name.ljust(HASH_BYTES, b"\0")
        self.mix_hash(prologue)

    def mix_hash(self, data: bytes) -> None:
        self.hash = sha256(self.hash + data).digest()

    def mix_key(self, secret: bytes) -> None:
        self.chain, self._key = hkdf(secret, self.chain, b"", 2)
        self._count = 0

    def encrypt_and_hash(self, plaintext: bytes) -> bytes:
        sealed = plaintext
        if self._key:
            sealed = self._suite.aead(self._key).encrypt(self._nonce(), plaintext, self.hash)
        self.mix_hash(sealed)
        return sealed

    def decrypt_and_hash(self, sealed: bytes) -> bytes:
        plaintext = sealed
        if self._key:
            plaintext = self._suite.aead(self._key).decrypt(self._nonce(), sealed, self.hash)
        self.mix_hash(sealed)
        return plaintext

    def _nonce(self) -> bytes:
        count = self._count
        self._count += 1
        return bytes(4) + count.to_bytes(8, "big" if self._suite is Suite.AES_GCM else "little")


class NoiseXX:
    """One side of the handshake: call `write` and `read` in turn, then `split`."""

    def __init__(
        self,
        role: Role,
        suite: Suite,
        static: bytes | X25519PrivateKey,
        ephemeral: bytes,
        prologue: bytes,
    ) -> None:
        """`static` and `ephemeral`: private X25519 keys; an ephemeral one is never used twice.

        To make a key of bytes costs 0.04 ms. So a static one may be given as what was made of it,
        and the ephemeral one is made with the first message: who never sends one costs nothing.
        """
        self._role = role
        if isinstance(static, bytes):
            static = X25519PrivateKey.from_private_bytes(static)
        self._static = static
        self._ephemeral_raw = ephemeral
        self._state = _Symmetric(suite, prologue)
        self._remote: dict[str, bytes] = {}
        self._step = 0

    @cached_property
    def _ephemeral(self) -> X25519PrivateKey:
        return X25519PrivateKey.from_private_bytes(self._ephemeral_raw)

    @property
    def done(self) -> bool:
        """Return whether all three messages were written or read."""
        return self._step == len(PATTERN)

    @property
    def my_turn(self) -> bool:
        """Return whether the next message is ours to write."""
        return not self.done and self._step % 2 == self._role.value

    @property
    def hash(self) -> bytes:
        """The transcript's hash: public, the same on both sides, unique to this handshake."""
        return self._state.hash

    @property
    def remote_static(self) -> bytes:
        """The peer's static X25519 key; empty until it has come."""
        return self._remote.get("s", b"")

    def write(self, payload: bytes) -> bytes:
        """Our next message; BadHandshake if the peer's key is invalid."""
        if not self.my_turn:
            raise ValueError("it is the peer's turn to write")
        message = b""
        for part in PATTERN[self._step]:
            if part == "e":
                public = self._ephemeral.public_key().public_bytes_raw()
                self._state.mix_hash(public)
                message += public
            elif part == "s":
                public = self._static.public_key().public_bytes_raw()
                message += self._state.encrypt_and_hash(public)
            else:
                self._state.mix_key(self._agree(part))
        self._step += 1
        return message + self._state.encrypt_and_hash(payload)

    def read(self, message: bytes) -> bytes:
        """The payload of the peer's next message. After an error this object is useless."""
        if self.done or self.my_turn:
            raise ValueError("it is our turn to write")
        try:
            payload = self._read(message)
        except InvalidTag:
            raise BadHandshake(REFUSED) from None
        self._step += 1
        return payload

    def split(self) -> Split:
        """The keys of the session; ValueError before the handshake is done."""
        if not self.done:
            raise ValueError("the handshake is not done")
        return Split(*hkdf(b"", self._state.chain, b"", 3))

    def _read(self, message: bytes) -> bytes:
        at = 0
        for part in PATTERN[self._step]:
            if part == "e":
                public = message[at : at + KEY_BYTES]
                if len(public) != KEY_BYTES:
                    raise BadHandshake(REFUSED)
                self._state.mix_hash(public)
                self._remote["e"] = public
                at += KEY_BYTES
            elif part == "s":
                end = at + KEY_BYTES + TAG_BYTES  # in XX a static key is always encrypted
                public = self._state.decrypt_and_hash(message[at:end])
                if len(public) != KEY_BYTES:  # a message that ends early can be authentic
                    raise BadHandshake(REFUSED)
                self._remote["s"] = public
                at = end
            else:
                self._state.mix_key(self._agree(part))
        return self._state.decrypt_and_hash(message[at:])

    def _agree(self, part: str) -> bytes:
        """The Diffie-Hellman secret of `part`, whose first letter is the initiator's key."""
        initiators, responders = part[0], part[1]
        mine, theirs = initiators, responders
        if self._role is Role.RESPONDER:
            mine, theirs = responders, initiators
        private = self._ephemeral if mine == "e" else self._static
        public = X25519PublicKey.from_public_bytes(self._remote[theirs])
        try:
            return private.exchange(public)
        except ValueError:  # the peer's key is of low order: the secret would be zero
            raise BadHandshake(REFUSED) from None
