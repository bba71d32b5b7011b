"""The frame buffer: whole frames only, whatever the cuts, and never more than one of them held."""

import random

import pytest

from p2pswarm.errors import BadFrame
from p2pswarm.wire.frame_buffer import FrameBuffer


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def taken(buffer: FrameBuffer) -> list[tuple[bytes, bytes]]:
    frames = []
    while (frame := buffer.next_frame()) is not None:
        frames.append(frame)
    return frames


@pytest.mark.parametrize("seed", range(20))
def test_frames_come_out_whole_however_the_stream_is_cut(seed: int):
    rng = random.Random(seed)
    bodies = [rng.randbytes(rng.randint(1, 300)) for _ in range(30)]
    stream = memoryview(b"".join(framed(body) for body in bodies))
    buffer = FrameBuffer(4, body_bytes_max=300)

    frames = []
    while stream:
        cut = rng.randint(1, 200)
        buffer.receive(stream[:cut])
        stream = stream[cut:]
        frames += taken(buffer)

    assert frames == [(framed(body)[:4], body) for body in bodies]
    assert buffer.rest() == b""


def test_length_over_the_limit_is_refused_before_the_body_comes():
    buffer = FrameBuffer(4, body_bytes_max=100)
    buffer.receive((101).to_bytes(4))

    with pytest.raises(BadFrame, match="101"):
        buffer.next_frame()


def test_longest_frame_passes():
    buffer = FrameBuffer(2, body_bytes_max=100)
    buffer.receive((100).to_bytes(2) + bytes(100))

    assert buffer.next_frame() == ((100).to_bytes(2), bytes(100))


def test_empty_frame_is_refused():
    """Otherwise four bytes would cost us a round of everything above."""
    buffer = FrameBuffer(4, body_bytes_max=100)
    buffer.receive(bytes(4))

    with pytest.raises(BadFrame, match="0 bytes"):
        buffer.next_frame()


def test_flags_in_the_prefix_are_no_part_of_the_length():
    buffer = FrameBuffer(4, body_bytes_max=100, flag_bits=1)
    prefix = (3 | 1 << 31).to_bytes(4)
    buffer.receive(prefix + b"abc")

    assert buffer.next_frame() == (prefix, b"abc")


def test_rest_is_what_the_last_frame_left():
    buffer = FrameBuffer(4, body_bytes_max=100)
    buffer.receive(framed(b"last") + b"other protocol")
    buffer.next_frame()

    assert buffer.rest() == b"other protocol"
    assert buffer.rest() == b""


def test_feeding_without_taking_is_our_own_mistake():
    buffer = FrameBuffer(4, body_bytes_max=10)
    buffer.receive(framed(b"0123456789"))

    with pytest.raises(ValueError, match="take the frames"):
        buffer.receive(b"more")


@pytest.mark.parametrize(("prefix_bytes", "most"), [(2, 1), (2, 65535), (1, 255)])
def test_every_length_that_the_prefix_can_tell_may_be_the_limit(prefix_bytes: int, most: int):
    buffer = FrameBuffer(prefix_bytes, body_bytes_max=most)
    buffer.receive(most.to_bytes(prefix_bytes) + bytes(most))

    assert buffer.next_frame() == (most.to_bytes(prefix_bytes), bytes(most))


@pytest.mark.parametrize(
    ("prefix_bytes", "most", "flag_bits"), [(2, 0, 0), (2, 65536, 0), (1, 256, 0), (1, 128, 1)]
)
def test_limit_that_the_prefix_cannot_tell_is_our_own_mistake(
    prefix_bytes: int, most: int, flag_bits: int
):
    with pytest.raises(ValueError, match=str(most)):
        FrameBuffer(prefix_bytes, most, flag_bits)
