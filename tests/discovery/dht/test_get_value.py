"""Tests of `discovery/dht/get_value.py`."""

from dataclasses import replace

import pytest
from discovery.dht.harness import (
    CARDS,
    CONFIG,
    EPOCH_S,
    HOME,
    KEY,
    OWN,
    a_lookup,
    a_sure_table,
    a_table,
    contact,
    contacts,
    raw,
    told,
)
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.get_value import (
    HELD_PAGE_RECORDS,
    GetOptions,
    GetValue,
    NegativeCache,
    ValueReader,
)
from p2pswarm.discovery.dht.lookup import QueryRequest
from p2pswarm.discovery.dht.messages import HOPS_MAX, Get, Got, Pong, Record
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache, sign
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.net.crypto.identity import Identity

ALICE = Identity.generate(b"alice")
PLAIN = Get(KEY, b"", False, 0)


def record(subkey: bytes = b"a", seq: int = 1, ttl_s: float = 60.0, key: bytes = KEY) -> Record:
    return sign(ALICE, key, subkey, b"value", seq, int(1000 * (EPOCH_S + ttl_s)))


def got(*records: Record, closer: tuple[int, ...] = (), more: bool = False) -> Got:
    return Got(records, more, told([(raw(number), HOME) for number in closer]))


def gathering(*start: int, quorum: int = 1, **options: int) -> GetValue:
    """A get that has asked everyone in `start`."""
    lookup = a_lookup(*start, settle=8)
    plan = GetOptions(request=PLAIN, quorum=quorum, wall_less_loop_s=EPOCH_S, **options)
    get_value = GetValue(lookup, plan, CONFIG, SignatureCache())
    get_value.drain(0.0)
    return get_value


def test_the_first_answer_is_enough():
    get_value = gathering(10, 20)

    get_value.on_response(contact(20), got(record()), 0.1)

    assert get_value.ready
    assert get_value.records == {b"a": record()}
    assert get_value.drain(0.2) == []


def test_without_a_record_it_goes_on_to_closer_peers():
    get_value = gathering(10)

    get_value.on_response(contact(10), got(closer=(5,)), 0.1)

    assert not get_value.ready
    assert get_value.drain(0.1) == [QueryRequest(contact(5), PLAIN)]


def test_what_nobody_has_is_not_there():
    get_value = gathering(10, 20)
    get_value.on_response(contact(10), got(), 0.1)
    get_value.on_failure(contact(20))
    get_value.drain(0.2)

    assert get_value.ready
    assert get_value.records == {}
    assert list(get_value.repairs()) == []


def test_a_get_ends_when_patience_does():
    get_value = gathering(10)
    get_value.on_deadline(get_value.next_deadline_s())
    assert not get_value.ready

    get_value.on_deadline(5.0)

    assert get_value.ready


def test_a_quorum_is_heard_and_the_newest_of_each_subkey_counts():
    get_value = gathering(10, 20, 30, quorum=2)
    get_value.on_response(contact(10), got(record(b"a", 1), record(b"b", 2)), 0.1)
    assert not get_value.ready

    get_value.on_response(contact(20), got(record(b"a", 2), record(b"b", 1)), 0.2)

    assert get_value.ready
    assert get_value.records == {b"a": record(b"a", 2), b"b": record(b"b", 2)}


def test_expired_records_do_not_count():
    get_value = gathering(10, 20)

    get_value.on_response(contact(10), got(record(ttl_s=0.05)), 0.1)

    assert get_value.records == {}
    assert not get_value.ready


def test_a_record_of_another_key_is_a_breach():
    get_value = gathering(10, 20)

    with pytest.raises(BadMessage):
        get_value.on_response(contact(10), got(record(key=b"k" * 32)), 0.1)

    assert get_value.records == {}


def test_a_record_that_lasts_too_long_is_passed_over_because_our_clock_may_be_wrong():
    get_value = gathering(10, 20)

    get_value.on_response(contact(10), got(record(ttl_s=3700.0)), 0.1)

    assert get_value.records == {}
    assert get_value.clocks_differ


def test_a_wrong_signature_is_as_good_as_no_record():
    """Its publisher may be to blame, or who handed it over: nobody can tell."""
    get_value = gathering(10, 20)

    get_value.on_response(contact(10), got(replace(record(), value=b"forged"), record(b"b")), 0.1)

    assert get_value.records == {b"b": record(b"b")}


def test_an_answer_to_another_question_is_a_breach():
    with pytest.raises(BadMessage, match="Pong does not answer Get"):
        gathering(10).on_response(contact(10), Pong(), 0.1)


