"""Tests of `discovery/dht/put_value.py`."""

import random
from dataclasses import replace

import pytest
from discovery.dht.harness import CONFIG, KEY, OWN, STRANGER, contact, contacts
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, NoRoute, Refused, Unusable
from p2pswarm.discovery.dht.call_outcomes import TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.crowding import REGION_MAX, REGION_SUCCESS, Spread
from p2pswarm.discovery.dht.messages import PAGE_BYTES, RECORDS_MAX, Pong, Store, Stored
from p2pswarm.discovery.dht.put_value import (
    WAIT_S,
    BatchedRecord,
    Publication,
    Publisher,
    PutOptions,
    PutValue,
    StoreBatcher,
    holders_of,
    store_of,
    stored_in,
)
from p2pswarm.discovery.dht.records import SignatureCache, Verdict, sign
from p2pswarm.net.crypto.identity import Identity

RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
KEPT = Stored(bytes([Verdict.KEPT]))


def placing(candidates: int, replicas: int = 4, success: int = 2, first: int = 2) -> PutValue:
    options = PutOptions(replicas=replicas, success=success, first=first, patience_s=5.0)
    known = contacts(*range(1, candidates + 1))
    return PutValue(RECORD, known, options, TimeoutEstimator(CONFIG))


def asked(put_value: PutValue, now_s: float = 0.0, *, at_leisure: bool = False) -> list[int]:
    """Whom it asks now, in order; all at once or all at leisure."""
    asks = put_value.drain(now_s)
    assert all(ask.request == Store((RECORD,)) for ask in asks)
    assert all(ask.at_leisure is at_leisure for ask in asks)
    return [int.from_bytes(ask.contact.peer.raw) for ask in asks if ask.contact.peer]


def test_the_closest_are_asked_at_once_and_the_rest_at_leisure():
    put_value = placing(6)
    assert asked(put_value) == [1, 2]
    put_value.on_response(contact(1), KEPT, 0.1)
    assert asked(put_value) == []
    assert not put_value.ready

    put_value.on_response(contact(2), KEPT, 0.1)

    assert put_value.ready
    assert not put_value.finished
    assert asked(put_value, at_leisure=True) == [3, 4]
    put_value.on_response(contact(3), Stored(bytes([Verdict.SAME])), 0.4)
    put_value.on_response(contact(4), KEPT, 0.4)
    assert put_value.finished
    assert put_value.holders == 4


def test_a_peer_that_has_anothers_newer_value_is_no_holder():
    put_value = placing(3)
    asked(put_value)

    put_value.on_response(contact(1), Stored(bytes([Verdict.OLDER])), 0.1)

    assert put_value.holders == 0
    assert put_value.refusals == [Verdict.OLDER]
    assert asked(put_value) == [3]


def test_a_newer_value_under_ones_own_id_is_ones_own():
    alice = Identity.generate(b"alice")
    record = sign(alice, KEY, alice.peer_id.raw, b"value", 1, 1_700_000_000_000)
    options = PutOptions(replicas=1, success=1, first=1, patience_s=5.0)
    put_value = PutValue(record, contacts(1), options, TimeoutEstimator(CONFIG))
    put_value.drain(0.0)

    put_value.on_response(contact(1), Stored(bytes([Verdict.OLDER])), 0.1)

    assert put_value.holders == 1


def test_where_contacts_are_often_dead_all_are_asked_at_once():
    put_value = placing(6, first=4)

    assert asked(put_value) == [1, 2, 3, 4]
    put_value.on_response(contact(4), KEPT, 0.1)
    put_value.on_response(contact(2), KEPT, 0.1)

    assert put_value.ready
    assert asked(put_value, at_leisure=True) == []


def test_nobody_is_asked_at_once_if_nobody_waits():
    put_value = placing(6, success=0, first=0)

    assert put_value.ready
    assert asked(put_value, at_leisure=True) == [1, 2, 3, 4]


