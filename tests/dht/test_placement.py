"""Placing a record: who is asked at once, who later, and when it is safe."""

import pytest
from dht.world import CONFIG, HOME, KEY, contact, contacts

from p2pswarm.crypto.identity import Identity
from p2pswarm.dht.messages import Pong, Store, Stored
from p2pswarm.dht.pace import Pace
from p2pswarm.dht.placement import Placement, Spread
from p2pswarm.dht.records import sign
from p2pswarm.dht.store import Verdict
from p2pswarm.errors import BadMessage

RECORD = sign(Identity.generate(b"alice"), KEY, b"", b"value", 1, 1_700_000_000_000)
KEPT = Stored(bytes([Verdict.KEPT]))


def placing(candidates: int, replicas: int = 4, success: int = 2, first: int = 2) -> Placement:
    spread = Spread(replicas=replicas, success=success, first=first, patience_s=5.0)
    known = contacts(*range(1, candidates + 1))
    return Placement(RECORD, HOME, known, spread, Pace(CONFIG))


def asked(placement: Placement, now_s: float = 0.0, *, at_leisure: bool = False) -> list[int]:
    """Whom it asks now, in order; all at once or all at leisure."""
    asks = placement.asks(now_s)
    assert all(ask.request == Store(HOME, (RECORD,)) for ask in asks)
    assert all(ask.at_leisure is at_leisure for ask in asks)
    return [int.from_bytes(ask.contact.peer.raw) for ask in asks if ask.contact.peer]


def test_the_closest_are_asked_at_once_and_the_rest_at_leisure():
    placement = placing(6)
    assert asked(placement) == [1, 2]
    placement.took(contact(1), KEPT, 0.1)
    assert asked(placement) == []
    assert not placement.ready

    placement.took(contact(2), KEPT, 0.1)

    assert placement.ready
    assert not placement.finished
    assert asked(placement, at_leisure=True) == [3, 4]
    placement.judged(contact(3), Verdict.SAME)
    placement.judged(contact(4), Verdict.OLDER)
    assert placement.finished
    assert placement.holders == 4


def test_where_contacts_are_often_dead_all_are_asked_at_once():
    placement = placing(6, first=4)

    assert asked(placement) == [1, 2, 3, 4]
    placement.took(contact(4), KEPT, 0.1)
    placement.took(contact(2), KEPT, 0.1)

    assert placement.ready
    assert asked(placement, at_leisure=True) == []


def test_nobody_is_asked_at_once_if_nobody_waits():
    placement = placing(6, success=0, first=0)

    assert placement.ready
    assert asked(placement, at_leisure=True) == [1, 2, 3, 4]


def test_the_next_takes_the_place_of_one_who_fails():
    placement = placing(6)
    asked(placement)

    placement.failed(contact(1))

    assert asked(placement) == [3]


def test_the_next_takes_the_place_of_one_who_fails_at_leisure():
    placement = placing(6, success=0, first=0)
    asked(placement, at_leisure=True)

    placement.failed(contact(2))

    assert asked(placement, at_leisure=True) == [5]


def test_the_next_takes_the_place_of_one_who_refuses():
    placement = placing(6)
    asked(placement)

    placement.took(contact(1), Stored(bytes([Verdict.QUOTA])), 0.1)

    assert asked(placement) == [3]
    assert placement.refusals == [Verdict.QUOTA]


def test_who_is_slow_is_not_waited_for_but_counts_when_he_answers():
    placement = placing(6)
    asked(placement)
    slow_s = placement.next_deadline_s()

    placement.on_deadline(slow_s)

    assert asked(placement, slow_s) == [3, 4]
    placement.took(contact(1), KEPT, 1.0)
    placement.took(contact(3), KEPT, 1.0)
    assert placement.ready


def test_whoever_was_asked_later_is_slow_later():
    placement = placing(6)
    asked(placement)
    placement.failed(contact(1))
    asked(placement, 0.2)

    placement.on_deadline(placement.next_deadline_s())

    assert asked(placement, 0.25) == [4]


def test_fewer_peers_than_replicas_are_all_that_is_needed():
    placement = placing(1)
    asked(placement)

    placement.took(contact(1), KEPT, 0.1)

    assert placement.finished


def test_it_ends_when_there_is_nobody_left():
    placement = placing(2)
    asked(placement)
    placement.failed(contact(1))
    placement.failed(contact(2))

    assert asked(placement) == []
    assert placement.finished
    assert placement.ready
    assert placement.holders == 0


def test_it_ends_when_patience_does():
    placement = placing(6)
    asked(placement)
    placement.on_deadline(1.0)
    assert placement.next_deadline_s() == 5.0

    placement.on_deadline(5.0)

    assert placement.finished
    assert asked(placement, 5.0) == []


@pytest.mark.parametrize("reply", [Pong(), Stored(b"\0\0")])
def test_an_answer_to_another_question_is_a_breach(reply):
    placement = placing(6)
    asked(placement)

    with pytest.raises(BadMessage, match="no answer to Store"):
        placement.took(contact(1), reply, 0.1)
