"""Tests of `net/bulk/channel.py`."""

import random
from contextlib import nullcontext

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.base.errors import BadChunk, BadRecord
from p2pswarm.net.bulk.channel import (
    _HEADER,
    CHUNK_BYTES_LEAST,
    LABEL,
    BulkChannel,
    ChannelCallbacks,
    ChunkSizer,
)
from p2pswarm.net.bulk.receive_buffers import CHUNK_BYTES_MIN, ReceiveBuffers
from p2pswarm.net.bulk.send_queue import SendQueue
from p2pswarm.net.bulk.upload_share import UploadShare
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.records import Sealer
from p2pswarm.net.crypto.suite import Suite

MOST = 1024 * 1024


def paced(rate_bytes_per_s: float, chunks: int = 100) -> int:
    pace = ChunkSizer(MOST)
    for _ in range(chunks):
        length = pace.chunk_bytes
        pace.on_chunk(length, length / rate_bytes_per_s)
    return pace.chunk_bytes


@pytest.mark.parametrize(
    ("rate_bytes_per_s", "chunk_bytes"),
    [(2e9, MOST), (25e6, 7 * CHUNK_BYTES_LEAST), (1e6, CHUNK_BYTES_LEAST)],
)
def test_a_chunk_is_what_leaves_in_twenty_milliseconds(rate_bytes_per_s, chunk_bytes):
    assert paced(rate_bytes_per_s) == chunk_bytes


def test_an_unknown_road_counts_as_fast():
    assert ChunkSizer(MOST).chunk_bytes == MOST


def test_what_the_kernels_buffer_swallowed_at_once_is_soon_outweighed():
    pace = ChunkSizer(MOST)
    pace.on_chunk(4 * MOST, 0.001)
    for _ in range(500):
        pace.on_chunk(MOST // 4, MOST / 4 / 25e6)

    assert pace.chunk_bytes == 7 * CHUNK_BYTES_LEAST


def test_a_road_that_became_fast_is_noticed():
    pace = ChunkSizer(MOST)
    for _ in range(20):
        pace.on_chunk(MOST, 1.0)
    for _ in range(2000):
        pace.on_chunk(MOST, MOST / 2e9)

    assert pace.chunk_bytes == MOST


SUITE = Suite.AES_GCM
CHUNK = 2 * CHUNK_BYTES_MIN
SINCE_S = 1e6  # of a machine that has been up for eleven days


def send_queue() -> SendQueue:
    return SendQueue(nullcontext(), CHUNK, UploadShare(nullcontext()), lambda: None)


class Bundle:
    """A sender and a receiver with `channels` bulk connections between them."""

    def __init__(self, channels: int = 1, size: int = CHUNK):
        self.buffers = ReceiveBuffers(nullcontext())
        self.send_queue = send_queue()
        self.memory = bytearray(size)
        self.done = []
        self.transfer = self.buffers.add(memoryview(self.memory), self.landed)
        nobody = ReceiveBuffers(nullcontext()), send_queue()
        self.nobody = nobody
        self.senders, self.receivers, self.rest = [], [], []
        for _ in range(channels):
            self.join()

    def join(self) -> int:
        """Add a connection; returns its number."""
        number = len(self.senders)
        there, back = bytes([number]) * 32, bytes([number + 100]) * 32
        ends = ChannelCallbacks(lambda _: None, lambda: None, lambda _: None)
        out = Keys(there, back, SUITE), self.nobody[0], self.send_queue
        into = Keys(back, there, SUITE), self.buffers, self.nobody[1]
        self.senders.append(BulkChannel(*out, ends, SINCE_S, number))
        self.receivers.append(BulkChannel(*into, ends, SINCE_S, number))
        self.rest.append(memoryview(b""))
        return number

    def landed(self):
        """Every byte is here: the sender learns it by the control connection."""
        self.done.append("in")
        self.send_queue.on_done(self.transfer)

    def send(self, data: bytes):
        self.send_queue.add(self.transfer, memoryview(data), 1, 1, lambda: self.done.append("out"))

    def next_out(self, channel: int) -> bytes | None:
        """What the channel's sender puts on its wire next."""
        out = self.senders[channel].next_out(SINCE_S)
        if out is None:
            return None
        raw = bytes(out)
        call(self.senders[channel].on_write())
        return raw

    def receive(self, channel: int, raw: bytes):
        """Let the channel's receiver read all of it, as the pump does."""
        machine = self.receivers[channel]
        while raw:
            room = self.rest[channel] or machine.next_in()
            part, raw = raw[: len(room)], raw[len(room) :]
            room[: len(part)] = part
            self.rest[channel] = room[len(part) :]
            if not self.rest[channel]:
                call(machine.on_fill())


def call(event):
    if event is not None:
        event()


@settings(max_examples=examples(40), deadline=None)
@given(
    channels=st.integers(1, 4),
    size=st.integers(1, 12 * CHUNK),
    seed=st.integers(0, 2**32),
)
def test_chunks_over_any_lanes_in_any_order_reproduce_the_bytes(
    channels: int, size: int, seed: int
):
    rng = random.Random(seed)
    bundle = Bundle(channels, size)
    data = rng.randbytes(size)
    bundle.send(data)
    on_the_wire = [[] for _ in range(channels)]

    while True:
        channel = rng.randrange(channels)
        raw = bundle.next_out(channel)
        if raw is None:
            break
        on_the_wire[channel].append(raw)
    while any(on_the_wire):
        channel = rng.choice([i for i, queue in enumerate(on_the_wire) if queue])
        bundle.receive(channel, on_the_wire[channel].pop(0))

    assert bundle.memory == data
    assert bundle.done == ["in", "out"]


@settings(max_examples=examples(150), deadline=None)
@given(
    channels=st.integers(1, 3),
    size=st.integers(1, 8 * CHUNK),
    seed=st.integers(0, 2**32),
    deaths=st.integers(0, 6),
)
def test_chunks_of_connections_that_die_are_sent_again_and_none_is_written_twice(
    channels: int, size: int, seed: int, deaths: int
):
    """A connection dies with any part of its bytes under way; the other sides tell what came."""
    rng = random.Random(seed)
    bundle = Bundle(channels, size)
    data = rng.randbytes(size)
    bundle.send(data)
    wires = [bytearray() for _ in range(channels)]
    live = list(range(channels))
    while "in" not in bundle.done:
        channel = rng.choice(live)
        if deaths and rng.random() < 0.1:
            deaths -= 1
            live.remove(channel)
            if not live or rng.random() < 0.5:
                live.append(bundle.join())
                wires.append(bytearray())
            bundle.senders[channel].on_release()
            bundle.receivers[channel].on_release()
            bundle.send_queue.on_channel_end(channel, bundle.receivers[channel].chunks_in)
        elif rng.random() < 0.5 and (raw := bundle.next_out(channel)) is not None:
            wires[channel] += raw
        elif wires[channel]:
            count = rng.randrange(1, 2 * CHUNK)
            part, wires[channel] = bytes(wires[channel][:count]), wires[channel][count:]
            bundle.receive(channel, part)

    assert bundle.memory == data
    assert sum(each.received_bytes for each in bundle.receivers) == size
    assert bundle.done == ["in", "out"]


SAMPLE = random.Random(1).randbytes(CHUNK + CHUNK_BYTES_MIN)


@settings(max_examples=examples(200), deadline=None)
@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), head=st.booleans())
def test_a_flipped_bit_ends_the_connection_and_no_plaintext_of_its_record_surfaces(at, bit, head):
    bundle = Bundle(size=len(SAMPLE))
    bundle.send(SAMPLE)
    first, second = bundle.next_out(0), bytearray(bundle.next_out(0))
    bundle.receive(0, first)
    second[int(at * (44 if head else len(second)))] ^= 1 << bit

    with pytest.raises((BadRecord, BadChunk)):
        bundle.receive(0, bytes(second))

    assert bundle.memory[:CHUNK] == SAMPLE[:CHUNK]
    assert not any(bundle.memory[CHUNK:])
    assert bundle.done == []


