"""Tests of `server/note_queue.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import LinkLost
from p2pswarm.run.messages.membership import Leaving, Ready
from p2pswarm.run.messages.trainers import SILENCE_S
from p2pswarm.server.note_queue import GradientReturns, NoteQueue, SignOfLife

SMALL = 100  # members


def test_notes_are_sent_in_the_order_they_were_made():
    notes = NoteQueue(0.0)
    notes.add(Ready(0, b""))
    notes.add(Leaving())

    assert notes.take(0.0) == Ready(0, b"")
    assert notes.take(0.0) == Leaving()
    assert notes.take(0.0) is None


def test_a_trainer_that_reads_nothing_is_lost_in_the_end():
    notes = NoteQueue(0.0, notes_max=2)
    notes.add(Leaving())
    notes.add(Leaving())

    with pytest.raises(LinkLost, match="does not read"):
        notes.add(Leaving())


def test_a_small_run_is_told_the_load_each_second():
    notes = NoteQueue(10.0, alive_every_s=9.0)

    assert notes.next_deadline_s() == 11.0
    assert notes.due(10.9, SMALL, 0.0) is None
    assert [notes.looks(10.9), notes.looks(11.5)] == [False, True]
    assert notes.due(11.5, SMALL, 0.0) is SignOfLife.LOAD
    assert notes.due(11.6, SMALL, 0.0) is None
    assert notes.next_deadline_s() == 12.5


@pytest.mark.parametrize(("members", "every_s"), [(100, 1), (200, 2), (1000, 10)])
def test_a_large_run_is_told_a_load_of_each_member_less_often(members, every_s):
    notes = NoteQueue(0.0)
    said = [notes.due(half / 2, members, 0.0) for half in range(62)]

    loads = [half / 2 for half, word in enumerate(said) if word is SignOfLife.LOAD]

    assert loads == list(range(1, 31, every_s))  # the first one at once
    assert said[1:].count(None) == 0, "it lives"


def test_who_hears_nothing_says_so_each_second_and_takes_it_back():
    notes = NoteQueue(0.0, alive_every_s=9.0)
    unheard_s = [0.0, 0.0, SILENCE_S - 0.1, SILENCE_S, SILENCE_S + 1, 0.0, 0.0, 0.0]

    said = [notes.due(second, 1000, for_s) for second, for_s in enumerate(unheard_s)]

    load = SignOfLife.LOAD
    assert said == [None, load, None, load, load, load, None, None]


def test_whoever_has_nothing_to_say_says_that_it_lives():
    notes = NoteQueue(0.0, alive_every_s=0.25)

    said = [notes.due(quarter / 4, SMALL, 0.0) for quarter in range(9)]

    words = [None, *[SignOfLife.ALIVE] * 3, SignOfLife.LOAD]
    assert said == [*words, *words[1:]]


def test_a_note_is_as_good_a_sign_of_life():
    notes = NoteQueue(0.0, alive_every_s=0.5)
    notes.add(Leaving())

    notes.take(0.4)

    assert notes.next_deadline_s() == 0.9
    assert notes.due(0.8, SMALL, 0.0) is None
    assert notes.due(0.9, SMALL, 0.0) is SignOfLife.ALIVE
    notes.add(Leaving())
    notes.take(0.95)
    assert notes.due(1.1, 1000, 0.0) is SignOfLife.LOAD
    notes.add(Leaving())
    notes.take(2.0)
    assert notes.due(2.1, 1000, 0.0) is None  # a look, and nothing to say
    assert notes.next_deadline_s() == 2.5


def test_nothing_is_known_before_a_gradient_came_or_is_overdue():
    returns = GradientReturns()
    assert returns.usual_s(5.0) == 0.0
    returns.left((0, 0), 5.0)

    assert returns.usual_s(5.0) == 0.0
    assert returns.usual_s(9.0) == 4.0


def test_a_road_that_is_shut_is_told_by_its_oldest():
    returns = GradientReturns()
    for number in range(20):
        returns.left((number, 0), 10.0 * number)
        returns.on_return((number, 0), 10.0 * number + 2.0)
    returns.left((20, 0), 200.0)
    returns.left((21, 0), 240.0)

    assert returns.usual_s(201.0) == 2.0
    assert returns.usual_s(250.0) == 50.0
    returns.drop([(20, 0)])
    assert returns.usual_s(250.0) == 10.0
    returns.drop(None)
    assert returns.usual_s(1e6) == 2.0


def test_gradients_of_strangers_change_nothing():
    returns = GradientReturns()
    returns.on_return((1, 0), 3.0)
    returns.drop([(1, 0)])

    assert returns.usual_s(3.0) == 0.0


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=50))
def test_what_is_told_lies_between_the_fastest_and_the_slowest(took_s):
    returns, now_s = GradientReturns(), 0.0
    for number, each_s in enumerate(took_s):
        returns.left((number, 0), now_s)
        now_s += each_s
        returns.on_return((number, 0), now_s)

    assert 0.999 * min(took_s) <= returns.usual_s(now_s) <= 1.001 * max(took_s)
