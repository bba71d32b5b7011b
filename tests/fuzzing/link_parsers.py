"""The parsers of connections, as functions of bytes.

A parser here returns for whatever bytes it is given: the errors that its module promises are
caught, and everything else is a finding. Where bytes are sealed, the function seals them first:
a fuzzer never finds a key, and an enemy has one of its own.
"""

import contextlib
from contextlib import nullcontext

from discovery.dht.harness import ALICE
from fuzzing.base import parser, parts
from net.link.harness import KEYS, machine

from p2pswarm.base.errors import PeerError
from p2pswarm.base.ids import Address
from p2pswarm.net.bulk.channel import BulkChannel, ChannelCallbacks
from p2pswarm.net.bulk.receive_buffers import ReceiveBuffers
from p2pswarm.net.bulk.send_queue import SendQueue
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, Keys, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import NoiseXX, Role
from p2pswarm.net.crypto.records import OVERHEAD_BYTES, PREFIX_BYTES, FrameBuffer, Opener, Sealer
from p2pswarm.net.crypto.suite import TAG_BYTES, Suite
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.endpoint.raw_handshake import AcceptedHandshake, DialledHandshake
from p2pswarm.net.link.control_records import LABEL
from p2pswarm.net.link.events import StreamData, StreamOpened
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.link.mux import Mux
from p2pswarm.net.link.session import introduced_card, read_introduction
from p2pswarm.net.wire.frames import RECORD_BYTES_MAX

ENEMY = Identity.generate(b"enemy")
NETWORK = TransportConfig().network_id
HELLO = Hello(Suite.AES_GCM, NETWORK)
OURS, THEIRS = StaticKey(ALICE, b"s" * 32), StaticKey(ENEMY, b"t" * 32)
NEAR_KEY = b"k" * 32
TENSOR_BYTES_MAX = 1 << 20
"""A fuzzer's announcement is decoded if it is smaller: memory is the budget's subject."""


@parser
def frame_buffer(data: bytes) -> None:
    """A stream that is cut into parts gives the frames that the whole stream gives."""
    pieces = list(parts(data))
    given: list[list[bytes]] = []
    for stream in (pieces, [b"".join(pieces)]):
        buffer, frames = FrameBuffer(4, 4096, 16, flag_bits=1), []
        with contextlib.suppress(PeerError):
            for piece in stream:
                frames += [prefix + bytes(body) for prefix, body in buffer.receive(piece)]
        given.append(frames)
    whole = given[1]
    assert not whole or given[0] == whole


@parser
def accepted(data: bytes) -> None:
    """The first bytes of a connection that we accept, and an answer if it joins bulk."""
    side = AcceptedHandshake(HELLO, OURS, b"e" * 32, b"introduction")
    at = 0
    with contextlib.suppress(PeerError):
        while 0 < side.wanted_bytes <= len(data) - at:
            piece = data[at : at + side.wanted_bytes]
            at += len(piece)
            side.receive(piece)
            side.data_to_send()
        if isinstance(side.use, BulkJoin):
            side.use.answer(b"x" * 32, b"n" * 16)


@parser
def dialled(data: bytes) -> None:
    """The first bytes of somebody whom we dialled."""
    handshake = Handshake(Role.INITIATOR, HELLO, OURS, b"e" * 32, b"introduction")
    side = DialledHandshake(handshake, NETWORK)
    at = 0
    with contextlib.suppress(PeerError):
        while 0 < side.wanted_bytes <= len(data) - at:
            side.data_to_send()
            piece = data[at : at + side.wanted_bytes]
            at += len(piece)
            side.receive(piece)


@parser
def identity_proof(data: bytes) -> None:
    """The payload in which a peer shows who it is; it has finished the cryptography."""
    side = Handshake(Role.RESPONDER, HELLO, OURS, b"e" * 32, b"introduction")
    peer = NoiseXX(Role.INITIATOR, Suite.AES_GCM, b"t" * 32, b"f" * 32, HELLO.raw)
    first = peer.write(b"")
    side.receive(len(first).to_bytes(2) + first)
    (answer,) = side.data_to_send()
    peer.read(answer[2:])
    proof = THEIRS.proof[: data[0]] if data else b""  # 96 bytes of it are a proof that holds
    last = peer.write((proof + data[1:])[:3072])
    with contextlib.suppress(PeerError):
        side.receive(len(last).to_bytes(2) + last)
        introduced_card(read_introduction(side.result.payload), side.result.peer)


