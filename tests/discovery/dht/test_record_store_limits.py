"""Quotas, and who makes room when a store is full."""

import sys
import tracemalloc
from collections.abc import Callable

import pytest
from discovery.dht.harness import ALICE, BOB, NOW_MS, a_store, key_at, offer, read, record

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.records import EXPIRED_AT_ONCE, Verdict, used_bytes
from p2pswarm.net.crypto.identity import Identity


def calls_of(work: Callable[[], object]) -> int:
    """How many functions `work` calls, Python's own among them."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return calls


def many(by: Identity, count: int, start: int = 0) -> list[Record]:
    """Records of one publisher under keys of their own."""
    return [record(b"v" * 1000, key=key_at(start + i), by=by) for i in range(count)]


def test_a_publisher_has_a_quota_of_records():
    store = a_store(records_per_publisher=2)
    names = (b"a", b"b", b"c")

    verdicts = offer(store, *[record(subkey=name) for name in names])

    assert verdicts == [Verdict.KEPT, Verdict.KEPT, Verdict.QUOTA]
    assert offer(store, record(seq=2, subkey=b"a")) == [Verdict.KEPT]
    assert offer(store, record(subkey=b"c", by=BOB), sender=BOB) == [Verdict.KEPT]


def test_a_publisher_has_a_quota_of_bytes():
    one = record(b"v" * 1000)
    store = a_store(bytes_per_publisher=2 * used_bytes(one))
    names = (b"", b"b", b"c")

    verdicts = offer(store, *[record(b"v" * (1000 - len(n)), subkey=n) for n in names])

    assert verdicts == [Verdict.KEPT, Verdict.KEPT, Verdict.QUOTA]


def test_taking_over_anothers_subkey_is_charged_to_the_new_publisher():
    store = a_store(records_per_publisher=1)
    offer(store, record(subkey=b"a"))
    offer(store, record(seq=2, subkey=b"a", by=BOB), sender=BOB)

    assert offer(store, record(subkey=b"b")) == [Verdict.KEPT]
    assert offer(store, record(subkey=b"c", by=BOB), sender=BOB) == [Verdict.QUOTA]


def test_a_full_store_drops_the_oldest_of_the_publisher_that_uses_most():
    store = a_store(store_bytes=10 * used_bytes(record(b"v" * 1000)))
    offer(store, *many(ALICE, 10))

    assert offer(store, *many(BOB, 2, 100), sender=BOB) == [Verdict.KEPT] * 2

    assert [len(read(store, key_at(i))) for i in range(10)] == [0, 0] + [1] * 8
    assert len(store) == 10


def test_the_publisher_that_uses_most_of_a_full_store_gets_no_more():
    store = a_store(store_bytes=10 * used_bytes(record(b"v" * 1000)))
    offer(store, *many(BOB, 2, 100), sender=BOB)
    offer(store, *many(ALICE, 8))

    assert offer(store, *many(ALICE, 1, 9)) == [Verdict.FULL]
    assert len(store) == 10


def test_a_flood_of_strangers_under_keys_beside_us_drives_nobody_out():
    """Ids are free, and keys can be chosen: neither helps who wants others' records gone."""
    store = a_store(store_bytes=100 * used_bytes(record(b"v" * 1000)))
    offer(store, *many(ALICE, 5, 1 << 15))
    for each in range(12):
        stranger = Identity.generate(b"stranger %d" % each)
        offer(store, *many(stranger, 10, 100 * each), sender=stranger)

    assert all(read(store, key_at((1 << 15) + i)) for i in range(5))
    assert 90 <= len(store) <= 100


def cost_of_one_more(count: int, by: Identity) -> tuple[Verdict, int]:
    """The verdict on one more record for a store filled by ALICE, and the calls that it took."""
    store = a_store(store_bytes=count * used_bytes(record(b"v" * 1000)))
    offer(store, *many(ALICE, count))
    one = many(by, 1, count + 9)[0]
    verdicts: list[Verdict] = []
    calls = calls_of(lambda: verdicts.append(store.offer(one, by.peer_id, NOW_MS)))
    return verdicts[0], calls


@pytest.mark.parametrize(("by", "verdict"), [(ALICE, Verdict.FULL), (BOB, Verdict.KEPT)])
def test_one_more_record_costs_the_same_however_full_the_store_is(by, verdict):
    """By counting calls: a refusal is cheap, and room is made for one record at a time."""
    of_few, of_many = cost_of_one_more(50, by), cost_of_one_more(800, by)

    assert of_few[0] == of_many[0] == verdict
    assert of_many[1] <= 2 * of_few[1]


@pytest.mark.parametrize("value_bytes", [0, 1000])
def test_a_store_takes_no_more_memory_than_it_says(value_bytes):
    """Also if each record, read and not yet checked, has a key and a publisher of its own."""
    cap_bytes = 2 << 20
    store = a_store(store_bytes=cap_bytes)
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    for number in range(cap_bytes // 800):
        key, publisher = number.to_bytes(32), number.to_bytes(32, "little")
        value, signature = bytes(bytearray(value_bytes)), bytes(bytearray(64))
        one = Record(key, b"", value, 10**12 + number, NOW_MS + 60_000, publisher, signature)
        store.offer(one, PeerId.of_key(publisher), NOW_MS)
        read(store, key)
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert store.size_bytes <= cap_bytes
    assert offer(store, record(b"v" * value_bytes, key=b"k" * 32)) == [Verdict.FULL]
    assert 0.7 * cap_bytes < used - before < 1.1 * cap_bytes


def test_what_expires_together_is_forgotten_in_portions():
    store = a_store()
    for who in (ALICE, BOB):
        some = [record(subkey=b"%s%d" % (who.peer_id.raw[:1], i), by=who) for i in range(600)]
        offer(store, *some, sender=who)
    over_ms = NOW_MS + 60_000

    left = []
    while store.next_expiry_ms() == over_ms:
        store.expire(over_ms)
        left.append(len(store))

    assert left == [1200 - EXPIRED_AT_ONCE, 1200 - 2 * EXPIRED_AT_ONCE, 0]


def test_nobody_is_driven_out_by_who_uses_as_much():
    store = a_store(store_bytes=used_bytes(record(b"v" * 1000)))
    offer(store, *many(ALICE, 1))

    assert offer(store, *many(BOB, 1, 1), sender=BOB) == [Verdict.FULL]
    assert len(read(store, key_at(0))) == 1


def test_a_full_store_still_renews_what_it_has():
    one = record(b"v" * 1000)
    store = a_store(store_bytes=used_bytes(one))
    offer(store, one)

    assert offer(store, record(b"w" * 1000, seq=2)) == [Verdict.KEPT]
    assert offer(store, record(b"w" * 1001, seq=3)) == [Verdict.FULL]
    assert read(store) == [record(b"w" * 1000, seq=2)]


def test_what_takes_anothers_place_may_be_larger():
    """The place that it frees is counted once, also if making room frees it first."""
    store = a_store(store_bytes=2 * used_bytes(record(b"v" * 1000)))
    offer(store, record(b"v" * 1000), record(b"v" * 1000, key=key_at(1)))

    larger = record(b"v" * 1500, seq=2, by=BOB)

    assert offer(store, larger, sender=BOB) == [Verdict.KEPT]
    assert read(store) == [larger]
    assert store.size_bytes == used_bytes(larger)
