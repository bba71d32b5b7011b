"""Finding peers: a lookup that asks `Find`."""

import pytest
from discovery.dht.harness import HOME, KEY, a_lookup, contact, raw, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.discovery.dht.find_node import FindNode
from p2pswarm.discovery.dht.messages import Find, Found, Pong
from p2pswarm.discovery.dht.query import QueryRequest


def found(*numbers: int) -> Found:
    return Found(told([(raw(number), HOME) for number in numbers]))


def test_it_asks_and_learns():
    search = FindNode(a_lookup(10))
    assert search.poll(0.0) == [QueryRequest(contact(10), Find(KEY))]

    search.on_response(contact(10), found(5), 0.1)

    assert search.poll(0.1) == [QueryRequest(contact(5), Find(KEY))]
    search.on_response(contact(5), found(), 0.2)
    assert search.poll(0.2) == []
    assert search.finished
    assert search.ready


def test_a_peer_that_fails_is_passed_over():
    search = FindNode(a_lookup(10, 20))
    search.poll(0.0)

    search.on_failure(contact(10))
    search.on_response(contact(20), found(), 0.1)
    search.poll(0.1)

    assert search.lookup.closest(5) == [contact(20)]


def test_an_answer_to_another_question_is_a_breach():
    search = FindNode(a_lookup(10))
    search.poll(0.0)

    with pytest.raises(BadMessage, match="Pong does not answer Find"):
        search.on_response(contact(10), Pong(), 0.1)


def test_a_newcomer_is_ready_after_the_first_round():
    search = FindNode(a_lookup(10, 20), first_round=2)
    search.poll(0.0)
    search.on_response(contact(10), found(1, 2, 3), 0.1)
    assert not search.ready

    search.on_deadline(search.next_deadline_s())

    assert search.ready
    assert not search.finished
