"""Tests of `discovery/gossip/directory.py`."""

import random
from itertools import pairwise

import pytest
from core import examples
from discovery.gossip.harness import (
    LIFE_S,
    NAMES,
    PEERS,
    READER,
    RUN,
    SERVING,
    TRAINING,
    content,
    directory,
    exchange,
    give,
    names,
    record,
    stranger,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.discovery.gossip.directory import (
    NOWHERE,
    PER_NEAR_NET,
    PER_WIDE_NET,
    RECORDS_BYTES_MAX,
    REMEMBERED_S,
    Acceptance,
    Directory,
    Slots,
    networks,
)
from p2pswarm.discovery.gossip.messages import (
    DIGEST_ENTRIES_MAX,
    ENTRY_BYTES,
    FIGURES_MAX,
    PREFIX_BYTES,
    RECORDS_MAX,
    ROLES_MAX,
    Compare,
    Compared,
    Figure,
    RunRole,
)
from p2pswarm.net.wire.message import encode


def test_a_small_network_has_so_many_places_and_the_next_one_has_others():
    slots = Slots()
    here = [slots.enter(stranger(n, f"5.5.5.{n % 250}"))[0] for n in range(PER_NEAR_NET + 10)]

    assert sum(here) == PER_NEAR_NET
    assert slots.enter(stranger(999, "5.5.6.1")) == (True, None)


def test_a_wide_network_has_so_many_places():
    slots = Slots()
    here = [slots.enter(stranger(n, f"5.5.{n % 250}.1"))[0] for n in range(PER_WIDE_NET + 10)]

    assert sum(here) == PER_WIDE_NET
    assert slots.enter(stranger(999, "5.6.6.1")) == (True, None)


def test_a_private_network_has_no_limit_of_its_own():
    slots = Slots()

    assert all(slots.enter(stranger(n, "10.0.0.1"))[0] for n in range(PER_NEAR_NET + 10))


def test_names_of_one_owner_are_one_network_and_those_who_only_dial_are_another():
    assert networks("a.b.example.org") == networks("c.example.org") == ("example.org",) * 2
    assert networks("laptop") == ("", "laptop")
    assert networks("") == (NOWHERE, NOWHERE)
    assert networks("2001:db8::1")[0] == ""  # for documents: nobody dials it
    assert networks("2600:1:2:3::1") == ("2600:1:2::/48", "2600:1::/32")


def test_a_newcomer_takes_the_place_of_the_largest_network_that_was_never_met():
    slots = Slots(4)
    crowd = [stranger(n, f"5.5.5.{n}") for n in range(3)]
    lone = stranger(10, "6.6.6.6")
    for each in (*crowd, lone):
        assert slots.enter(each) == (True, None)

    assert slots.enter(stranger(11, "7.7.7.7")) == (True, crowd[0].prefix)
    assert slots.enter(stranger(12, "5.5.5.77")) == (False, None), "its own network is the largest"


def test_who_was_met_keeps_its_place():
    slots = Slots(2)
    crowd = [stranger(n, f"5.5.5.{n}") for n in range(2)]
    for each in crowd:
        slots.enter(each)
        slots.on_contact(each.prefix)

    assert slots.reached(crowd[0].prefix)
    assert slots.enter(stranger(11, "7.7.7.7")) == (False, None)
    slots.on_death(crowd[1].prefix)
    assert slots.enter(stranger(11, "7.7.7.7")) == (True, crowd[1].prefix)


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(["enter", "leave", "met", "lost"]))))
def test_counts_are_those_of_whoever_is_there(steps):
    slots, here = Slots(8), set()
    for number, step in steps:
        each = stranger(number, f"{5 + number % 3}.5.5.{number}")
        if step == "enter" and each.prefix not in here:
            entered, victim = slots.enter(each)
            here.discard(victim)
            if entered:
                here.add(each.prefix)
        elif each.prefix in here:
            if step == "leave":
                slots.leave(each.prefix)
                here.discard(each.prefix)
            elif step == "met":
                slots.on_contact(each.prefix)
            elif step == "lost":
                slots.on_death(each.prefix)
        assert len(slots) == len(here) <= 8
        for counts in (slots._wide, slots._near):
            assert sum(counts[network] for network in counts) == len(here)
        assert {p for unmet in slots._unmet.values() for p in unmet} <= here
        assert set(slots._lost) <= here


SAID = [
    record(name, version, standing, left=left)
    for name in NAMES
    for version in (1, 2, 3)
    for standing, left in ((SERVING, False), (TRAINING, False), (SERVING, True))
]
"""Each peer makes several records of one version, too, as no honest one does."""
orders = st.lists(st.sampled_from(SAID), max_size=60)


def whole() -> Directory:
    return directory(*SAID)


@given(orders)
def test_the_newest_record_counts_in_whatever_order_and_however_often_they_come(some):
    made, again = directory(*some), directory(*reversed(some), *some)

    assert content(made) == content(again)
    for each in some:
        here = made.get(each.peer)
        assert here is not None
        assert not each.beats(here)