def test_pages_are_asked_for_one_after_another():
    get_value = gathering(10)
    get_value.on_response(contact(10), got(record(b"a"), more=True), 0.1)
    assert get_value.drain(0.1) == [QueryRequest(contact(10), replace(PLAIN, after=b"a"))]

    get_value.on_response(contact(10), got(record(b"b")), 0.2)

    assert get_value.ready
    assert sorted(get_value.records) == [b"a", b"b"]
    assert not get_value.more


def test_pages_beyond_the_limit_are_not_asked_for():
    get_value = gathering(10, pages=1)

    get_value.on_response(contact(10), got(record(b"a"), more=True), 0.1)

    assert get_value.ready
    assert get_value.more
    assert list(get_value.repairs()) == []


def test_the_next_page_of_one_is_not_wanted_when_another_has_told_all():
    get_value = gathering(10, 20)
    get_value.on_response(contact(10), got(record(b"a"), record(b"b")), 0.1)

    get_value.on_response(contact(20), got(record(b"a"), more=True), 0.2)

    assert get_value.drain(0.2) == []
    assert list(get_value.repairs()) == []


def test_some_of_the_first_requests_may_be_carried_on():
    plan = GetOptions(request=PLAIN, quorum=1, wall_less_loop_s=EPOCH_S, carried=2)
    get_value = GetValue(a_lookup(10, 20, 30), plan, CONFIG, SignatureCache())

    hops = [ask.request.hops for ask in get_value.drain(0.0) if isinstance(ask.request, Get)]

    assert hops == [2, 2, 0]


def test_a_holder_that_answered_without_the_record_is_repaired():
    """Two at most, the closest; not those who have it, nor those who did not answer."""
    get_value = gathering(10, 20, 30, 40, 50)
    for number in (10, 20, 30):
        get_value.on_response(contact(number), got(), 0.1)
    get_value.on_response(contact(40), got(record()), 0.2)

    assert list(get_value.repairs()) == [(contact(10), [record()]), (contact(20), [record()])]


def test_a_holder_with_an_older_record_is_repaired():
    get_value = gathering(10, 20, quorum=2)
    get_value.on_response(contact(10), got(record(b"a", 1), record(b"b", 1)), 0.1)
    get_value.on_response(contact(20), got(record(b"a", 2), record(b"b", 1)), 0.2)

    assert list(get_value.repairs()) == [(contact(10), [record(b"a", 2)])]


def test_a_miss_is_remembered_for_a_while():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    assert not misses.holds(b"a", 0.0)

    misses.add(b"a", 1.0)

    assert misses.holds(b"a", 5.9)
    assert not misses.holds(b"a", 6.0)
    assert not misses.holds(b"b", 1.0)


def test_a_miss_is_forgotten_when_the_key_may_be_there():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    misses.add(b"a", 0.0)

    misses.forget(b"a")
    misses.forget(b"unknown")

    assert not misses.holds(b"a", 0.0)


def test_the_miss_noted_longest_ago_makes_room():
    misses = NegativeCache(misses_max=2, keep_s=5.0)
    for key in (b"a", b"b", b"a", b"c"):
        misses.add(key, 0.0)

    assert [misses.holds(key, 0.0) for key in (b"a", b"b", b"c")] == [True, False, True]


@given(st.lists(st.tuples(st.binary(max_size=1), st.floats(0, 1e9))), st.integers(0, 5))
def test_it_is_bounded_whatever_is_missed(history, misses_max):
    misses = NegativeCache(misses_max, keep_s=5.0)
    for key, now_s in history:
        misses.add(key, now_s)
        held = [misses.holds(each, float("-inf")) for each in dict(history)]
        assert sum(held) <= misses_max


VALUE_READER_ALICE = Identity.generate(b"alice")
NOW_MS = int(1000 * EPOCH_S)
FAR = 1 << 220  # farther from the key than we are


def a_record(value: bytes = b"value") -> Record:
    return sign(VALUE_READER_ALICE, KEY, b"a", value, 1, NOW_MS + 60_000)


def a_reader(table: Table, *held: Record) -> ValueReader:
    signatures = SignatureCache()
    store = RecordStore(CONFIG, signatures)
    for record in held:
        store.offer(record, VALUE_READER_ALICE.peer_id, NOW_MS)
    return ValueReader(
        PeerId(OWN), table, store, TimeoutEstimator(CONFIG), signatures, UnverifiedContacts(CARDS)
    )


