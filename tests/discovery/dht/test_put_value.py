"""Placing a record: who is asked at once, who later, and when it is safe."""

import pytest
from discovery.dht.harness import CONFIG, KEY, contact, contacts

from p2pswarm.base.errors import BadMessage
from p2pswarm.discovery.dht.messages import Pong, Store, Stored
from p2pswarm.discovery.dht.put_value import PutOptions, PutValue
from p2pswarm.discovery.dht.record_store import Verdict
from p2pswarm.discovery.dht.records import sign
from p2pswarm.discovery.dht.timeouts import TimeoutEstimator
from p2pswarm.net.crypto.identity import Identity

RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
KEPT = Stored(bytes([Verdict.KEPT]))


def placing(candidates: int, replicas: int = 4, success: int = 2, first: int = 2) -> PutValue:
    options = PutOptions(replicas=replicas, success=success, first=first, patience_s=5.0)
    known = contacts(*range(1, candidates + 1))
    return PutValue(RECORD, known, options, TimeoutEstimator(CONFIG))


def asked(put_value: PutValue, now_s: float = 0.0, *, at_leisure: bool = False) -> list[int]:
    """Whom it asks now, in order; all at once or all at leisure."""
    asks = put_value.poll(now_s)
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
    put_value.poll(0.0)

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
