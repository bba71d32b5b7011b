"""The control connection: any cut of the stream is the same, any change of it is the end."""

import contextlib
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.crypto.handshake import Keys
from p2pswarm.crypto.records import Sealer
from p2pswarm.crypto.suite import Suite
from p2pswarm.errors import BadFrame, BadRecord
from p2pswarm.transport import frames
from p2pswarm.transport.control_channel import LABEL, ControlChannel
from p2pswarm.transport.events import StreamOpened

KEY_OUT, KEY_IN = b"o" * 32, b"i" * 32
SUITE = Suite.AES_GCM


def pair() -> tuple[ControlChannel, ControlChannel]:
    dialler = ControlChannel(Keys(KEY_OUT, KEY_IN, SUITE), dialled=True, now_s=0.0)
    acceptor = ControlChannel(Keys(KEY_IN, KEY_OUT, SUITE), dialled=False, now_s=0.0)
    return dialler, acceptor


def transcript() -> bytes:
    """Three records with a stream each, as the dialler sends them."""
    dialler, _ = pair()
    raw = b""
    for text in (b"first", b"second", b"third"):
        dialler.mux.open(text, ended=True, priority=0)
        raw += dialler.data_to_send(0.0)
    assert dialler.data_to_send(0.0) == b""
    return raw


TRANSCRIPT = transcript()
EVENTS = [
    StreamOpened(1, b"first", True),
    StreamOpened(3, b"second", True),
    StreamOpened(5, b"third", True),
]


@given(cuts=st.lists(st.integers(0, len(TRANSCRIPT)), max_size=30))
def test_the_stream_may_be_cut_anywhere(cuts: list[int]):
    _, acceptor = pair()
    edges = [0, *sorted(cuts), len(TRANSCRIPT)]

    for start, end in itertools.pairwise(edges):
        acceptor.receive(TRANSCRIPT[start:end])

    assert acceptor.mux.events() == EVENTS


def test_a_stream_that_drips_in_byte_by_byte_is_the_same():
    _, acceptor = pair()

    for byte in TRANSCRIPT:
        acceptor.receive(bytes([byte]))

    assert acceptor.mux.events() == EVENTS


@settings(max_examples=300)
@given(at=st.integers(0, len(TRANSCRIPT) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_ends_it_and_nothing_from_there_on_surfaces(at: int, bit: int):
    """A flip in a length may also leave us waiting for a record that never comes whole."""
    _, acceptor = pair()
    raw = bytearray(TRANSCRIPT)
    raw[at] ^= 1 << bit

    with contextlib.suppress(BadRecord):
        acceptor.receive(bytes(raw))

    seen = acceptor.mux.events()
    assert seen == EVENTS[: len(seen)]
    assert len(seen) < len(EVENTS)


def test_a_record_longer_than_control_allows_is_refused_before_it_has_come():
    _, acceptor = pair()
    length = frames.RECORD_BYTES_MAX + 17

    with pytest.raises(BadRecord):
        acceptor.receive(length.to_bytes(4))


def test_an_authentic_record_of_garbage_is_a_bad_frame():
    _, acceptor = pair()

    with pytest.raises(BadFrame):
        acceptor.receive(Sealer(KEY_OUT, SUITE, LABEL).seal(b"garbage"))
