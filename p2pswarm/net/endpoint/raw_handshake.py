"""The bytes on a connection before it is in use: the dialler's side and the acceptor's.

Each side tells how many bytes it needs next, because the bytes after the last message
belong to the link or to the bulk connection. The first four bytes tell an acceptor whether the
connection opens a link, joins bulk to one, is a knock, asks to be observed, asks a relay, or was
punched. An acceptor that refuses a dialler sends its own hello, from which the dialler learns why.

Errors:  BadHandshake for whatever the peer sends.
Source:  docs/wire.md, section 1.
"""

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.crypto.handshake import HELLO_BYTES, Handshake, Hello, StaticKey
from p2pswarm.net.crypto.handshake import MAGIC as LINK_MAGIC
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.endpoint.link_request import (
    JOIN,
    JOIN_BYTES,
    RESUME,
    RESUME_BYTES,
    BulkJoin,
    Resume,
)
from p2pswarm.net.endpoint.preface import (
    CIRCUIT_MAGIC,
    CIRCUIT_REQUEST_BYTES,
    KNOCK_MAGIC,
    KNOCK_TOKEN_BYTES,
    OBSERVATION_MAGIC,
    OBSERVATION_REQUEST_BYTES,
    PUNCH_MAGIC,
    PUNCH_TOKEN_BYTES,
    CircuitRequest,
)

LENGTH_BYTES = 2  # before each message of the handshake
MAGIC_BYTES = len(LINK_MAGIC)


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


class DialledHandshake:
    """The side that dialled."""

    def __init__(self, handshake: Handshake, network: bytes) -> None:
        """`handshake`: a new one of an initiator. `network`: our own, 16 bytes."""
        self.handshake = handshake
        self._network = network
        self._messages = MessageExchange(handshake)
        self._refusal = b""

    @property
    def wanted_bytes(self) -> int:
        """Return how many bytes `receive` takes next; 0 at the end."""
        return HELLO_BYTES - LENGTH_BYTES if self._refusal else self._messages.wanted_bytes

    @property
    def computes(self) -> bool:
        """Return whether the next `receive` costs much time."""
        return self._messages.computes

    def receive(self, data: bytes) -> None:
        """Take `wanted_bytes` of the connection."""
        if self._refusal:
            Hello.parse(self._refusal + data, self._network)
            raise BadHandshake("the peer refused us without a reason")
        if data == LINK_MAGIC[:LENGTH_BYTES]:  # no message is that long: these bytes begin a hello
            self._refusal = data
        else:
            self._messages.receive(data)

    def data_to_send(self) -> bytes:
        """Return what to put on the wire; send it before more is received."""
        return self._messages.data_to_send()


class AcceptedHandshake:
    """The side that accepted: it learns first what the connection is for."""

    def __init__(self, us: Hello, static: StaticKey, ephemeral: bytes, payload: bytes) -> None:
        """`us`: our own hello. `Handshake` describes the other arguments."""
        self.wanted_bytes = MAGIC_BYTES
        """The number of bytes that `receive` takes next; 0 at the end."""
        self.refusal: BadHandshake | None = None
        """The reason to refuse the peer, after `data_to_send` was sent."""
        self.join: BulkJoin | None = None
        """The request to join a link, if the connection opens none."""
        self.resume: Resume | None = None
        """The request to take over a link, if the connection opens none."""
        self.knock: bytes | None = None
        """The token of a dial-back, if the connection is for nothing else."""
        self.punch_token: bytes | None = None
        """The token of a punched connection, if both sides have dialled each other."""
        self.circuit: CircuitRequest | None = None
        """The request to a relay, if it is one."""
        self.observes = False
        """Whether the connection only asks where we see it come from."""
        self._us = us
        self._static = static
        self._ephemeral = ephemeral
        self._payload = payload
        self._magic = b""
        self._messages: MessageExchange | None = None
        self._to_send = b""

    @property
    def handshake(self) -> Handshake:
        """The finished handshake of a new link."""
        assert self._messages is not None
        return self._messages.handshake

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
        elif self._magic == JOIN.magic:
            self.join = BulkJoin.parse(self._magic + data)
            self.wanted_bytes = 0
        elif self._magic == RESUME.magic:
            self.resume = Resume.parse(self._magic + data)
            self.wanted_bytes = 0
        elif self._magic == KNOCK_MAGIC:
            self.knock = data
            self.wanted_bytes = 0
        elif self._magic == PUNCH_MAGIC:
            self.punch_token = data
            self.wanted_bytes = 0
        elif self._magic == CIRCUIT_MAGIC:
            self.circuit = CircuitRequest.parse(self._magic + data)
            self.wanted_bytes = 0
        elif self._magic == OBSERVATION_MAGIC:
            self.observes = True
            self.wanted_bytes = 0
        else:
            self._on_hello(self._magic + data)

    def data_to_send(self) -> bytes:
        """Return what to put on the wire; send it before more is received."""
        ready, self._to_send = self._to_send, b""
        return ready

    def _begin(self, magic: bytes) -> None:
        if magic == JOIN.magic:
            self.wanted_bytes = JOIN_BYTES - MAGIC_BYTES
        elif magic == RESUME.magic:
            self.wanted_bytes = RESUME_BYTES - MAGIC_BYTES
        elif magic == KNOCK_MAGIC:
            self.wanted_bytes = KNOCK_TOKEN_BYTES
        elif magic == PUNCH_MAGIC:
            self.wanted_bytes = PUNCH_TOKEN_BYTES
        elif magic == CIRCUIT_MAGIC:
            self.wanted_bytes = CIRCUIT_REQUEST_BYTES - MAGIC_BYTES
        elif magic == OBSERVATION_MAGIC:
            self.wanted_bytes = OBSERVATION_REQUEST_BYTES - MAGIC_BYTES
        elif magic[:-1] == LINK_MAGIC[:-1]:  # any version: the peer learns which one we speak
            self.wanted_bytes = HELLO_BYTES - MAGIC_BYTES
        else:
            raise BadHandshake("its first bytes are not those of a peer")
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
        self._messages = MessageExchange(handshake)
        self.wanted_bytes = self._messages.wanted_bytes
