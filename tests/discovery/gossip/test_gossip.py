"""Tests of `discovery/gossip/gossip.py`."""

import random
from collections import Counter

import pytest
from discovery.gossip.harness import (
    ADDRESSES,
    LIFE_S,
    OTHER_RUN,
    PEERS,
    RUN,
    SERVING,
    card,
    contact,
    directory,
    member,
    names,
    record,
    stranger,
)

from p2pswarm.base.errors import BadMessage, Busy, Refused
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.gossip.gossip import (
    ALL_BURST,
    ALL_EVERY_S,
    ASKING_MAX,
    AVOIDED_S,
    CALLERS_MAX,
    EACH_BURST,
    EACH_EVERY_S,
    ENTRIES_MAX,
    HOST_AVOIDED_S,
    PARTNERS_MAX,
    REFUSED_S,
    Exchange,
    Gossip,
    Outcome,
    Partners,
)
from p2pswarm.discovery.gossip.messages import AgedRecord, Compare, Compared, Deliver, SignedRecord
from p2pswarm.discovery.gossip.record import RoleKind
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
        some.on_outcome(some.contact(each), Outcome.ANSWERED, here, 0.0)

    count = asked(some, here)

    assert len(some.present) == PARTNERS_MAX
    often = sum(count[partner] for partner in some.present)
    assert 5 / 8 <= often / (50 * ROUNDS) < 6 / 8
    assert len(count) > 60


def test_a_partner_that_does_not_answer_is_none_any_more_and_is_left_alone_for_a_while():
    here, some = directory(record("bob"), record("carol")), partners()
    some.on_outcome(contact("bob"), Outcome.ANSWERED, here, 0.0)

    some.on_outcome(contact("bob"), Outcome.SILENT, here, 0.0)

    assert set(asked(some, here, AVOIDED_S - 1)) - {None} == {contact("carol")}
    assert set(asked(some, here, AVOIDED_S)) == {contact("bob"), contact("carol")}


def test_a_host_where_a_stranger_was_not_found_is_left_alone_whoever_names_it():
    victim = "10.0.7.7"
    liars = [stranger(n, victim) for n in range(20)]
    here, some = directory(*liars), partners()

    first = some.next(here, 0.0)
    some.on_outcome(first, Outcome.SILENT, here, 0.0)

    assert asked(some, here, HOST_AVOIDED_S - 1) == {None: 50 * ROUNDS}
    assert None not in asked(some, here, HOST_AVOIDED_S)


def test_who_says_no_is_there_and_is_asked_again_soon():
    here, some = directory(record("bob"), record("carol")), partners()

    some.on_outcome(contact("bob"), Outcome.REFUSED, here, 0.0)

    assert here.reached(PEERS["bob"].peer_id)
    assert set(asked(some, here, REFUSED_S - 1)) - {None} == {contact("carol")}
    assert set(asked(some, here, REFUSED_S)) == {contact("bob"), contact("carol")}


@pytest.mark.parametrize("outcome", [Outcome.REFUSED, Outcome.SILENT])
def test_an_entry_point_is_asked_again_if_there_is_nobody_else(outcome):
    here, some = directory(record("alice"), record("bob")), partners()
    some.enter_through([contact("bob")])

    some.on_outcome(contact("bob"), outcome, here, 0.0)

    assert asked(some, here, 1.0) == {contact("bob"): 50 * ROUNDS}


def test_who_was_lost_is_asked_in_one_round_of_eight_and_who_was_lost_last_in_every_second():
    here = directory(*[stranger(n, f"10.0.1.{n}") for n in range(30)])
    for each in here.present():
        here.on_contact(each.peer)
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
    some.on_outcome(contact("bob"), Outcome.ANSWERED, here, 0.0)
    some.on_outcome(contact("bob"), Outcome.SILENT, here, 20.0)
    here.on_deadline(LIFE_S)

    assert contact("bob") in asked(some, here, LIFE_S + 1, ROUNDS)


def test_who_has_left_is_asked_by_nobody():
    here = directory(record("bob", left=True))

    assert asked(partners(), here) == {None: 50 * ROUNDS}


def test_addresses_of_too_small_a_scope_are_not_dialled():
    assert asked(partners(Scope.PUBLIC), directory(record("bob"))) == {None: 50 * ROUNDS}


EMPTY = Compare(RUN, bytes(8), b"\xff" * 8, b"")


def told(*records) -> Deliver:
    return Deliver(RUN, tuple(AgedRecord(each.signed, 0.0) for each in records))


def exchange(asker: str, made: Gossip, other: Gossip, now_s: float) -> None:
    ask = made.drain(card(asker), now_s, 1)
    assert ask is not None
    reply = other.on_compare(PEERS[asker].peer_id, ask.question, now_s)
    back = made.on_answer(reply, now_s)
    if back is not None:
        other.on_deliver(PEERS[asker].peer_id, back, now_s)
    made.on_outcome(ask, Outcome.ANSWERED, now_s)


