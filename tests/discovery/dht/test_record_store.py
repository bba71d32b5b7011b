"""What a node keeps for others, and what it never keeps."""

from dataclasses import replace

from discovery.dht.harness import (
    ALICE,
    BOB,
    KEY,
    NOW_MS,
    a_store,
    key_at,
    offer,
    read,
    record,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Record
from p2pswarm.discovery.dht.records import (
    PROVED_AT_ONCE,
    RecordStore,
    SignatureCache,
    Verdict,
    rank,
    used_bytes,
)

US = PeerId(bytes(32))


def test_what_is_kept_can_be_read():
    store = a_store()

    assert offer(store, record()) == [Verdict.KEPT]
    assert read(store) == [record()]
    assert KEY in store
    assert len(store) == 1


def test_of_two_the_newer_stays():
    store = a_store()
    old, new = record(seq=1), record(seq=2)

    assert offer(store, new, old, new) == [Verdict.KEPT, Verdict.OLDER, Verdict.SAME]
    assert read(store) == [new]


def test_the_newer_takes_the_place_of_the_older():
    store = a_store()

    assert offer(store, record(b"short", 1), record(b"longer" * 9, 2)) == [Verdict.KEPT] * 2
    assert read(store) == [record(b"longer" * 9, 2)]
    assert len(store) == 1
    assert store.size_bytes == used_bytes(record(b"longer" * 9, 2))


def test_subkeys_are_read_in_order_and_from_anywhere():
    store = a_store()
    offer(store, *[record(subkey=name) for name in (b"c", b"a", b"b")])

    assert [each.subkey for each in read(store)] == [b"a", b"b", b"c"]
    assert [each.subkey for each in store.read(KEY, NOW_MS, after=b"a")] == [b"b", b"c"]


def test_expired_and_too_lasting_records_are_refused():
    store = a_store()
    hour_ms = 3_600_000

    verdicts = offer(
        store, record(ttl_ms=0), record(ttl_ms=hour_ms + 5_001), record(ttl_ms=hour_ms + 5_000)
    )

    assert verdicts == [Verdict.EXPIRED, Verdict.FUTURE, Verdict.KEPT]


def test_too_large_records_are_refused():
    large = replace(record(), value=b"v" * 4097)
    long = replace(record(), subkey=b"s" * 65)

    assert offer(a_store(), large, long) == [Verdict.TOO_LARGE] * 2


def test_the_largest_records_are_kept():
    assert offer(a_store(), record(b"v" * 4096, subkey=b"s" * 64)) == [Verdict.KEPT]


def test_verdicts_are_numbers_on_the_wire():
    assert [verdict.name for verdict in sorted(Verdict)] == [
        "KEPT",
        "SAME",
        "OLDER",
        "EXPIRED",
        "FUTURE",
        "FORGED",
        "TOO_LARGE",
        "QUOTA",
        "FULL",
    ]
    assert sorted(Verdict) == list(range(9))


def test_forged_records_are_refused():
    forged = replace(record(), value=b"forged")

    assert offer(a_store(), forged, sender=BOB) == [Verdict.FORGED]


def test_anybody_may_hand_over_what_another_signed():
    store = a_store()

    assert offer(store, record(), sender=BOB) == [Verdict.KEPT]
    assert read(store) == [record()]


def test_what_its_publisher_did_not_sign_does_not_stay():
    """Its publisher's link vouches for it: it is kept unchecked, and checked when it was read."""
    store = a_store()
    unsigned = replace(record(subkey=b"a"), value=b"unsigned")
    offer(store, unsigned, record(subkey=b"b"), record(subkey=b"c"))
    store.prove()
    assert len(store) == 3
    assert not store.unproven

    assert len(read(store)) == 3
    assert store.unproven
    store._forget(KEY, b"c")
    store.prove()

    assert [each.subkey for each in read(store)] == [b"b"]
    assert not store.unproven


def test_signatures_are_checked_in_portions():
    """A check of 8,192 at once would stop the node for most of a second."""
    checked: list[Record] = []

    class Counting(SignatureCache):
        def holds(self, one: Record) -> bool:
            checked.append(one)
            return super().holds(one)

    store = RecordStore(DhtConfig(), Counting())
    some = [record(subkey=b"%d" % i) for i in range(2 * PROVED_AT_ONCE + 1)]
    offer(store, *some)
    read(store)

    portions = []
    while store.unproven:
        before = len(checked)
        store.prove()
        portions.append(len(checked) - before)

    assert portions == [PROVED_AT_ONCE, PROVED_AT_ONCE, 1]
    assert len({one.subkey for one in checked}) == len(some)


class CountedBytes(bytes):
    """Counts how often it is compared for order."""

    comparisons = 0

    def __lt__(self, other: bytes) -> bool:
        type(self).comparisons += 1
        return super().__lt__(other)

    __hash__ = bytes.__hash__


def test_a_page_of_a_key_costs_the_same_however_many_subkeys_it_has():
    """By counting comparisons: a read of one record does not sort thousands."""
    comparisons = []
    for count in (100, 1000):
        store = a_store()
        offer(store, *[record(subkey=CountedBytes(b"%04d" % i)) for i in range(count)])
        CountedBytes.comparisons = 0

        assert next(store.read(KEY, NOW_MS, CountedBytes(b"0090"))).subkey == b"0091"

        comparisons.append(CountedBytes.comparisons)
    assert comparisons[1] <= 2 * comparisons[0]


def test_what_was_replaced_before_it_was_checked_is_checked_anew():
    store = a_store()
    offer(store, record(seq=1))
    read(store)
    store.offer(record(seq=2), BOB.peer_id, NOW_MS)

    store.prove()

    assert read(store) == [record(seq=2)]
    assert not store.unproven


def test_nobody_writes_under_anothers_id():
    theirs = replace(record(), subkey=BOB.peer_id.raw)

    assert offer(a_store(), theirs, sender=ALICE) == [Verdict.FORGED]


def test_what_expires_is_not_read_and_then_forgotten():
    store = a_store()
    offer(store, record(subkey=b"a", ttl_ms=1_000), record(subkey=b"b", ttl_ms=2_000))

    assert [each.subkey for each in read(store, now_ms=NOW_MS + 1_000)] == [b"b"]
    store.expire(NOW_MS + 1_500)
    assert len(store) == 1
    store.expire(NOW_MS + 2_000)
    assert len(store) == 0
    assert store.size_bytes == 0
    assert KEY not in store


def test_what_expires_within_a_second_is_kept_to_its_end_and_not_read():
    store = a_store()
    offer(store, record(ttl_ms=1_500))

    assert read(store, now_ms=NOW_MS + 1_499) == [record(ttl_ms=1_500)]
    assert read(store, now_ms=NOW_MS + 1_500) == []
    assert len(store) == 1


def test_a_record_that_was_renewed_does_not_expire_with_its_elder():
    store = a_store()
    offer(store, record(seq=1, ttl_ms=1_000), record(seq=2, ttl_ms=9_000))

    store.expire(NOW_MS + 5_000)
    assert read(store, now_ms=NOW_MS + 5_000) == [record(seq=2, ttl_ms=9_000)]


def test_records_expire_in_time_after_others_were_renewed_often():
    """Of 100 that end one second after another, half are gone after half the time."""
    store = a_store()
    for i in reversed(range(100)):
        offer(store, record(subkey=bytes([i]), ttl_ms=1_000 * (i + 1)))
    for seq in range(3000):
        store.offer(replace(record(subkey=b"busy"), seq=seq), ALICE.peer_id, NOW_MS)

    store.expire(NOW_MS + 50_000)

    assert len(store) == 50 + 1


def test_what_has_expired_is_charged_to_nobody():
    one = record(b"v" * 1000, ttl_ms=1_000)
    store = a_store(bytes_per_publisher=used_bytes(one))
    offer(store, one)
    store.expire(NOW_MS + 1_000)

    assert offer(store, record(b"v" * 1000, key=key_at(1))) == [Verdict.KEPT]


SOME = [record(v, seq, subkey=n) for v in (b"x", b"y") for seq in (1, 2) for n in (b"a", b"b")]


@given(st.lists(st.sampled_from(SOME)))
def test_stores_that_saw_the_same_records_agree(some):
    """In whatever order they came, however often."""
    store, other = a_store(), a_store()
    offer(store, *some)
    offer(other, *reversed(some * 2))

    assert read(store) == read(other)
    for kept in read(store):
        assert all(rank(kept) >= rank(each) for each in some if each.subkey == kept.subkey)


@given(st.lists(st.tuples(st.sampled_from(SOME), st.integers(0, 90_000))))
def test_the_books_are_right_at_any_time(history):
    """However records come, age and are read, sizes and shares add up."""
    store = a_store(records_per_publisher=1)
    for one, age_ms in history:
        store.offer(one, ALICE.peer_id, NOW_MS)
        store.expire(NOW_MS + age_ms)
        left = read(store)
        assert len(store) == len(left) <= 1
        assert store.size_bytes == sum(used_bytes(each) for each in left)


hostile_records = st.builds(
    Record,
    key=st.sampled_from([key_at(1), key_at(2), key_at(1 << 15)]),
    subkey=st.one_of(st.binary(max_size=3), st.binary(min_size=32, max_size=32)),
    value=st.sampled_from([b"", b"v" * 300, b"v" * 4096, b"v" * 5000]),
    seq=st.integers(0, 2**62),
    expires_ms=st.one_of(st.integers(0, 2**53), st.integers(NOW_MS, NOW_MS + 3_600_000)),
    public_key=st.sampled_from([ALICE.public_key, BOB.public_key, bytes(32), b"\xff" * 32]),
    signature=st.sampled_from([bytes(64), b"\xff" * 64]),
)


@given(
    st.lists(
        st.tuples(
            st.one_of(hostile_records, st.sampled_from(SOME)),
            st.sampled_from([ALICE.peer_id, BOB.peer_id, US]),
            st.sampled_from(["offer", "read", "prove", "expire"]),
        ),
        max_size=40,
    )
)
def test_whatever_is_offered_gets_a_verdict_and_the_bounds_hold(history):
    store = a_store(records_per_publisher=3, bytes_per_publisher=9000, store_bytes=15_000)
    for one, sender, move in history:
        if move == "offer":
            assert store.offer(one, sender, NOW_MS) in Verdict
        elif move == "read":
            list(store.read(one.key, NOW_MS))
        elif move == "prove":
            store.prove()
            assert not store.unproven
        else:
            store.expire(NOW_MS + 1800_000)
        assert store.size_bytes <= 15_000
        assert len(store) <= 2 * 3 + 2 * 3
        assert len(store._unproven) <= len(store)
        assert (store.next_expiry_ms() is None) <= (len(store) == 0)


def test_what_was_read_and_then_forgotten_needs_no_proof():
    """Or the memory of it would grow with everything that was ever read."""
    store = a_store()
    offer(store, record(ttl_ms=1_000))
    assert len(read(store)) == 1
    assert store.unproven

    store.expire(NOW_MS + 1_000)

    assert not store.unproven


def test_the_first_expiry_is_known():
    store = a_store()
    assert store.next_expiry_ms() is None

    offer(store, record(subkey=b"a", ttl_ms=9_000), record(subkey=b"b", ttl_ms=3_000))

    assert store.next_expiry_ms() == NOW_MS + 3_000
