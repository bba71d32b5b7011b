"""Records that may wait travel together."""

from dht.harness import KEY, contact

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.messages import PAGE_BYTES, RECORDS_MAX
from p2pswarm.dht.records import sign
from p2pswarm.dht.store_batches import PEERS_MAX, WAIT_S, BatchedRecord, StoreBatcher

ALICE = Identity.generate(b"alice")
SMALL = BatchedRecord(sign(ALICE, KEY, b"", b"", 1, 1), None)
LARGE = BatchedRecord(sign(ALICE, KEY, b"", b"v" * 4096, 1, 1), None)


def test_what_waits_for_a_peer_goes_in_one_message():
    outbox = StoreBatcher()
    for at_s in (0.0, 0.1, 0.2):
        assert outbox.add(contact(1), SMALL, at_s)

    assert outbox.next_due_s() == WAIT_S
    assert outbox.due(WAIT_S - 0.01) == []
    assert outbox.due(WAIT_S) == [(contact(1), [SMALL] * 3)]
    assert outbox.next_due_s() == float("inf")


def test_each_peer_has_its_own_time():
    outbox = StoreBatcher()
    outbox.add(contact(1), SMALL, 0.0)
    outbox.add(contact(2), SMALL, 0.1)

    assert outbox.due(WAIT_S) == [(contact(1), [SMALL])]
    assert outbox.next_due_s() == 0.1 + WAIT_S


def test_a_message_that_is_full_goes_at_once():
    outbox = StoreBatcher()
    fits = PAGE_BYTES // LARGE.record.size_bytes

    for _ in range(fits + 1):
        outbox.add(contact(1), LARGE, 0.0)

    assert outbox.next_due_s() == float("-inf")
    assert outbox.due(0.0) == [(contact(1), [LARGE] * fits)]
    assert outbox.due(WAIT_S) == [(contact(1), [LARGE])]


def test_small_records_fill_a_message_by_their_number():
    outbox = StoreBatcher()
    for _ in range(RECORDS_MAX + 1):
        outbox.add(contact(1), SMALL, 0.0)

    assert [len(batched) for _, batched in outbox.due(0.0)] == [RECORDS_MAX]


def test_boxes_are_bounded():
    outbox = StoreBatcher()
    taken = [outbox.add(contact(number), SMALL, 0.0) for number in range(1, PEERS_MAX + 2)]

    assert taken == [True] * PEERS_MAX + [False]
