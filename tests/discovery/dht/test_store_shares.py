"""Who uses how much of a store, and whose record makes room."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.records import StoredRecord, StoreShares, level_of

ALICE, BOB = b"a" * 32, b"b" * 32


def stored(publisher: bytes, size_bytes: int = 100) -> StoredRecord:
    return StoredRecord(Record(bytes(32), b"", b"", 0, 0, publisher, bytes(64)), size_bytes, False)


def test_a_publisher_is_charged_for_what_is_kept_of_it():
    shares = StoreShares()
    first, second = stored(ALICE, 100), stored(ALICE, 30)

    shares.add(first)
    shares.add(second)
    assert shares.used(ALICE) == (2, 130)
    shares.remove(first)
    assert shares.used(ALICE) == (1, 30)
    shares.remove(second)
    assert shares.used(ALICE) == shares.used(BOB) == (0, 0)


def test_the_oldest_record_of_the_largest_goes_first():
    shares = StoreShares()
    of_bob, first, second = stored(BOB, 120), stored(ALICE, 100), stored(ALICE, 100)
    for each in (of_bob, first, second):
        shares.add(each)

    assert shares.first_to_go() is first
    shares.remove(first)
    assert shares.first_to_go() is of_bob
    shares.remove(of_bob)
    assert shares.first_to_go() is second


def test_the_largest_exceeds_what_is_a_quarter_smaller():
    shares = StoreShares()
    assert not shares.largest_exceeds(0)

    shares.add(stored(ALICE, 1000))

    assert shares.largest_exceeds(750)
    assert not shares.largest_exceeds(1000)
    assert not shares.largest_exceeds(2000)


def test_levels_rise_with_the_size_four_for_each_doubling():
    levels = [level_of(size_bytes) for size_bytes in range(5000)]

    assert levels == sorted(levels)
    assert levels[0] == 0 < levels[1]
    assert [len({*levels[n : 2 * n]}) for n in (4, 64, 2048)] == [4, 4, 4]
    assert level_of(64 << 20) < 128


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 5000), st.booleans())))
def test_the_first_to_go_is_of_one_of_the_largest_whatever_came_and_went(history):
    shares, there = StoreShares(), []
    for who, size_bytes, leaves in history:
        if leaves and there:
            shares.remove(there.pop(who % len(there)))
        else:
            there.append(stored(bytes([who]) * 32, size_bytes))
            shares.add(there[-1])
        used = [shares.used(bytes([who]) * 32)[1] for who in range(6)]
        assert sum(used) == sum(each.size_bytes for each in there)
        assert shares.largest_exceeds(0) == bool(there)
        if there:
            first = shares.first_to_go()
            assert level_of(shares.used(first.record.public_key)[1]) == level_of(max(used))
            assert first is next(
                each for each in there if each.record.public_key == first.record.public_key
            )