def held(reader: ValueReader) -> dict[bytes, Record]:
    return {subkey: one for page in reader.held(KEY, NOW_MS) for subkey, one in page.items()}


def query(reader: ValueReader, quorum: int = 1) -> GetValue:
    return reader.query(KEY, quorum, 0.0, EPOCH_S)


def asked(get_value: GetValue) -> list[tuple[int, Get]]:
    """Which peers it asks first, and what."""
    asks = get_value.drain(0.0)
    return [(int.from_bytes(ask.contact.peer.raw), ask.request) for ask in asks]


def test_a_holder_answers_itself():
    assert held(a_reader(a_table(1, 2), a_record())) == {b"a": a_record()}


def test_a_key_that_we_do_not_hold_is_not_answered():
    assert held(a_reader(a_table(1, 2))) == {}


def test_a_copy_that_others_should_hold_is_not_answered():
    """All eight holders are closer than we are, so the copy may be old."""
    reader = a_reader(a_table(*range(1, 9)), a_record())

    assert held(reader) == {}
    assert list(reader.held(KEY, NOW_MS, anyway=True)) == [{b"a": a_record()}]


def test_around_a_crowded_key_all_of_the_region_are_asked_and_none_that_they_name():
    reader = a_reader(a_table())
    region = contacts(*range(1, 31))

    get_value = reader.among(Get(KEY, b"", False, 0), 1, region, 0.0, EPOCH_S)

    seen: list[int] = []
    while asks := get_value.drain(0.0):
        for ask in asks:
            seen.append(int.from_bytes(ask.contact.peer.raw))
            get_value.on_response(ask.contact, Got((), False, told([(raw(99), HOME)])), 0.1)
    assert sorted(seen) == list(range(1, 31))
    assert get_value.finished
    assert not reader.among(Get(KEY, b"", False, 0), 1, [], 0.0, EPOCH_S).drain(0.0)


def test_a_key_with_a_crowd_around_it_is_not_remembered_as_missing():
    reader = a_reader(a_table())
    get_value = query(reader)
    get_value.lookup.crowded = True

    assert list(reader.on_outcome(KEY, get_value, 1.0)) == []
    assert not reader.misses.holds(KEY, 1.0)


def test_the_last_of_the_holders_still_answers():
    reader = a_reader(a_table(*range(1, 8), FAR), a_record())

    assert b"a" in held(reader)


def test_a_record_that_its_publisher_did_not_sign_is_not_answered():
    forged = Record(
        KEY, b"a", b"false", 1, NOW_MS + 60_000, VALUE_READER_ALICE.public_key, bytes(64)
    )

    assert held(a_reader(a_table(), forged)) == {}


def test_what_we_hold_comes_in_pages_that_are_soon_checked():
    """So that a key with thousands of subkeys stops nobody else's work."""
    subkeys = [b"", *[b"%03d" % i for i in range(150)]]
    some = [sign(VALUE_READER_ALICE, KEY, subkey, b"v", 1, NOW_MS + 60_000) for subkey in subkeys]

    pages = list(a_reader(a_table(), *some).held(KEY, NOW_MS))

    assert [len(page) for page in pages] == [HELD_PAGE_RECORDS, HELD_PAGE_RECORDS, 23]
    assert [subkey for page in pages for subkey in page] == subkeys
    assert list(a_reader(a_table(), *some).held(KEY, NOW_MS, pages_max=2)) == pages[:2]


def test_where_the_table_is_sure_one_holder_is_asked():
    get_value = query(a_reader(a_sure_table(*range(1, 12))))

    assert asked(get_value) == [(1, Get(KEY, b"", False, 0))]


def test_where_the_table_is_sure_nobody_but_the_holders_is_asked():
    get_value = query(a_reader(a_sure_table(*range(1, 12))), quorum=8)

    assert [number for number, _ in asked(get_value)] == list(range(1, CONFIG.alpha + 1))
    for each in contacts(*range(1, CONFIG.alpha + 1)):
        get_value.on_failure(each)
    assert [number for number, _ in asked(get_value)] == [7, 8]


def test_a_quorum_wants_to_hear_of_peers_that_are_closer():
    assert asked(query(a_reader(a_sure_table(1, 2, 3)), quorum=2)) == [
        (1, Get(KEY, b"", True, 0)),
        (2, Get(KEY, b"", True, 0)),
    ]


