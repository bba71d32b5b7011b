"""Getting records: the first answer, a quorum, pages, and who is put right."""

from dataclasses import replace

import pytest
from discovery.dht.harness import CONFIG, EPOCH_S, HOME, KEY, a_lookup, contact, raw, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.discovery.dht.get_value import GetOptions, GetValue
from p2pswarm.discovery.dht.messages import Get, Got, Pong, Record
from p2pswarm.discovery.dht.query import QueryRequest
from p2pswarm.discovery.dht.records import SignatureCache, sign
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
    get_value.poll(0.0)
    return get_value


def test_the_first_answer_is_enough():
    get_value = gathering(10, 20)

    get_value.on_response(contact(20), got(record()), 0.1)

    assert get_value.ready
    assert get_value.records == {b"a": record()}
    assert get_value.poll(0.2) == []


def test_without_a_record_it_goes_on_to_closer_peers():
    get_value = gathering(10)

    get_value.on_response(contact(10), got(closer=(5,)), 0.1)

    assert not get_value.ready
    assert get_value.poll(0.1) == [QueryRequest(contact(5), PLAIN)]


def test_what_nobody_has_is_not_there():
    get_value = gathering(10, 20)
    get_value.on_response(contact(10), got(), 0.1)
    get_value.on_failure(contact(20))
    get_value.poll(0.2)

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
    assert get_value.poll(0.1) == [QueryRequest(contact(10), replace(PLAIN, after=b"a"))]

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

    assert get_value.poll(0.2) == []
    assert list(get_value.repairs()) == []


def test_some_of_the_first_requests_may_be_carried_on():
    plan = GetOptions(request=PLAIN, quorum=1, wall_less_loop_s=EPOCH_S, carried=2)
    get_value = GetValue(a_lookup(10, 20, 30), plan, CONFIG, SignatureCache())

    hops = [ask.request.hops for ask in get_value.poll(0.0) if isinstance(ask.request, Get)]

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
