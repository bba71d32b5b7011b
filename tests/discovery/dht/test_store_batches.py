"""Records that may wait travel together."""

from dataclasses import replace

import pytest
from discovery.dht.harness import KEY, contact
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Pong, Store, Stored
from p2pswarm.discovery.dht.record_store import Verdict
from p2pswarm.discovery.dht.records import sign
from p2pswarm.discovery.dht.store_batches import (
    WAIT_S,
    BatchedRecord,
    StoreBatcher,
    store_of,
    stored_in,
)
from p2pswarm.net.crypto.identity import Identity

BATCHES_MAX = 10
ALICE = Identity.generate(b"alice")
SMALL = BatchedRecord(sign(ALICE, KEY, b"", b"", 1, 1), None)
LARGE = BatchedRecord(sign(ALICE, KEY, b"", b"v" * 4096, 1, 1), None)


def test_what_waits_for_a_peer_goes_in_one_message():
    batcher = StoreBatcher(BATCHES_MAX)
    for at_s in (0.0, 0.1, 0.2):
        assert batcher.add(contact(1), SMALL, at_s)

    assert batcher.next_deadline_s() == WAIT_S
    assert batcher.due(WAIT_S - 0.01) == []
    assert batcher.due(WAIT_S) == [(contact(1), [SMALL] * 3)]
    assert batcher.next_deadline_s() is None


def test_each_peer_has_its_own_time():
    batcher = StoreBatcher(BATCHES_MAX)
    batcher.add(contact(1), SMALL, 0.0)
    batcher.add(contact(2), SMALL, 0.1)

    assert batcher.due(WAIT_S) == [(contact(1), [SMALL])]
    assert batcher.next_deadline_s() == 0.1 + WAIT_S


def test_a_message_that_is_full_goes_at_once():
    batcher = StoreBatcher(BATCHES_MAX)
    fits = PAGE_BYTES // LARGE.record.size_bytes

    for _ in range(fits + 1):
        batcher.add(contact(1), LARGE, 0.0)

    assert batcher.next_deadline_s() == float("-inf")
    assert batcher.due(0.0) == [(contact(1), [LARGE] * fits)]
    assert batcher.due(WAIT_S) == [(contact(1), [LARGE])]


def test_small_records_fill_a_message_by_their_number():
    batcher = StoreBatcher(BATCHES_MAX)
    for _ in range(RECORDS_MAX + 1):
        batcher.add(contact(1), SMALL, 0.0)

    assert [len(batched) for _, batched in batcher.due(0.0)] == [RECORDS_MAX]


def test_batches_are_bounded():
    batcher = StoreBatcher(BATCHES_MAX)
    taken = [batcher.add(contact(number), SMALL, 0.0) for number in range(1, BATCHES_MAX + 2)]

    assert taken == [True] * BATCHES_MAX + [False]


def test_one_request_carries_the_records_in_their_order():
    assert store_of([SMALL, LARGE]) == Store((SMALL.record, LARGE.record))


def test_the_reply_tells_of_each_record():
    reply = Stored(bytes([Verdict.KEPT, Verdict.QUOTA]))

    assert stored_in(reply, 2) == [
        Stored(bytes([Verdict.KEPT])),
        Stored(bytes([Verdict.QUOTA])),
    ]


def test_without_a_reply_each_record_is_without_one():
    assert stored_in(None, 2) == [None, None]


@pytest.mark.parametrize("reply", [Pong(), Stored(b"\0"), Stored(b"\0\0\0")])
def test_an_answer_to_another_question_is_a_breach(reply):
    with pytest.raises(BadMessage, match="does not answer a Store of 2 records"):
        stored_in(reply, 2)


@given(
    st.lists(
        st.tuples(st.integers(1, 20), st.integers(0, 4096), st.floats(0.0, 0.2), st.booleans())
    )
)
def test_no_batch_is_larger_than_a_message_nor_later_than_its_time(history):
    """However records come: none is lost, and their number is bounded."""
    batcher, now_s, taken, sent = StoreBatcher(BATCHES_MAX), 0.0, 0, 0
    for number, size_bytes, pause_s, polled in history:
        now_s += pause_s
        value = replace(SMALL.record, value=b"v" * size_bytes)
        if batcher.add(contact(number), BatchedRecord(value, None), now_s):
            taken += 1
        if polled:
            batches = batcher.due(now_s)
            sent += sum(len(batched) for _, batched in batches)
            assert len(batches) <= BATCHES_MAX
            for _, batched in batches:
                assert len(batched) <= RECORDS_MAX
                assert sum(each.record.size_bytes for each in batched) <= PAGE_BYTES
            deadline_s = batcher.next_deadline_s()
            assert deadline_s is None or now_s < deadline_s <= now_s + WAIT_S

    sent += sum(len(batched) for _, batched in batcher.due(now_s + WAIT_S))
    assert sent == taken
    assert batcher.next_deadline_s() is None