@given(orders)
def test_a_version_never_goes_back(some):
    made, newest = directory(), {}
    for each in some:
        made.take(each, 0.0, 0.0)
        before, here = newest.get(each.peer), made.get(each.peer)
        assert here is not None
        assert before is None or here is before or here.beats(before)
        newest[each.peer] = here


@settings(max_examples=examples(50))
@given(
    st.lists(orders, min_size=2, max_size=5),
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.booleans()), max_size=30),
    st.integers(0, 1000),
)
def test_directories_become_one_after_any_exchanges_of_which_some_are_lost(begun, pairs, seed):
    """At last each exchanges with its neighbour, there and back: then all are equal."""
    every = [directory(*some, seed=seed + at) for at, some in enumerate(begun)]
    for a, b, lost in pairs:
        asker, other = every[a % len(every)], every[b % len(every)]
        answer = other.answer(asker.question(RUN), 0.0)
        if not lost:
            give(asker, answer, 0.0)  # what the other lacks is never delivered
    row = list(pairwise(every))
    for a, b in (*row, *reversed(row)):
        exchange(a, b)

    assert all(content(each) == content(every[0]) for each in every)
    assert content(every[0]) == content(directory(*[each for some in begun for each in some]))


def test_who_has_everything_is_told_nothing():
    a, b = whole(), whole()

    assert b.answer(a.question(RUN), 0.0) == Compared((), b"")


def test_each_side_gets_what_it_lacks():
    a = directory(record("alice", 2), record("bob", 1))
    b = directory(record("alice", 1), record("bob", 2), record("carol"))

    exchange(a, b)

    assert content(a) == content(b)
    assert {each.peer: each.version for each in a.present()} == {
        PEERS["alice"].peer_id: 2,
        PEERS["bob"].peer_id: 2,
        PEERS["carol"].peer_id: 1,
    }


def test_two_records_of_one_version_end_as_one():
    a, b = directory(record("alice", 1, SERVING)), directory(record("alice", 1, TRAINING))

    exchange(a, b)

    assert content(a) == content(b)


# Life


def test_a_record_dies_after_its_life_wherever_it_has_been():
    made, late = directory(record("alice")), directory()

    exchange(late, made, now_s=LIFE_S - 10)

    assert late.on_deadline(LIFE_S - 1) == []
    assert names(late.on_deadline(LIFE_S)) == {"alice"}
    assert names(made.on_deadline(LIFE_S)) == {"alice"}
    assert late.present() == []
    assert names(late.missing()) == {"alice"}


def test_what_has_died_is_not_passed_on_and_does_not_come_back_by_its_old_record():
    a, b = directory(record("alice")), directory(record("alice"), record("bob", 1))
    a.on_deadline(LIFE_S)

    assert a.take(record("alice"), 0.0, LIFE_S + 1) is Acceptance.KNOWN
    assert a.present() == []
    assert a.question(RUN).digest == b""
    b.on_deadline(LIFE_S)
    exchange(a, b, now_s=LIFE_S + 1)
    assert a.present() == []


def test_who_comes_back_has_a_newer_record():
    made = directory(record("alice", 1))
    made.on_deadline(LIFE_S)

    assert made.take(record("alice", 2), 0.0, LIFE_S + 1) is Acceptance.NEWS
    assert names(made.present()) == {"alice"}
    assert made.missing() == []


def test_a_liar_lets_a_record_live_no_longer_than_its_life_after_it_was_first_seen():
    made = directory()
    made.take(record("alice"), 50.0, 0.0)

    assert made.take(record("alice"), 0.0, 5.0) is Acceptance.KNOWN

    assert made.on_deadline(LIFE_S - 1) == []
    assert names(made.on_deadline(LIFE_S)) == {"alice"}


def test_a_record_that_a_liar_called_old_lives_again_when_another_brings_it():
    made = directory()
    made.take(record("alice"), LIFE_S - 1, 0.0)
    made.on_deadline(1.0)
    assert made.present() == []

    assert made.take(record("alice"), 5.0, 3.0) is Acceptance.NEWS

    assert names(made.present()) == {"alice"}
    assert made.on_deadline(LIFE_S - 4) == []
    assert names(made.on_deadline(LIFE_S - 1)) == {"alice"}


def test_a_record_as_old_as_its_life_is_no_news():
    made = directory()

    assert made.take(record("alice"), LIFE_S, 0.0) is Acceptance.DEAD
    assert len(made) == 0


def test_who_has_left_is_seen_by_nobody_and_its_older_records_never_count_again():
    made = directory(record("alice", 1), record("bob", 1))

    assert made.take(record("alice", 2, left=True), 0.0, 10.0) is Acceptance.NEWS

    assert names(made.present()) == {"bob"}
    assert made.take(record("alice", 1), 0.0, 11.0) is Acceptance.KNOWN
    assert made.on_deadline(10.0 + LIFE_S) == [record_of(made, "bob")]
    assert made.missing() == [record_of(made, "bob")]
    assert made.take(record("alice", 1), 0.0, 1000.0) is Acceptance.KNOWN


def record_of(made: Directory, name: str):
    return next(each for each in made.missing() if each.peer == PEERS[name].peer_id)