def test_counters_tell_what_a_connection_carried():
    bundle = Bundle()
    bundle.send(bytes(CHUNK))
    bundle.receive(0, bundle.next_out(0))

    assert bundle.senders[0].sent_bytes == CHUNK
    assert bundle.receivers[0].received_bytes == CHUNK


def test_a_new_connection_has_a_new_key():
    """Its first record would else end the key, on a machine that has been up for an hour."""
    bundle = Bundle()
    bundle.send(b"x" * CHUNK)

    raw = bundle.next_out(0)

    assert raw is not None
    assert raw[0] & 0x80 == 0


def test_late_chunks_of_a_room_given_back_are_read_and_thrown_away():
    bundle = Bundle()
    bundle.send(b"x" * CHUNK)
    raw = bundle.next_out(0)
    bundle.buffers.cancel(bundle.transfer)
    bundle.receive(0, raw)

    bundle.transfer = bundle.buffers.add(memoryview(bundle.memory), lambda: None)
    bundle.send(b"y" * CHUNK)
    bundle.receive(0, bundle.next_out(0))

    assert bundle.memory == b"y" * CHUNK
    assert bundle.receivers[0].received_bytes == CHUNK


def test_the_claim_on_a_chunk_that_is_not_authentic_is_given_back():
    """Else the real chunk, which comes again on another connection, would be taken for a breach."""
    bundle = Bundle(channels=2)
    bundle.send(SAMPLE[:CHUNK])
    raw = bytearray(bundle.next_out(0))
    raw[-1] ^= 1
    with pytest.raises(BadRecord):
        bundle.receive(0, bytes(raw))
    assert not any(bundle.memory)

    bundle.receivers[0].on_release()
    bundle.senders[0].on_release()
    assert bundle.send_queue.on_channel_end(0, bundle.receivers[0].chunks_in)
    bundle.receive(1, bundle.next_out(1))

    assert bundle.memory == SAMPLE[:CHUNK]
    assert bundle.done == ["in", "out"]


@pytest.mark.parametrize(
    "raw",
    [(b"", bytes(CHUNK - 1)), (b"x", bytes(CHUNK))],
    ids=["other length", "other header"],
)
def test_a_length_is_not_believed_to_be_the_peers_before_its_record_is_proven(raw):
    header, payload = raw
    with pytest.raises(BadRecord):
        Bundle().receive(0, forged(_HEADER.pack(1, 0, CHUNK) + header, payload))


def forged(header: bytes, payload: bytes) -> bytes:
    sealer = Sealer(bytes(32), SUITE, LABEL)
    return sealer.seal(header) + sealer.seal(payload)


@pytest.mark.parametrize(
    "raw",
    [
        forged(_HEADER.pack(1, CHUNK_BYTES_MIN + 1, CHUNK_BYTES_MIN), bytes(CHUNK_BYTES_MIN)),
        forged(_HEADER.pack(2, 0, CHUNK), bytes(CHUNK)),
        forged(_HEADER.pack(1, 0, 0), b""),
    ],
    ids=["outside", "ungranted", "empty"],
)
def test_an_authentic_chunk_against_the_rules_is_the_peers_fault(raw: bytes):
    with pytest.raises(BadChunk):
        Bundle().receive(0, raw)
