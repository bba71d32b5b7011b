"""The handshake of a link: Noise XX, and a proof of each side's identity.

Noise proves that the peer holds its X25519 key. A signature inside the encrypted
payload proves that this key belongs to an Ed25519 identity. The dialler reveals its
identity only after the other side has proven to be the peer that was dialled.

    hello   = "PSW2" | suite u8 | network 16 bytes          the prologue of the handshake
    message = u16 length | Noise message
    payload = Ed25519 key 32 | signature 64 | anything      in the second and third message

Bytes go in with `receive` and come out of `data_to_send`. The owner of the socket
also watches the deadline.

Source:  Perrin, "The Noise Protocol Framework", revision 34; libp2p's noise handshake for
         the signed payload.
"""

import hmac
from dataclasses import dataclass
from typing import NamedTuple, Self

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from p2pswarm.base.errors import BadHandshake
from p2pswarm.base.ids import PeerId
from p2pswarm.net.crypto.identity import SIGNATURE_BYTES, Identity, verify
from p2pswarm.net.crypto.noise_xx import REFUSED, NoiseXX, Role
from p2pswarm.net.crypto.records import FrameBuffer
from p2pswarm.net.crypto.suite import KEY_BYTES, Suite

MAGIC = b"PSW2"  # the last byte is the version
VERSION_AT = 3
VERSION = MAGIC[VERSION_AT:].decode()
REMEDY = "install the same release on both sides"
NETWORK_BYTES = 16
HELLO_BYTES = len(MAGIC) + 1 + NETWORK_BYTES
STATIC_TAG = b"p2pswarm-noise-static:"
EXPORTER_TAG = b"p2pswarm-exporter:"
MESSAGE_BYTES_MAX = 4096  # the most that an unproven peer can make us hold
PROOF_BYTES = KEY_BYTES + SIGNATURE_BYTES
PAYLOAD_BYTES_MAX = 3072  # leaves room for two keys, three tags and the proof


@dataclass(frozen=True, slots=True)
class Hello:
    """The first bytes of a connection: the protocol version, the cipher suite and the network."""

    suite: Suite
    """The initiator's choice."""
    network: bytes
    """16 bytes; nodes of another network are refused."""

    def __post_init__(self) -> None:
        if len(self.network) != NETWORK_BYTES:
            raise ValueError(f"a network id has {NETWORK_BYTES} bytes, not {len(self.network)}")

    @property
    def raw(self) -> bytes:
        """The bytes on the wire, HELLO_BYTES of them."""
        return MAGIC + bytes([self.suite]) + self.network

    @classmethod
    def parse(cls, raw: bytes, network: bytes) -> Self:
        """Read a peer's hello of HELLO_BYTES; BadHandshake if it is not for our `network`."""
        if len(raw) != HELLO_BYTES or raw[:VERSION_AT] != MAGIC[:VERSION_AT]:
            raise BadHandshake("the peer does not speak our protocol")
        suite = raw[len(MAGIC) : len(MAGIC) + 1]
        if raw[: len(MAGIC)] != MAGIC:
            raise BadHandshake(f"the peer speaks version {_version(raw)}, we {VERSION}; {REMEDY}")
        if suite not in SUITES:
            raise BadHandshake(f"the peer chose cipher {suite[0]}, which we do not know; {REMEDY}")
        if raw[-NETWORK_BYTES:] != network:
            raise BadHandshake("the peer belongs to another network")
        return cls(SUITES[suite], network)


def _version(raw: bytes) -> str:
    """The version that a hello names, printable whatever the byte is."""
    version = raw[VERSION_AT : VERSION_AT + 1]
    return version.decode() if version.isalnum() else f"0x{version.hex()}"


SUITES = {bytes([suite]): suite for suite in Suite}


class StaticKey:
    """Our X25519 key for the life of a process, and our identity's signature on it."""

    def __init__(self, identity: Identity, private: bytes) -> None:
        """`private`: 32 random bytes, made when the node starts and never stored."""
        self.private = X25519PrivateKey.from_private_bytes(private)
        public = self.private.public_key().public_bytes_raw()
        self.peer_id = identity.peer_id
        self.proof = identity.public_key + identity.sign(STATIC_TAG, public)


