"""Finding peers: a lookup that asks `Find`."""

import pytest
from dht.world import HOME, KEY, a_lookup, contact, raw

from p2pswarm.dht.messages import Find, Found, Pong, circle
from p2pswarm.dht.quest import Ask
from p2pswarm.dht.search import Search
from p2pswarm.errors import BadMessage


def found(*numbers: int) -> Found:
    return Found(circle([(raw(number), HOME) for number in numbers]))


def test_it_asks_and_learns():
    search = Search(a_lookup(10), HOME)
    assert search.asks(0.0) == [Ask(contact(10), Find(HOME, KEY))]

    search.took(contact(10), found(5), 0.1)

    assert search.asks(0.1) == [Ask(contact(5), Find(HOME, KEY))]
    search.took(contact(5), found(), 0.2)
    assert search.asks(0.2) == []
    assert search.finished
    assert search.ready


def test_who_fails_is_passed_over():
    search = Search(a_lookup(10, 20), HOME)
    search.asks(0.0)

    search.failed(contact(10))
    search.took(contact(20), found(), 0.1)
    search.asks(0.1)

    assert search.lookup.closest(5) == [contact(20)]


def test_an_answer_to_another_question_is_a_breach():
    search = Search(a_lookup(10), HOME)
    search.asks(0.0)

    with pytest.raises(BadMessage, match="Pong is no answer to Find"):
        search.took(contact(10), Pong(), 0.1)


def test_a_newcomer_is_ready_after_the_first_round():
    search = Search(a_lookup(10, 20), HOME, first_round=2)
    search.asks(0.0)
    search.took(contact(10), found(1, 2, 3), 0.1)
    assert not search.ready

    search.on_deadline(search.next_deadline_s())

    assert search.ready
    assert not search.finished
