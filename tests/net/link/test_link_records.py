"""The records of a control connection: any cut is the same, any change ends the path."""

import itertools

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from net.link.harness import TO_ACCEPTOR, TO_DIALLER, machine

from p2pswarm.base.errors import BadFrame, LinkLost, PeerError, SwarmError
from p2pswarm.net.crypto.records import Sealer
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.link.control_records import LABEL
from p2pswarm.net.link.events import LinkEnded, PathBroken, StreamOpened
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.wire import frames


def transcript() -> list[bytes]:
    """Three records with a stream each, as the dialler sends them."""
    dialler = machine(dialled=True)
    records = []
    for text in (b"first", b"second", b"third"):
        dialler.mux.open(text, ended=True, priority=0)
        records.append(dialler.data_to_send(0.0))
    assert dialler.data_to_send(0.0) == b""
    return records


RECORDS = transcript()
TRANSCRIPT = b"".join(RECORDS)
EVENTS = [
    StreamOpened(1, b"first", True),
    StreamOpened(3, b"second", True),
    StreamOpened(5, b"third", True),
]


def surfaced(acceptor: LinkMachine, *pieces: bytes) -> tuple[list, SwarmError | None]:
    """The events of a stream that arrives in pieces, and what ended it."""
    seen = []
    for piece in pieces:
        acceptor.on_data(piece, 0.0)
        seen += acceptor.events()
    if seen and isinstance(seen[-1], LinkEnded):
        return seen[:-1], seen[-1].error
    return seen, None


@given(cuts=st.lists(st.integers(0, len(TRANSCRIPT)), max_size=30))
def test_the_stream_may_be_cut_anywhere(cuts: list[int]):
    edges = [0, *sorted(cuts), len(TRANSCRIPT)]
    pieces = [TRANSCRIPT[start:end] for start, end in itertools.pairwise(edges)]

    assert surfaced(machine(dialled=False), *pieces) == (EVENTS, None)


@settings(max_examples=examples(300))
@given(at=st.integers(0, len(TRANSCRIPT) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_the_path_and_nothing_from_there_on_surfaces(at: int, bit: int):
    """A flip in a length may also leave us waiting for a record that never comes whole."""
    raw = bytearray(TRANSCRIPT)
    raw[at] ^= 1 << bit

    link = machine(dialled=False)
    seen, error = surfaced(link, bytes(raw))

    assert seen == EVENTS[: len(seen)]
    assert len(seen) < len(EVENTS)
    assert error is None
    assert link.drain() in ([], [PathBroken()])
    link.on_path_loss(LinkLost("left"), 0.0)
    link.on_path(link.records.expected, 0, dialled=False)
    assert surfaced(link, b"".join(RECORDS[link.records.expected :]))[0] == EVENTS[len(seen) :]


def test_a_record_longer_than_control_allows_is_refused_before_it_has_come():
    length = frames.RECORD_BYTES_MAX + 17

    link = machine(dialled=False)
    assert surfaced(link, length.to_bytes(4)) == ([], None)

    assert link.drain() == [PathBroken()]


def test_an_authentic_record_of_garbage_is_a_bad_frame():
    record = Sealer(TO_ACCEPTOR, Suite.AES_GCM, LABEL).seal(b"garbage")

    _, error = surfaced(machine(dialled=False), record)

    assert isinstance(error, BadFrame)


@given(records=st.lists(st.binary(max_size=60), max_size=5), dialled=st.booleans())
def test_whatever_an_authentic_peer_sends_ends_the_link_or_is_an_event(
    records: list[bytes], dialled: bool
):
    link = machine(dialled=dialled)
    sealer = Sealer(TO_DIALLER if dialled else TO_ACCEPTOR, Suite.AES_GCM, LABEL)

    _, error = surfaced(link, *(sealer.seal(record) for record in records))

    assert error is None or isinstance(error, PeerError)


@pytest.mark.parametrize("raw", [b"", b"\0", bytes(4), b"GET / HTTP/1.1\r\n"])
def test_bytes_that_are_no_record_cost_the_path_or_wait(raw: bytes):
    link = machine(dialled=False)

    assert surfaced(link, raw) == ([], None)
    assert link.drain() in ([], [PathBroken()])