class Keys(NamedTuple):
    """The keys of the record layer, 32 bytes each, and the suite."""

    send_key: bytes
    receive_key: bytes
    suite: Suite


@dataclass(frozen=True, slots=True)
class HandshakeResult:
    """What both sides have when it is done."""

    peer: PeerId
    """The peer at the other end, proven."""
    payload: bytes
    """The peer's payload, authentic but not checked in any other way."""
    keys: Keys
    exporter: bytes
    """A secret of 32 bytes, bound to the whole transcript, that only the two sides know."""


class Handshake:
    """One side of a handshake. After an error it accepts nothing more."""

    def __init__(
        self,
        role: Role,
        hello: Hello,
        static: StaticKey,
        ephemeral: bytes,
        payload: bytes = b"",
        *,
        expect: PeerId | None = None,
    ) -> None:
        """`ephemeral`: 32 new random bytes. `expect`: the peer that must be there; None: any."""
        if len(payload) > PAYLOAD_BYTES_MAX:
            raise ValueError(f"a payload of {len(payload)} bytes, at most {PAYLOAD_BYTES_MAX}")
        self._role = role
        self._suite = hello.suite
        self._static = static
        self.payload = payload
        """Our payload, which the peer gets encrypted."""
        self._expect = expect
        self._xx = NoiseXX(role, hello.suite, static.private, ephemeral, hello.raw)
        self._received = FrameBuffer(2, MESSAGE_BYTES_MAX, error=BadHandshake)
        self._to_send: list[bytes] = []
        self._failed = False
        self._peer: PeerId | None = None
        self._peer_payload = b""
        self._result: HandshakeResult | None = None
        if role is Role.INITIATOR:
            self._to_send.append(hello.raw)
            self._write(b"")

    @property
    def done(self) -> bool:
        """Return whether the keys are there; `data_to_send` may still hold a last message."""
        return self._result is not None

    @property
    def result(self) -> HandshakeResult:
        """The result; ValueError before the handshake is done."""
        if self._result is None:
            raise ValueError("the handshake is not done")
        return self._result

    def receive(self, data: bytes | memoryview) -> None:
        """Take bytes of the connection, cut anywhere; for a responder those after the hello."""
        if self._failed:
            raise BadHandshake(REFUSED)
        self._failed = True  # until all of the bytes were accepted
        for _, message in self._received.receive(bytes(data)):
            if self.done:
                raise BadHandshake("the handshake goes on after its last message")
            self._read(bytes(message))
            if self._xx.my_turn:
                self._write(self._static.proof + self.payload)
        self._failed = False

    def data_to_send(self) -> list[bytes]:
        """The bytes to send; each is returned once."""
        ready, self._to_send = self._to_send, []
        return ready

    def _read(self, message: bytes) -> None:
        payload = self._xx.read(message)
        if self._xx.remote_static:
            self._check_identity(payload)
        elif payload:  # a payload before there is a key would not be secret
            raise BadHandshake(REFUSED)
        self._settle()

    def _check_identity(self, payload: bytes) -> None:
        """Check who the peer is, in the message that brought its static key."""
        public_key, signature = payload[:KEY_BYTES], payload[KEY_BYTES:PROOF_BYTES]
        if not verify(public_key, STATIC_TAG, self._xx.remote_static, signature):
            raise BadHandshake("the peer's key does not belong to the identity it shows")
        peer = PeerId.of_key(public_key)
        if self._expect not in (None, peer):
            raise BadHandshake(f"expected peer {self._expect}, found {peer}")
        self._peer = peer
        self._peer_payload = payload[PROOF_BYTES:]

    def _write(self, payload: bytes) -> None:
        message = self._xx.write(payload)
        self._to_send.append(len(message).to_bytes(2) + message)
        self._settle()

    def _settle(self) -> None:
        """Take the keys after the last message."""
        if not self._xx.done:
            return
        split = self._xx.split()
        ours, theirs = split.initiator_key, split.responder_key
        if self._role is Role.RESPONDER:
            ours, theirs = theirs, ours
        exporter = hmac.digest(split.exporter, EXPORTER_TAG + self._xx.hash, "sha256")
        keys = Keys(ours, theirs, self._suite)
        assert self._peer is not None, "both sides have shown their static key"
        self._result = HandshakeResult(self._peer, self._peer_payload, keys, exporter)
