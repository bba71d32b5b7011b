"""The frame buffer: whole frames only, whatever the cuts, and never more than one of them held."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadFrame, BadRecord
from p2pswarm.net.wire.frame_buffer import FrameBuffer


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4) + body


def taken(buffer: FrameBuffer, data: bytes) -> list[tuple[bytes, bytes]]:
    return [(prefix, bytes(body)) for prefix, body in buffer.receive(data)]


@given(
    bodies=st.lists(st.binary(min_size=1, max_size=300), max_size=20),
    cuts=st.lists(st.integers(0, 6000), max_size=40),
)
def test_frames_come_out_whole_however_the_stream_is_cut(bodies: list[bytes], cuts: list[int]):
    stream = b"".join(framed(body) for body in bodies)
    buffer = FrameBuffer(4, body_bytes_max=300)

    frames = []
    for start, end in pairwise([0, *sorted(cuts), max(6000, len(stream))]):
        frames += taken(buffer, stream[start:end])

    assert frames == [(framed(body)[:4], body) for body in bodies]


def test_a_frame_that_drips_in_comes_out_with_its_last_byte():
    buffer = FrameBuffer(4, body_bytes_max=300)
    *drops, last = framed(b"drop by drop")

    assert [frame for drop in drops for frame in taken(buffer, bytes([drop]))] == []
    assert taken(buffer, bytes([last])) == [((12).to_bytes(4), b"drop by drop")]


def test_a_body_stays_what_it_was_when_more_comes():
    buffer = FrameBuffer(4, body_bytes_max=300)
    buffer.receive(framed(b"first")[:-1])

    (_, body), *_ = buffer.receive(b"t" + framed(b"second")[:-1])
    buffer.receive(b"d" + framed(b"third"))

    assert body == b"first"


def test_length_over_the_limit_is_refused_before_the_body_comes():
    buffer = FrameBuffer(4, body_bytes_max=100)

    with pytest.raises(BadFrame, match="101"):
        buffer.receive((101).to_bytes(4))


def test_a_bad_length_is_the_error_that_the_owner_chose():
    buffer = FrameBuffer(4, body_bytes_max=100, body_bytes_min=16, error=BadRecord)

    with pytest.raises(BadRecord, match="15 bytes"):
        buffer.receive((15).to_bytes(4))


def test_empty_frame_is_refused():
    """Otherwise four bytes would cost us a round of everything above."""
    buffer = FrameBuffer(4, body_bytes_max=100)

    with pytest.raises(BadFrame, match="0 bytes"):
        buffer.receive(bytes(4))


def test_flags_in_the_prefix_are_no_part_of_the_length():
    buffer = FrameBuffer(4, body_bytes_max=100, flag_bits=1)
    prefix = (3 | 1 << 31).to_bytes(4)

    assert taken(buffer, prefix + b"abc") == [(prefix, b"abc")]


@pytest.mark.parametrize(("prefix_bytes", "most"), [(2, 1), (2, 65535), (1, 255)])
def test_every_length_that_the_prefix_can_tell_may_be_the_limit(prefix_bytes: int, most: int):
    buffer = FrameBuffer(prefix_bytes, body_bytes_max=most)
    prefix = most.to_bytes(prefix_bytes)

    assert taken(buffer, prefix + bytes(most)) == [(prefix, bytes(most))]


@pytest.mark.parametrize(
    ("prefix_bytes", "most", "flag_bits"), [(2, 0, 0), (2, 65536, 0), (1, 256, 0), (1, 128, 1)]
)
def test_limit_that_the_prefix_cannot_tell_is_our_own_mistake(
    prefix_bytes: int, most: int, flag_bits: int
):
    with pytest.raises(ValueError, match=str(most)):
        FrameBuffer(prefix_bytes, most, flag_bits=flag_bits)