def test_two_members_know_each_other_after_one_exchange():
    alice, bob = member("alice"), member("bob")
    bob.drain(card("bob"), 0.0, 1)
    alice.partners.enter_through([contact("bob")])

    exchange("alice", alice, bob, 0.0)

    assert names(alice.directory.present()) == names(bob.directory.present()) == {"alice", "bob"}
    assert alice.take_change()
    assert not alice.take_change()


def test_rounds_are_a_second_apart():
    alice = member("alice")
    alice.partners.enter_through([contact("bob")])

    assert isinstance(alice.drain(card("alice"), 0.0, 1), Exchange)
    assert alice.drain(card("alice"), 0.5, 1) is None
    assert 0.8 <= alice.next_deadline_s() <= 1.2


def test_members_who_do_not_answer_hold_up_only_so_many_rounds():
    alice = member("alice")
    alice.partners.enter_through([contact("bob")])

    asks = [alice.drain(card("alice"), 2.0 * n, 1) for n in range(ASKING_MAX + 2)]

    assert [ask is not None for ask in asks] == [True] * ASKING_MAX + [False] * 2
    alice.on_outcome(asks[0], Outcome.SILENT, 20.0)
    assert alice.drain(card("alice"), 20.0, 1) is not None


def test_a_record_of_another_run_or_forged_is_a_breach_of_whoever_brings_it():
    alice = member("alice")
    forged = SignedRecord(record("bob").signed.body, record("bob", 2).signed.signature)

    with pytest.raises(BadMessage, match="another run"):
        alice.on_deliver(PEERS["eve"].peer_id, told(record("bob", run=OTHER_RUN)), 0.0)
    with pytest.raises(BadMessage, match="did not sign"):
        alice.on_deliver(PEERS["eve"].peer_id, Deliver(RUN, (AgedRecord(forged, 0.0),)), 1.0)
    with pytest.raises(BadMessage, match="does not answer Compare"):
        alice.on_answer(told(), 1.0)
    assert alice.directory.present() == []


def test_who_asks_too_often_is_refused_and_another_is_not():
    alice, eve, bob = member("alice"), PEERS["eve"].peer_id, PEERS["bob"].peer_id
    for _ in range(EACH_BURST):
        alice.on_compare(eve, EMPTY, 0.0)

    with pytest.raises(Busy):
        alice.on_compare(eve, EMPTY, 0.0)
    alice.on_compare(bob, EMPTY, 0.0)
    alice.on_compare(eve, EMPTY, EACH_EVERY_S)


def test_many_who_ask_are_refused_together_and_no_more_of_them_than_so_many_are_remembered():
    alice, refused = member("alice"), 0
    for number in range(2 * CALLERS_MAX):
        try:
            alice.on_compare(stranger(number, "10.0.0.1").peer, EMPTY, 0.0)
        except Busy:
            refused += 1

    assert refused == 2 * CALLERS_MAX - ALL_BURST
    assert len(alice._callers) <= CALLERS_MAX
    alice.on_compare(PEERS["bob"].peer_id, EMPTY, ALL_EVERY_S)


def test_a_stranger_to_a_closed_run_gets_nothing_and_brings_nothing():
    alice = member("alice", lambda peer: peer != PEERS["eve"].peer_id)
    alice.drain(card("alice"), 0.0, 1)

    with pytest.raises(Refused, match="only members"):
        alice.on_compare(PEERS["eve"].peer_id, EMPTY, 0.0)
    alice.on_deliver(PEERS["bob"].peer_id, told(record("eve"), record("bob")), 0.0)
    assert names(alice.directory.present()) == {"alice", "bob"}


def test_our_own_old_record_makes_us_sign_a_newer_one():
    alice = member("alice")
    alice.drain(card("alice"), 0.0, 1000)

    alice.on_deliver(PEERS["bob"].peer_id, told(record("alice", 8000)), 0.0)
    alice.drain(card("alice"), 1.0, 1000)

    (own,) = alice.directory.present()
    assert own.version == 8001


def test_who_leaves_tells_its_partners_and_is_gone_from_their_directories():
    alice, bob = member("alice"), member("bob")
    bob.drain(card("bob"), 0.0, 1)
    alice.partners.enter_through([contact("bob")])
    exchange("alice", alice, bob, 0.0)

    whom, last = alice.farewell(card("alice"), 2.0, 5)
    bob.on_deliver(PEERS["alice"].peer_id, last, 2.0)

    assert whom == [contact("bob")]
    assert names(bob.directory.present()) == {"bob"}


def test_who_has_said_nothing_or_its_last_word_has_no_farewell_to_say():
    alice = member("alice")
    assert alice.farewell(card("alice"), 0.0, 1) == ([], Deliver(RUN, ()))

    alice.own.set_role(SERVING)
    alice.drain(card("alice"), 1.0, 1)
    alice.own.withdraw(RoleKind.SERVER)
    alice.drain(card("alice"), 3.0, 1)
    assert alice.farewell(card("alice"), 0.0, 1) == ([], Deliver(RUN, ()))


def test_an_answer_of_rubbish_asks_for_nothing():
    alice = member("alice")
    alice.drain(card("alice"), 0.0, 1)

    assert alice.on_answer(Compared((), bytes(8 * 3)), 1.0) is None