def test_the_next_takes_the_place_of_a_peer_that_fails():
    put_value = placing(6)
    asked(put_value)

    put_value.on_failure(contact(1))

    assert asked(put_value) == [3]


def test_the_next_takes_the_place_of_a_peer_that_fails_at_leisure():
    put_value = placing(6, success=0, first=0)
    asked(put_value, at_leisure=True)

    put_value.on_failure(contact(2))

    assert asked(put_value, at_leisure=True) == [5]


def test_the_next_takes_the_place_of_a_peer_that_refuses():
    put_value = placing(6)
    asked(put_value)

    put_value.on_response(contact(1), Stored(bytes([Verdict.QUOTA])), 0.1)

    assert asked(put_value) == [3]
    assert put_value.refusals == [Verdict.QUOTA]


def test_a_slow_peer_is_not_waited_for_but_counts_when_it_answers():
    put_value = placing(6)
    asked(put_value)
    slow_s = put_value.next_deadline_s()

    put_value.on_deadline(slow_s)

    assert asked(put_value, slow_s) == [3, 4]
    put_value.on_response(contact(1), KEPT, 1.0)
    put_value.on_response(contact(3), KEPT, 1.0)
    assert put_value.ready


def test_a_peer_that_was_asked_later_is_slow_later():
    put_value = placing(6)
    asked(put_value)
    put_value.on_failure(contact(1))
    asked(put_value, 0.2)

    put_value.on_deadline(put_value.next_deadline_s())

    assert asked(put_value, 0.25) == [4]


def test_fewer_peers_than_replicas_are_all_that_is_needed():
    put_value = placing(1)
    asked(put_value)

    put_value.on_response(contact(1), KEPT, 0.1)

    assert put_value.finished


def test_it_ends_when_there_is_nobody_left():
    put_value = placing(2)
    asked(put_value)
    put_value.on_failure(contact(1))
    put_value.on_failure(contact(2))

    assert asked(put_value) == []
    assert put_value.finished
    assert put_value.ready
    assert put_value.holders == 0


def test_it_ends_when_patience_does():
    put_value = placing(6)
    asked(put_value)
    put_value.on_deadline(1.0)
    assert put_value.next_deadline_s() == 5.0

    put_value.on_deadline(5.0)

    assert put_value.finished
    assert asked(put_value, 5.0) == []


@pytest.mark.parametrize("reply", [Pong(), Stored(b"\0\0")])
def test_an_answer_to_another_question_is_a_breach(reply):
    put_value = placing(6)
    asked(put_value)

    with pytest.raises(BadMessage, match="does not answer Store"):
        put_value.on_response(contact(1), reply, 0.1)


def a_value(subkey: bytes = b"a", ttl_s: float = 300.0) -> Publication:
    return Publication(bytes(32), subkey, b"value", 1, ttl_s, 0.0)


def ours(**changes: int) -> Publisher:
    return Publisher(ALICE, DhtConfig(**changes), random.Random(1))  # type: ignore[arg-type]


def test_a_value_is_due_after_about_a_third_of_its_life():
    """At 100 s, 20 % earlier or later, so that nodes do not act in step."""
    values = ours()
    dues_s = []
    for i in range(50):
        value = a_value(bytes([i]))
        values.keep(value, 0.0)
        dues_s.append(value.due_s)

    assert all(80 <= due_s <= 120 for due_s in dues_s)
    assert max(dues_s) - min(dues_s) > 20
    assert values.next_deadline_s() == min(dues_s)
    assert values.due(79.0) == []


def test_what_is_due_is_due_again_later():
    values = ours()
    values.keep(a_value(), 0.0)

    assert values.due(150.0) == [a_value_of(values)]
    assert 230 <= values.next_deadline_s() <= 270


def a_value_of(values: Publisher) -> Publication:
    return next(iter(values._ours.values()))


def test_a_new_value_takes_the_place_of_the_old():
    values = ours()
    values.keep(a_value(), 0.0)
    values.keep(a_value(ttl_s=30.0), 0.0)

    assert values.next_deadline_s() <= 12


