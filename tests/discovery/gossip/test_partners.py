"""With whom the next exchange is."""

import random
from collections import Counter

import pytest
from discovery.gossip.harness import (
    ADDRESSES,
    LIFE_S,
    PEERS,
    contact,
    directory,
    record,
    stranger,
)

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.partners import (
    AVOIDED_S,
    ENTRIES_MAX,
    HOST_AVOIDED_S,
    PARTNERS_MAX,
    REFUSED_S,
    Outcome,
    Partners,
)
from p2pswarm.net.os.addresses import Scope

ROUNDS = 8


def partners(least: Scope = Scope.PRIVATE) -> Partners:
    return Partners(contact("alice"), least, random.Random(1))


def asked(some: Partners, here, now_s: float = 0.0, rounds: int = 50 * ROUNDS) -> Counter:
    return Counter(some.next(here, now_s) for _ in range(rounds))


def test_who_knows_nobody_asks_nobody():
    assert asked(partners(), directory()) == {None: 50 * ROUNDS}


def test_a_newcomer_asks_its_entry_points_and_never_itself():
    some = partners()
    some.enter_through([contact("bob"), contact("alice"), Contact(None, ADDRESSES["eve"])])

    assert set(asked(some, directory(record("alice")))) == {contact("bob")}


def test_entry_points_are_bounded():
    some = partners()
    some.enter_through(
        Contact(stranger(n, "10.0.0.1").peer, Address("10.0.0.1", 1 + n)) for n in range(100)
    )

    assert len(asked(some, directory(), rounds=10_000)) == ENTRIES_MAX


def test_most_rounds_are_with_partners_and_some_with_anybody():
    crowd = [stranger(n, f"10.0.1.{n}") for n in range(100)]
    here, some = directory(*crowd), partners()
    for each in crowd[: PARTNERS_MAX + 3]:
        some.ended(some.contact(each), Outcome.ANSWERED, here, 0.0)

    count = asked(some, here)

    assert len(some.present) == PARTNERS_MAX
    often = sum(count[partner] for partner in some.present)
    assert 5 / 8 <= often / (50 * ROUNDS) < 6 / 8
    assert len(count) > 60


def test_a_partner_that_does_not_answer_is_none_any_more_and_is_left_alone_for_a_while():
    here, some = directory(record("bob"), record("carol")), partners()
    some.ended(contact("bob"), Outcome.ANSWERED, here, 0.0)

    some.ended(contact("bob"), Outcome.SILENT, here, 0.0)

    assert set(asked(some, here, AVOIDED_S - 1)) - {None} == {contact("carol")}
    assert set(asked(some, here, AVOIDED_S)) == {contact("bob"), contact("carol")}


def test_a_host_where_a_stranger_was_not_found_is_left_alone_whoever_names_it():
    victim = "10.0.7.7"
    liars = [stranger(n, victim) for n in range(20)]
    here, some = directory(*liars), partners()

    first = some.next(here, 0.0)
    some.ended(first, Outcome.SILENT, here, 0.0)

    assert asked(some, here, HOST_AVOIDED_S - 1) == {None: 50 * ROUNDS}
    assert None not in asked(some, here, HOST_AVOIDED_S)


def test_who_says_no_is_there_and_is_asked_again_soon():
    here, some = directory(record("bob"), record("carol")), partners()

    some.ended(contact("bob"), Outcome.REFUSED, here, 0.0)

    assert here.was_met(PEERS["bob"].peer_id)
    assert set(asked(some, here, REFUSED_S - 1)) - {None} == {contact("carol")}
    assert set(asked(some, here, REFUSED_S)) == {contact("bob"), contact("carol")}


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.SILENT])
def test_an_entry_point_is_asked_again_if_there_is_nobody_else(outcome):
    here, some = directory(record("alice"), record("bob")), partners()
    some.enter_through([contact("bob")])

    some.ended(contact("bob"), outcome, here, 0.0)

    assert asked(some, here, 1.0) == {contact("bob"): 50 * ROUNDS}


def test_who_was_lost_is_asked_in_one_round_of_eight_and_who_was_lost_last_in_every_second():
    here = directory(*[stranger(n, f"10.0.1.{n}") for n in range(30)])
    for each in here.present():
        here.met(each.peer)
    here.on_deadline(LIFE_S)
    last = record("eve", lives_s=10)
    here.take(last, 0.0, LIFE_S)
    here.on_deadline(LIFE_S + 10)
    here.take(record("bob"), 0.0, LIFE_S + 10)
    some = partners()

    count = asked(some, here, LIFE_S + 11, 80 * ROUNDS)

    assert count.pop(contact("bob")) == 7 * 80
    assert 40 <= count[contact("eve")] <= 45
    assert sum(count.values()) == 80


def test_the_lost_one_of_two_is_asked_within_eight_rounds():
    here, some = directory(record("alice"), record("bob")), partners()
    some.ended(contact("bob"), Outcome.ANSWERED, here, 0.0)
    some.ended(contact("bob"), Outcome.SILENT, here, 20.0)
    here.on_deadline(LIFE_S)

    assert contact("bob") in asked(some, here, LIFE_S + 1, ROUNDS)


def test_who_has_left_is_asked_by_nobody():
    here = directory(record("bob", left=True))

    assert asked(partners(), here) == {None: 50 * ROUNDS}


def test_addresses_of_too_small_a_scope_are_not_dialled():
    assert asked(partners(Scope.PUBLIC), directory(record("bob"))) == {None: 50 * ROUNDS}