@parser
def introduction(data: bytes) -> None:
    """What a peer says after its proof."""
    with contextlib.suppress(PeerError):
        said = read_introduction(data)
        Address(said.observed_host or "host", 0)
        introduced_card(said, ALICE.peer_id)


@parser
def bulk_join(data: bytes) -> None:
    """The first message of a bulk connection, and our answer as its dialler reads it."""
    with contextlib.suppress(PeerError):
        join = BulkJoin.parse(JOIN, b"PSB1" + data[:52])
        assert join.raw == b"PSB1" + data[:52]
        join.check_answer(b"x" * 32, data[52:])


@parser
def records(data: bytes) -> None:
    """Records of which some are changed on the way: what is opened is what was sealed."""
    sealer = Sealer(NEAR_KEY, Suite.AES_GCM, LABEL, rekey_after_bytes=64)
    opener = Opener(NEAR_KEY, Suite.AES_GCM, LABEL)
    with contextlib.suppress(PeerError):
        for part in parts(data):
            flip, plain = part[:1], part[1:]
            sealed = bytearray(sealer.seal(plain))
            if flip > b"\x7f":
                sealed[int.from_bytes(part[:3]) % len(sealed)] ^= flip[0]
            prefix, ciphertext = bytes(sealed[:PREFIX_BYTES]), bytes(sealed[PREFIX_BYTES:])
            assert opener.open(ciphertext, prefix) == plain
            assert flip <= b"\x7f"


@parser
def mux(data: bytes) -> None:
    """The frames of a link, a part a record; our user echoes, and sometimes resets."""
    ours = Mux(dialled=False)
    ours.open(b"ours", ended=False, priority=0)
    with contextlib.suppress(PeerError):
        for piece in parts(data):
            ours.on_record(piece[:RECORD_BYTES_MAX])
            ours.link_events()
            for event in ours.events():
                _use(ours, event)
            while ours.data_to_send():
                pass
    assert ours.held_bytes >= 0


def _use(ours: Mux, event: object) -> None:
    if isinstance(event, StreamOpened | StreamData):
        ours.consume(event.stream, len(event.data))
        if event.data[:1] == b"r":
            ours.reset(event.stream, 20)
        elif isinstance(event, StreamOpened) and ours.writable(event.stream):
            ours.send(event.stream, event.data, ended=True)


@parser
def link(data: bytes) -> None:
    """A whole link: a part is a record that is sealed well, or raw bytes."""
    ours: LinkMachine = machine(dialled=False)
    theirs = Sealer(KEYS[True].send_key, Suite.AES_GCM, LABEL)
    ours.start(0.0)
    for now_s, piece in enumerate(parts(data)):
        raw = piece[:1] == b"\xff"
        ours.on_data(piece[1:] if raw else theirs.seal(piece), float(now_s))
        for event in ours.events():
            _use(ours.mux, event)
        ours.drain()
        while ours.data_to_send(float(now_s)):
            pass
        deadline_s = ours.next_deadline_s()
        if deadline_s is not None and deadline_s <= now_s:
            ours.on_deadline(float(now_s))


@parser
def bulk_chunks(data: bytes) -> None:
    """Chunks: a part is a header and the length of its payload, both sealed well."""
    buffers = ReceiveBuffers(nullcontext())
    memory = [bytearray(size) for size in (0x8000, 0x12345, 1)]
    for each in memory:
        buffers.add(memoryview(each), lambda: None)
    buffers.cancel(3)
    keys = Keys(NEAR_KEY, NEAR_KEY, Suite.AES_GCM)
    calls = ChannelCallbacks(lambda _: None, lambda: None, lambda _: None)
    queue = SendQueue(nullcontext(), 1 << 20, UploadShare(nullcontext()), lambda: None)
    channel = BulkChannel(keys, buffers, queue, calls, 0.0)
    theirs = Sealer(NEAR_KEY, Suite.AES_GCM, b"bulk")
    with contextlib.suppress(PeerError):
        for piece in parts(data):
            header = piece[:20]
            length = min(int.from_bytes(header[16:20]), 0x20000) if len(header) == 20 else 0
            stream = theirs.seal(header) + theirs.seal(bytes(length)) + piece[20:]
            while stream and (room := channel.next_in()):
                room[: len(stream)] = stream[: len(room)]
                if len(stream) < len(room):
                    return
                stream = stream[len(room) :]
                channel.on_fill()
    assert len(channel.next_in()) <= OVERHEAD_BYTES + (1 << 20) + TAG_BYTES + 64