def test_a_withdrawn_value_is_published_no_more():
    values = ours()
    values.keep(a_value(), 0.0)

    values.withdraw(bytes(32), b"a")
    values.withdraw(bytes(32), b"unknown")

    assert values.due(1e9) == []
    assert values.next_deadline_s() is None


def test_more_values_than_any_peer_would_keep_are_refused():
    values = ours(records_per_publisher=1)
    values.keep(a_value(b"a"), 0.0)
    values.keep(a_value(b"a"), 0.0)

    with pytest.raises(ValueError, match="1 values are published already"):
        values.keep(a_value(b"b"), 0.0)


ALICE = Identity.generate(b"alice")
NOW_MS = 1_700_000_000_000
US = contact(int.from_bytes(OWN))


def a_publisher(config: DhtConfig = CONFIG) -> Publisher:
    return Publisher(ALICE, config, random.Random(1))


@pytest.mark.parametrize("ttl_s", [0.0, -1.0, 3600.1, float("nan")])
def test_a_time_to_live_that_no_peer_grants_is_our_callers_mistake(ttl_s):
    with pytest.raises(ValueError, match="a value lives up to 3600 s"):
        a_publisher().publication(KEY, b"", b"value", ttl_s, NOW_MS)


def test_sequence_numbers_rise_even_if_the_clock_does_not():
    publisher = a_publisher()
    clock_ms = [NOW_MS, NOW_MS, NOW_MS - 5, NOW_MS + 9]

    seqs = [publisher.publication(KEY, b"", b"v", 1.0, now_ms).seq for now_ms in clock_ms]

    assert seqs == [NOW_MS, NOW_MS + 1, NOW_MS + 2, NOW_MS + 9]


def test_a_record_lives_from_the_time_it_is_signed():
    publisher = a_publisher()
    publication = publisher.publication(KEY, b"s", b"value", 300.0, NOW_MS)

    first, again = publisher.sign(publication, NOW_MS), publisher.sign(publication, NOW_MS + 7)

    assert SignatureCache().holds(first)
    assert (first.seq, first.expires_ms) == (publication.seq, NOW_MS + 300_000)
    assert (again.seq, again.expires_ms) == (publication.seq, NOW_MS + 300_007)


def test_a_kept_publication_is_due_again():
    publisher = Publisher(ALICE, CONFIG, random.Random(1))
    publication = publisher.publication(KEY, b"", b"value", 300.0, NOW_MS)
    assert publisher.next_deadline_s() is None

    publisher.keep(publication, 10.0)

    assert publisher.due(200.0) == [publication]


def test_as_many_are_asked_at_once_as_success_needs():
    options = a_publisher().options(failure_share=0.0, spread=Spread.EVEN, waited_for=True)

    assert (options.success, options.first, options.replicas) == (5, 5, 8)


def test_where_contacts_are_often_dead_all_holders_are_asked_at_once():
    options = a_publisher().options(failure_share=0.06, spread=Spread.EVEN, waited_for=True)

    assert (options.success, options.first) == (5, 8)


def test_nobody_is_asked_at_once_if_nobody_waits_of_publisher():
    options = a_publisher().options(failure_share=1.0, spread=Spread.EVEN, waited_for=False)

    assert (options.success, options.first) == (0, 0)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ((1, 2), [1, 2, "us"]),
        ((1, 1 << 201), [1, "us", 1 << 201]),
        ((1 << 201,), ["us", 1 << 201]),
        ((), ["us"]),
    ],
)
def test_a_server_is_a_candidate_in_its_own_place(found, expected):
    candidates = a_publisher().candidates(KEY, contacts(*found), US)

    assert candidates == [US if each == "us" else contact(each) for each in expected]


def test_only_the_k_closest_are_candidates():
    """Ourselves only if we are one of them."""
    candidates = a_publisher().candidates(KEY, contacts(*range(1, 21)), US)

    assert candidates == contacts(*range(1, 21))


def test_a_client_is_no_candidate():
    client = a_publisher(DhtConfig(server=False))

    assert client.candidates(KEY, contacts(1, 2), US) == contacts(1, 2)


