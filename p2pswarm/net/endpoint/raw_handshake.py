"""The bytes on a connection before it is in use: the dialler's side and the acceptor's.

Each side tells how many bytes it needs next, because the bytes after the last message
belong to the link or to the bulk connection. The first four bytes tell an acceptor whether the
connection opens a link, joins bulk to one, is a knock, asks to be observed, asks a relay, or was
punched. An acceptor that refuses a dialler sends its own hello, from which the dialler learns why.

Source:  docs/wire.md, section 1.
"""

from typing import NamedTuple

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.crypto.handshake import HELLO_BYTES, Handshake, Hello, StaticKey
from p2pswarm.net.crypto.handshake import MAGIC as LINK_MAGIC
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.endpoint import preface
from p2pswarm.net.endpoint.link_request import JOIN, REQUEST_BYTES, RESUME, BulkJoin, Resume
from p2pswarm.net.endpoint.preface import CircuitRequest

LENGTH_BYTES = 2  # before each message of the handshake
MAGIC_BYTES = len(LINK_MAGIC)
USES = {
    JOIN.magic: REQUEST_BYTES,
    RESUME.magic: REQUEST_BYTES,
    preface.KNOCK_MAGIC: MAGIC_BYTES + preface.KNOCK_TOKEN_BYTES,
    preface.PUNCH_MAGIC: preface.PUNCH_PREFACE_BYTES,
    preface.CIRCUIT_MAGIC: preface.CIRCUIT_REQUEST_BYTES,
    preface.OBSERVATION_MAGIC: preface.OBSERVATION_REQUEST_BYTES,
}
"""The first bytes of a connection that opens no link, and how many it has."""


class MessageExchange:
    """The messages of a handshake, each after its length."""

    def __init__(self, handshake: Handshake) -> None:
        self.handshake = handshake
        """Finished when `wanted_bytes` is 0."""
        self.wanted_bytes = LENGTH_BYTES
        """The number of bytes that `receive` takes next; 0 at the end."""
        self._at_length = True

    @property
    def computes(self) -> bool:
        """Return whether the next `receive` takes a message: its cryptography costs 0.2 ms."""
        return not self._at_length

    def receive(self, data: bytes) -> None:
        """Take `wanted_bytes` of the connection."""
        self.handshake.receive(data)
        if self._at_length:
            self.wanted_bytes = int.from_bytes(data)
        else:
            self.wanted_bytes = 0 if self.handshake.done else LENGTH_BYTES
        self._at_length = not self._at_length

    def data_to_send(self) -> bytes:
        """Return what to put on the wire; send it before more is received."""
        return b"".join(self.handshake.data_to_send())


class DialledHandshake(MessageExchange):
    """The side that dialled."""

    def __init__(self, handshake: Handshake, network: bytes) -> None:
        """`handshake`: a new one of an initiator. `network`: our own, 16 bytes."""
        super().__init__(handshake)
        self._network = network
        self._refusal = b""

    def receive(self, data: bytes) -> None:
        """Take `wanted_bytes` of the connection."""
        if self._refusal:
            Hello.parse(self._refusal + data, self._network)
            raise BadHandshake("the peer refused us without a reason")
        if data == LINK_MAGIC[:LENGTH_BYTES]:  # no message is that long: these bytes begin a hello
            self._refusal = data
            self.wanted_bytes = HELLO_BYTES - LENGTH_BYTES
        else:
            super().receive(data)


class Preface(NamedTuple):
    """The purpose of a connection that says it with its first bytes alone."""

    magic: bytes
    token: bytes


class AcceptedHandshake:
    """The side that accepted: it learns first what the connection is for."""

    def __init__(self, us: Hello, static: StaticKey, ephemeral: bytes, payload: bytes) -> None:
        """`us`: our own hello. `Handshake` describes the other arguments."""
        self.wanted_bytes = MAGIC_BYTES
        """The number of bytes that `receive` takes next; 0 at the end."""
        self.refusal: BadHandshake | None = None
        """The reason to refuse the peer, after `data_to_send` was sent."""
        self.use: Handshake | BulkJoin | Resume | CircuitRequest | Preface | None = None
        """The use of the connection, known when nothing more is wanted; a handshake: a new link."""
        self._us = us
        self._static = static
        self._ephemeral = ephemeral
        self._payload = payload
        self._magic = b""
        self._messages: MessageExchange | None = None
        self._to_send = b""

    @property
    def computes(self) -> bool:
        """Return whether the next `receive` costs much time."""
        return self._messages is not None and self._messages.computes

    def receive(self, data: bytes) -> None:
        """Take `wanted_bytes` of the connection."""
        if self._messages is not None:
            self._messages.receive(data)
            self._to_send = self._messages.data_to_send()
            self.wanted_bytes = self._messages.wanted_bytes
        elif not self._magic:
            self._begin(data)
        elif self._magic in USES:
            self.use = _use_of(self._magic + data)
            self.wanted_bytes = 0
        else:
            self._on_hello(self._magic + data)

    def data_to_send(self) -> bytes:
        """Return what to put on the wire; send it before more is received."""
        ready, self._to_send = self._to_send, b""
        return ready

    def _begin(self, magic: bytes) -> None:
        is_hello = magic[:-1] == LINK_MAGIC[:-1]  # of any version: the peer learns which we speak
        if magic not in USES and not is_hello:
            raise BadHandshake("its first bytes are not those of a peer")
        self.wanted_bytes = USES.get(magic, HELLO_BYTES) - MAGIC_BYTES
        self._magic = magic

    def _on_hello(self, raw: bytes) -> None:
        try:
            hello = Hello.parse(raw, self._us.network)
        except BadHandshake as error:  # our hello tells why; it is as long as the peer's
            self.refusal = error
            self._to_send = self._us.raw
            self.wanted_bytes = 0
            return
        handshake = Handshake(Role.RESPONDER, hello, self._static, self._ephemeral, self._payload)
        self.use = handshake
        self._messages = MessageExchange(handshake)
        self.wanted_bytes = self._messages.wanted_bytes


def _use_of(raw: bytes) -> BulkJoin | Resume | CircuitRequest | Preface:
    match raw[:MAGIC_BYTES]:
        case JOIN.magic:
            return BulkJoin.parse(JOIN, raw)
        case RESUME.magic:
            return Resume.parse(RESUME, raw)
        case preface.CIRCUIT_MAGIC:
            return CircuitRequest.parse(raw)
        case magic:
            return Preface(magic, raw[MAGIC_BYTES:])
