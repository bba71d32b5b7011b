"""Rooms: every byte of a grant once, nothing outside it, nothing of what was not granted."""

import random
from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadChunk, Busy
from p2pswarm.net.bulk.receive_buffers import (
    BUFFERS_MAX,
    CHUNK_BYTES_MAX,
    CHUNK_BYTES_MIN,
    Coverage,
    ReceiveBuffers,
)

SMALL = CHUNK_BYTES_MIN


def rooms_with(size: int) -> tuple[ReceiveBuffers, int, list[str]]:
    buffers, done = ReceiveBuffers(nullcontext()), []
    transfer = buffers.add(memoryview(bytearray(size)), lambda: done.append("full"))
    return buffers, transfer, done


@given(seed=st.integers(0, 2**32), chunks=st.integers(1, 12), tail=st.integers(1, SMALL))
def test_chunks_in_any_order_fill_a_transfer_exactly_once(seed: int, chunks: int, tail: int):
    size = (chunks - 1) * SMALL + tail
    pieces = [(start, min(SMALL, size - start)) for start in range(0, size, SMALL)]
    random.Random(seed).shuffle(pieces)
    coverage = Coverage(size)

    for start, length in pieces:
        coverage.claim(start, length)

    for start, length in pieces:
        with pytest.raises(BadChunk, match="twice"):
            coverage.claim(start, length)


@given(
    claims=st.lists(
        st.tuples(st.integers(0, 10 * SMALL), st.integers(SMALL, 4 * SMALL)), max_size=12
    )
)
def test_a_claim_succeeds_exactly_if_none_of_its_bytes_was_claimed(claims):
    size = 10 * SMALL
    coverage, taken = Coverage(size), set()
    for start, length in claims:
        wanted = range(start, start + length)
        free = start + length <= size and not any(a < wanted.stop and start < b for a, b in taken)
        try:
            coverage.claim(start, length)
        except BadChunk:
            assert not free
        else:
            assert free
            taken.add((wanted.start, wanted.stop))


@pytest.mark.parametrize(
    ("start", "length"),
    [
        (0, 0),
        (0, 3 * SMALL + 1),
        (3 * SMALL, 1),
        (0, SMALL - 1),
        (SMALL, 2 * SMALL + 1),
    ],
)
def test_a_chunk_outside_its_grant_or_cut_too_fine_is_refused(start: int, length: int):
    with pytest.raises(BadChunk):
        Coverage(3 * SMALL).claim(start, length)


def test_a_chunk_larger_than_a_record_is_refused():
    with pytest.raises(BadChunk):
        Coverage(2 * CHUNK_BYTES_MAX).claim(0, CHUNK_BYTES_MAX + 1)


def test_the_last_chunk_to_land_completes_the_transfer():
    buffers, transfer, done = rooms_with(2 * SMALL)
    for start in (SMALL, 0):
        target = buffers.claim(transfer, start, SMALL)
        target[:] = b"x" * SMALL
    assert buffers.on_payload(transfer, SMALL) is None

    completed = buffers.on_payload(transfer, SMALL)
    completed()

    assert done == ["full"]
    assert buffers.on_payload(transfer, SMALL) is None


def test_late_chunks_of_a_room_given_back_are_let_pass():
    buffers, transfer, done = rooms_with(SMALL)
    buffers.cancel(transfer)
    buffers.cancel(transfer)

    assert buffers.claim(transfer, 0, SMALL) is None
    assert buffers.on_payload(transfer, SMALL) is None
    assert done == []


@pytest.mark.parametrize("offset", [-1, 1, 2**40])
def test_a_transfer_that_was_never_granted_is_refused(offset: int):
    buffers, transfer, _ = rooms_with(SMALL)

    with pytest.raises(BadChunk, match="not granted"):
        buffers.claim(transfer + offset, 0, SMALL)


def test_a_late_chunk_larger_than_any_record_is_refused():
    buffers, transfer, _ = rooms_with(SMALL)
    buffers.cancel(transfer)

    with pytest.raises(BadChunk):
        buffers.claim(transfer, 0, CHUNK_BYTES_MAX + 1)


def test_grants_on_one_link_are_bounded():
    buffers = ReceiveBuffers(nullcontext())
    for _ in range(BUFFERS_MAX):
        buffers.add(memoryview(bytearray(1)), lambda: None)

    with pytest.raises(Busy, match=str(BUFFERS_MAX)):
        buffers.add(memoryview(bytearray(1)), lambda: None)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60),
)
def test_a_claim_that_is_taken_back_may_be_made_again(steps):
    coverage, claimed = Coverage(10 * SMALL), set()

    for number, back in steps:
        if number in claimed and back:
            coverage.unclaim(number * SMALL, SMALL)
            claimed.remove(number)
        elif number in claimed:
            with pytest.raises(BadChunk, match="twice"):
                coverage.claim(number * SMALL, SMALL)
        else:
            coverage.claim(number * SMALL, SMALL)
            claimed.add(number)


def test_taking_back_a_claim_on_memory_that_is_gone_does_nothing():
    buffers, transfer, _ = rooms_with(2 * SMALL)
    buffers.claim(transfer, 0, SMALL)
    buffers.cancel(transfer)

    buffers.unclaim(transfer, 0, SMALL)

    assert buffers.claim(transfer, 0, SMALL) is None