def test_what_was_lost_is_forgotten_after_an_hour():
    made = directory(record("alice"))
    made.on_deadline(LIFE_S)

    made.on_deadline(LIFE_S + REMEMBERED_S - 1)
    assert names(made.missing()) == {"alice"}
    made.on_deadline(LIFE_S + REMEMBERED_S)
    assert made.missing() == []
    assert made.next_deadline_s() == float("inf")


@given(st.lists(st.tuples(st.sampled_from(SAID), st.floats(0, LIFE_S), st.floats(0, 500))))
def test_nothing_that_counts_is_past_its_life(told):
    made, first_s = directory(), {}
    for each, age_s, now_s in sorted(told, key=lambda one: one[2]):
        made.on_deadline(now_s)
        if made.take(each, age_s, now_s) is Acceptance.NEWS:
            first_s.setdefault(each.signed, now_s)
        made.on_deadline(now_s)
        for here in made.present():
            assert now_s <= first_s[here.signed] + LIFE_S


# Messages


def many(count: int) -> list:
    return [stranger(number, f"10.0.{number >> 8}.{number & 255}") for number in range(count)]


def test_a_message_has_as_much_as_fits_and_two_get_different_parts():
    full = directory(*many(200))
    newcomers = [directory(seed=seed) for seed in (1, 2)]

    answers = [full.answer(each.question(RUN), 0.0) for each in newcomers]

    for answer in answers:
        assert len(answer.records) == RECORDS_MAX
        assert len(encode(answer)) <= RECORDS_BYTES_MAX
    assert answers[0].records != answers[1].records


def test_large_records_are_fewer_in_a_message():
    numbers = tuple(Figure(key, 0.5) for key in range(FIGURES_MAX))
    loaded = [RunRole(role, 1, 0, numbers) for role in range(ROLES_MAX)]
    large = [stranger(n, f"10.0.0.{n}", 1, *loaded) for n in range(60)]

    told = directory(*large).answer(directory().question(RUN), 0.0)

    assert 30 < len(told.records) < 60
    assert len(encode(told)) <= RECORDS_BYTES_MAX


def test_unknown_records_go_first_and_then_those_that_lie_furthest_behind():
    a = directory(record("alice", 100), record("bob", 2000), record("carol", 5))
    b = directory(record("alice", 99), record("bob", 3))

    answer = a.answer(b.question(RUN), 0.0)

    assert [names([READER.read(one.record)]) for one in answer.records] == [
        {"carol"},
        {"bob"},
        {"alice"},
    ]


def test_a_directory_that_is_too_large_for_one_digest_is_compared_in_parts():
    full = directory(*many(DIGEST_ENTRIES_MAX + 300))
    asked = directory(*many(DIGEST_ENTRIES_MAX + 300))
    newest = stranger(5, "10.0.0.5", version=2)
    asked.take(newest, 0.0, 0.0)

    rounds = 0
    while (here := full.get(newest.peer)) is None or here.version == 1:
        question = full.question(RUN)
        assert len(question.digest) == DIGEST_ENTRIES_MAX * ENTRY_BYTES
        answer = asked.answer(question, 0.0)
        assert len(answer.records) <= 1, "what lies outside of the part is not sent"
        give(full, answer, 0.0)
        rounds += 1
        assert rounds < 50


@given(st.binary(max_size=40 * ENTRY_BYTES), st.binary(min_size=16, max_size=16))
def test_a_digest_of_rubbish_is_answered_within_the_limits(data, ends):
    made = whole()
    digest = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]

    answer = made.answer(Compare(RUN, ends[:PREFIX_BYTES], ends[PREFIX_BYTES:], digest), 0.0)

    assert len(encode(answer)) < RECORDS_BYTES_MAX
    assert len(answer.wanted) <= len(digest)
    made.records([answer.wanted[:PREFIX_BYTES]], 0.0)


@pytest.mark.parametrize("count", [0, 1, 200])
def test_the_answer_does_not_depend_on_the_order_of_a_set(count):
    first, second = (
        directory(*many(count), seed=3).answer(directory(*many(count // 2)).question(RUN), 0.0)
        for _ in range(2)
    )

    assert first == second


# Slots


def test_who_is_not_admitted_has_no_place():
    closed = Directory(random.Random(1), lambda peer: peer == PEERS["alice"].peer_id)

    assert closed.take(record("alice"), 0.0, 0.0) is Acceptance.NEWS
    assert closed.take(record("bob"), 0.0, 0.0) is Acceptance.REFUSED
    assert names(closed.present()) == {"alice"}


@settings(max_examples=examples(20), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 4), st.booleans()), max_size=150))
def test_a_directory_never_has_more_records_than_places(told):
    made, clock = Directory(random.Random(1), slots=10), 0.0
    for number, version, met in told:
        each = stranger(number, f"{20 + number % 7}.{number % 3}.0.{1 + number}", version)
        made.take(each, 0.0, clock)
        if met:
            made.on_contact(each.peer)
        clock += 5.0
        made.on_deadline(clock)
        assert len(made._entries) <= 10
        assert len(made._slots) == len(made._entries)
        assert len(made) + len(made.missing()) == len(made._entries)