def placed(*verdicts: int) -> PutValue:
    """A put that so many peers have answered, each in its way."""
    options = PutOptions(replicas=8, success=5, first=8, patience_s=5.0)
    known = contacts(*range(1, len(verdicts) + 1))
    publisher = a_publisher()
    record = publisher.sign(publisher.publication(KEY, b"", b"v", 60.0, NOW_MS), NOW_MS)
    put_value = PutValue(record, known, options, TimeoutEstimator(CONFIG))
    put_value.drain(0.0)
    for each, verdict in zip(known, verdicts, strict=True):
        put_value.on_response(each, Stored(bytes([verdict])), 0.1)
    return put_value


def test_one_holder_is_success():
    assert holders_of(placed(Verdict.QUOTA, Verdict.KEPT, Verdict.EXPIRED), STRANGER) == 1


@pytest.mark.parametrize("verdict", [Verdict.EXPIRED, Verdict.FUTURE])
def test_a_wrong_clock_is_named(verdict):
    with pytest.raises(Unusable, match="set this machine's clock"):
        holders_of(placed(Verdict.QUOTA, verdict), STRANGER)


def test_a_shared_subkey_that_a_stranger_has_taken_is_named_with_the_remedy():
    """Its number is as high as it likes; whoever wrote before it must not think that it is kept."""
    with pytest.raises(Refused, match="another peer's value under this subkey is newer"):
        holders_of(placed(Verdict.OLDER, Verdict.OLDER, Verdict.FULL), STRANGER)


@pytest.mark.parametrize("verdict", [Verdict.EXPIRED, Verdict.FUTURE])
def test_a_wrong_clock_is_named_though_we_keep_the_value_ourselves(verdict):
    """By our own clock nothing is wrong; nobody else would believe the value."""
    put_value = placed(Verdict.KEPT, verdict, verdict)
    ourselves, *_ = put_value.held_by

    with pytest.raises(Unusable, match="set this machine's clock"):
        holders_of(put_value, ourselves.peer)
    assert holders_of(placed(Verdict.KEPT, Verdict.FULL), ourselves.peer) == 1


def test_refusals_are_named_once_each():
    with pytest.raises(Refused, match=r"no peer kept the value: FULL, QUOTA$"):
        holders_of(placed(Verdict.QUOTA, Verdict.FULL, Verdict.QUOTA, 255), STRANGER)


@pytest.mark.parametrize("verdicts", [(), (255,)], ids=["nobody", "an unknown verdict"])
def test_without_any_known_verdict_nobody_could_be_reached(verdicts):
    with pytest.raises(NoRoute, match="no peer could be reached"):
        holders_of(placed(*verdicts), STRANGER)


@pytest.mark.parametrize(
    ("spread", "replicas", "success"),
    [(Spread.EVEN, 8, 5), (Spread.DENSE, 20, 5), (Spread.CROWDED, REGION_MAX, REGION_SUCCESS)],
)
def test_the_closer_the_closest_stand_together_the_more_peers_hold_a_record(
    spread, replicas, success
):
    waited = a_publisher().options(failure_share=1.0, spread=spread, waited_for=True)
    again = a_publisher().options(failure_share=1.0, spread=spread, waited_for=False)

    assert (waited.replicas, waited.success) == (replicas, success)
    assert waited.success <= waited.first <= waited.replicas
    assert (again.replicas, again.success) == (replicas, 0)


BATCHES_MAX = 10
STORE_BATCHES_ALICE = Identity.generate(b"alice")
SMALL = BatchedRecord(sign(STORE_BATCHES_ALICE, KEY, b"", b"", 1, 1))
LARGE = BatchedRecord(sign(STORE_BATCHES_ALICE, KEY, b"", b"v" * 4096, 1, 1))


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
def test_an_answer_to_another_question_is_a_breach_of_store_batches(reply):
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
        if batcher.add(contact(number), BatchedRecord(value), now_s):
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
