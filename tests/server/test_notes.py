"""What a server has to tell the trainer."""

import pytest

from p2pswarm.base.errors import LinkLost
from p2pswarm.run.messages.membership import Leaving, Ready
from p2pswarm.run.messages.trainers import SILENCE_S
from p2pswarm.server.notes import NoteQueue, SignOfLife

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
