"""One member's part: what it asks and answers, and whom it refuses."""

import pytest
from discovery.gossip.harness import (
    OTHER_RUN,
    PEERS,
    RUN,
    SERVING,
    card,
    contact,
    member,
    names,
    record,
    stranger,
)

from p2pswarm.base.errors import BadMessage, Busy, Refused
from p2pswarm.discovery.gossip.gossip import (
    ALL_BURST,
    ALL_EVERY_S,
    ASKING_MAX,
    CALLERS_MAX,
    EACH_BURST,
    EACH_EVERY_S,
    Exchange,
    Gossip,
)
from p2pswarm.discovery.gossip.messages import AgedRecord, Compare, Compared, Deliver, SignedRecord
from p2pswarm.discovery.gossip.partners import Outcome
from p2pswarm.discovery.gossip.record import RunRole

EMPTY = Compare(RUN, bytes(8), b"\xff" * 8, b"")


def told(*records) -> Deliver:
    return Deliver(RUN, tuple(AgedRecord(each.signed, 0.0) for each in records))


def exchange(asker: str, made: Gossip, other: Gossip, now_s: float) -> None:
    ask = made.poll(card(asker), now_s, 1)
    assert ask is not None
    reply = other.compare(PEERS[asker].peer_id, ask.question, now_s)
    back = made.answered(reply, now_s)
    if back is not None:
        other.deliver(PEERS[asker].peer_id, back, now_s)
    made.ended(ask, Outcome.ANSWERED, now_s)


def test_two_members_know_each_other_after_one_exchange():
    alice, bob = member("alice"), member("bob")
    bob.poll(card("bob"), 0.0, 1)
    alice.partners.enter_through([contact("bob")])

    exchange("alice", alice, bob, 0.0)

    assert names(alice.directory.present()) == names(bob.directory.present()) == {"alice", "bob"}
    assert alice.news()
    assert not alice.news()


def test_rounds_are_a_second_apart():
    alice = member("alice")
    alice.partners.enter_through([contact("bob")])

    assert isinstance(alice.poll(card("alice"), 0.0, 1), Exchange)
    assert alice.poll(card("alice"), 0.5, 1) is None
    assert 0.8 <= alice.next_deadline_s() <= 1.2


def test_members_who_do_not_answer_hold_up_only_so_many_rounds():
    alice = member("alice")
    alice.partners.enter_through([contact("bob")])

    asks = [alice.poll(card("alice"), 2.0 * n, 1) for n in range(ASKING_MAX + 2)]

    assert [ask is not None for ask in asks] == [True] * ASKING_MAX + [False] * 2
    alice.ended(asks[0], Outcome.SILENT, 20.0)
    assert alice.poll(card("alice"), 20.0, 1) is not None


def test_a_record_of_another_run_or_forged_is_a_breach_of_whoever_brings_it():
    alice = member("alice")
    forged = SignedRecord(record("bob").signed.body, record("bob", 2).signed.signature)

    with pytest.raises(BadMessage, match="another run"):
        alice.deliver(PEERS["eve"].peer_id, told(record("bob", run=OTHER_RUN)), 0.0)
    with pytest.raises(BadMessage, match="did not sign"):
        alice.deliver(PEERS["eve"].peer_id, Deliver(RUN, (AgedRecord(forged, 0.0),)), 1.0)
    with pytest.raises(BadMessage, match="does not answer Compare"):
        alice.answered(told(), 1.0)
    assert alice.directory.present() == []


def test_who_asks_too_often_is_refused_and_another_is_not():
    alice, eve, bob = member("alice"), PEERS["eve"].peer_id, PEERS["bob"].peer_id
    for _ in range(EACH_BURST):
        alice.compare(eve, EMPTY, 0.0)

    with pytest.raises(Busy):
        alice.compare(eve, EMPTY, 0.0)
    alice.compare(bob, EMPTY, 0.0)
    alice.compare(eve, EMPTY, EACH_EVERY_S)


def test_many_who_ask_are_refused_together_and_no_more_of_them_than_so_many_are_remembered():
    alice, refused = member("alice"), 0
    for number in range(2 * CALLERS_MAX):
        try:
            alice.compare(stranger(number, "10.0.0.1").peer, EMPTY, 0.0)
        except Busy:
            refused += 1

    assert refused == 2 * CALLERS_MAX - ALL_BURST
    assert len(alice._callers) <= CALLERS_MAX
    alice.compare(PEERS["bob"].peer_id, EMPTY, ALL_EVERY_S)


def test_a_stranger_to_a_closed_run_gets_nothing_and_brings_nothing():
    alice = member("alice", lambda peer: peer != PEERS["eve"].peer_id)
    alice.poll(card("alice"), 0.0, 1)

    with pytest.raises(Refused, match="only members"):
        alice.compare(PEERS["eve"].peer_id, EMPTY, 0.0)
    alice.deliver(PEERS["bob"].peer_id, told(record("eve"), record("bob")), 0.0)
    assert names(alice.directory.present()) == {"alice", "bob"}


def test_our_own_old_record_makes_us_sign_a_newer_one():
    alice = member("alice")
    alice.poll(card("alice"), 0.0, 1000)

    alice.deliver(PEERS["bob"].peer_id, told(record("alice", 8000)), 0.0)
    alice.poll(card("alice"), 1.0, 1000)

    (own,) = alice.directory.present()
    assert own.version == 8001


def test_who_leaves_tells_its_partners_and_is_gone_from_their_directories():
    alice, bob = member("alice"), member("bob")
    bob.poll(card("bob"), 0.0, 1)
    alice.partners.enter_through([contact("bob")])
    exchange("alice", alice, bob, 0.0)

    whom, last = alice.farewell(card("alice"), 2.0, 5)
    bob.deliver(PEERS["alice"].peer_id, last, 2.0)

    assert whom == [contact("bob")]
    assert names(bob.directory.present()) == {"bob"}


def test_who_has_said_nothing_or_its_last_word_has_no_farewell_to_say():
    alice = member("alice")
    assert alice.farewell(card("alice"), 0.0, 1) == ([], Deliver(RUN, ()))

    alice.stand(SERVING)
    alice.poll(card("alice"), 1.0, 1)
    alice.withdraw(RunRole.SERVER)
    alice.poll(card("alice"), 3.0, 1)
    assert alice.farewell(card("alice"), 0.0, 1) == ([], Deliver(RUN, ()))


def test_an_answer_of_rubbish_asks_for_nothing():
    alice = member("alice")
    alice.poll(card("alice"), 0.0, 1)

    assert alice.answered(Compared((), bytes(8 * 3)), 1.0) is None
