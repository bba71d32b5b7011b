"""When records expire, by the second."""

from discovery.dht.harness import NOW_MS
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.records import TICK_MS, Expiries, StoredRecord


def stored(ttl_ms: int) -> StoredRecord:
    record = Record(bytes(32), b"", b"", 0, NOW_MS + ttl_ms, bytes(32), bytes(64))
    return StoredRecord(record, 1, False)


def test_a_record_is_due_at_the_end_of_its_second():
    expiries, one = Expiries(), stored(ttl_ms=30)
    assert expiries.next_ms() is None
    expiries.add(one)

    assert expiries.next_ms() == NOW_MS + TICK_MS
    assert expiries.due(NOW_MS + TICK_MS - 1, 9) == []
    assert expiries.due(NOW_MS + TICK_MS, 9) == [one]


def test_a_record_that_expires_on_the_second_is_due_then():
    expiries, one = Expiries(), stored(ttl_ms=2 * TICK_MS)
    expiries.add(one)

    assert expiries.due(NOW_MS + 2 * TICK_MS - 1, 9) == []
    assert expiries.due(NOW_MS + 2 * TICK_MS, 9) == [one]


def test_the_due_come_in_portions():
    expiries, some = Expiries(), [stored(ttl_ms=30) for _ in range(5)]
    for each in some:
        expiries.add(each)

    portions = []
    while due := expiries.due(NOW_MS + TICK_MS, 2):
        portions.append(len(due))
        for each in due:
            expiries.remove(each)

    assert portions == [2, 2, 1]
    assert expiries.next_ms() is None


def test_renewing_for_ever_takes_no_memory():
    expiries, one = Expiries(), stored(ttl_ms=30)
    expiries.add(one)
    for _ in range(1000):
        expiries.remove(one)
        expiries.add(one)

    assert len(expiries._ticks) == len(expiries._by_tick) == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20_000)), max_size=50))
def test_none_is_due_early_or_over_a_second_late(history):
    expiries, kept, now_ms = Expiries(), [], NOW_MS
    for adds, number in history:
        if adds:
            kept.append(stored(now_ms - NOW_MS + number))
            expiries.add(kept[-1])
        else:
            now_ms += number
            while due := expiries.due(now_ms, 3):
                assert len(due) <= 3
                for each in due:
                    expiries.remove(each)
                    kept.remove(each)
                    assert each.record.expires_ms <= now_ms
        assert all(now_ms - TICK_MS < each.record.expires_ms for each in kept) or adds
        assert (expiries.next_ms() is None) <= (not kept)
