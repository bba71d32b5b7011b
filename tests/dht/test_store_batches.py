"""Records that may wait travel together."""

from dht.harness import KEY, contact

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.messages import PAGE_BYTES, RECORDS_MAX
from p2pswarm.dht.records import sign
from p2pswarm.dht.store_batches import WAIT_S, BatchedRecord, StoreBatcher

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