def test_where_the_table_is_not_sure_the_first_requests_are_carried_on():
    requests = asked(query(a_reader(a_table(*range(1, 12)))))

    assert [number for number, _ in requests] == list(range(1, CONFIG.alpha + 1))
    assert [get.hops for _, get in requests] == [HOPS_MAX] * 3 + [0] * 3


def test_a_quorum_is_not_carried_on():
    requests = asked(query(a_reader(a_table(*range(1, 12))), quorum=2))

    assert [get.hops for _, get in requests] == [0] * CONFIG.alpha


def test_what_was_not_found_is_remembered():
    reader = a_reader(a_table(1))
    get_value = query(reader)
    get_value.drain(0.0)
    get_value.on_failure(contact(1))

    assert list(reader.on_outcome(KEY, get_value, 1.0)) == []

    assert reader.misses.holds(KEY, 1.0)
    assert reader.unsure


def test_it_is_sure_that_there_is_nothing_when_all_who_were_asked_say_so():
    reader = a_reader(a_table(1))
    get_value = query(reader)
    get_value.drain(0.0)
    get_value.on_response(contact(1), Got((), False, told([])), 0.1)

    assert list(reader.on_outcome(KEY, get_value, 1.0)) == []

    assert not reader.unsure
    assert query(reader).unsure  # nobody has answered this one yet


def test_what_was_found_is_no_miss_and_repairs_the_holders_that_lack_it():
    reader = a_reader(a_table(1, 2))
    reader.misses.add(KEY, 0.0)
    get_value = query(reader)
    get_value.drain(0.0)
    get_value.on_response(contact(1), Got((), False, told([(raw(2), HOME)])), 0.1)
    get_value.on_response(contact(2), Got((a_record(),), False, told([])), 0.2)

    assert list(reader.on_outcome(KEY, get_value, 1.0)) == [(contact(1), a_record())]

    assert not reader.misses.holds(KEY, 1.0)


def answered_with(ttl_s: float) -> GetValue:
    """A get whose only peer answers with a record that lives so long by our wall clock."""
    record = sign(VALUE_READER_ALICE, KEY, b"a", b"v", 1, int(1000 * (EPOCH_S + ttl_s)))
    get_value = query(a_reader(a_table(1)))
    get_value.drain(0.0)
    get_value.on_response(contact(1), Got((record,), False, told([])), 0.1)
    return get_value


def test_expired_is_what_our_wall_clock_says():
    assert list(answered_with(ttl_s=0.2).records) == [b"a"]
    assert answered_with(ttl_s=0.05).records == {}


LATEST_S = CONFIG.ttl_most_s + CONFIG.skew_s


@pytest.mark.parametrize(
    ("ttl_s", "differ"),
    [(0.05, False), (-CONFIG.skew_s - 1.0, True), (LATEST_S, False), (LATEST_S + 1.0, True)],
)
def test_a_record_that_is_long_over_or_lasts_too_long_tells_that_clocks_differ(ttl_s, differ):
    get_value = answered_with(ttl_s=ttl_s)

    assert get_value.clocks_differ is differ
    assert not (differ and get_value.records)


@pytest.mark.parametrize(("ttl_s", "differ"), [(60.0, False), (-60.0, True)])
def test_the_reader_remembers_of_its_last_get_whether_clocks_differ(ttl_s, differ):
    reader = a_reader(a_table(1))

    list(reader.on_outcome(KEY, answered_with(ttl_s=-60.0), 1.0))
    list(reader.on_outcome(KEY, answered_with(ttl_s=ttl_s), 2.0))

    assert reader.clocks_differ is differ


def test_a_record_that_is_over_tells_nothing_beside_one_that_is_not():
    over, good = (
        sign(VALUE_READER_ALICE, KEY, subkey, b"v", 1, int(1000 * (EPOCH_S + ttl_s)))
        for subkey, ttl_s in ((b"a", -60.0), (b"b", 60.0))
    )
    reader = a_reader(a_table(1))
    get_value = query(reader)
    get_value.drain(0.0)
    get_value.on_response(contact(1), Got((over, good), False, told([])), 0.1)

    list(reader.on_outcome(KEY, get_value, 1.0))

    assert list(get_value.records) == [b"b"]
    assert not reader.clocks_differ


def test_a_record_that_is_forged_tells_nothing_of_clocks():
    forged = replace(sign(VALUE_READER_ALICE, KEY, b"a", b"v", 1, 1), signature=bytes(64))

    get_value = query(a_reader(a_table(1)))
    get_value.drain(0.0)
    get_value.on_response(contact(1), Got((forged,), False, told([])), 0.1)

    assert not get_value.clocks_differ
