"""Frames: what is whole and known passes, everything else is refused as BadFrame."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadFrame
from p2pswarm.net.wire import frames


def test_a_frame_has_the_bytes_of_the_wire_page():
    raw = frames.encode(frames.DATA, 7, b"hi", flags=frames.END, priority=2)

    assert raw.hex() == "0201020000000007000000026869"


def test_frames_of_one_record_come_out_in_order():
    record = frames.encode(frames.OPEN, 1, b"a") + frames.encode(frames.PING, 0, b"12345678")

    assert frames.decode(record) == [
        (frames.OPEN, 0, 0, 1, b"a"),
        (frames.PING, 0, 0, 0, b"12345678"),
    ]


@pytest.mark.parametrize(
    "raw",
    [
        b"\1",
        frames.encode(frames.DATA, 1, b"cut")[:-1],
        frames.encode(99, 1),
        frames.encode(frames.DATA, 1, bytes(frames.MESSAGE_BYTES_MAX + 1)),
        frames.encode(frames.CREDIT, 1, b"123"),
        frames.encode(frames.RESET, 1, b"12345"),
        frames.encode(frames.PING, 0, b"1234567"),
        frames.encode(frames.GOAWAY, 0, b"x"),
        frames.encode(frames.DATA, 1, b"x", flags=2),
        frames.encode(frames.DATA, 1, b"x", priority=frames.PRIORITIES),
        frames.encode(frames.DATA, 0, b"x"),
        frames.encode(frames.PING, 1, b"12345678"),
    ],
)
def test_what_is_not_a_whole_known_frame_is_refused(raw: bytes):
    with pytest.raises(BadFrame):
        frames.decode(raw)


@given(st.binary(max_size=200))
def test_random_bytes_raise_nothing_but_bad_frame(raw: bytes):
    with contextlib.suppress(BadFrame):
        frames.decode(raw)
