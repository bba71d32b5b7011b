"""What a server has to tell the trainer."""

import pytest

from p2pswarm.errors import LinkLost
from p2pswarm.server.notes import NoteQueue, SignOfLife
from p2pswarm.swarm.messages.membership import Leaving, Ready


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


def test_the_load_is_told_once_a_period():
    notes = NoteQueue(10.0, load_every_s=2.0, alive_every_s=9.0)

    assert notes.next_deadline_s() == 12.0
    assert notes.due(11.9) is None
    assert notes.due(12.5) is SignOfLife.LOAD
    assert notes.due(12.6) is None
    assert notes.next_deadline_s() == 14.5


def test_whoever_has_nothing_to_say_says_that_it_lives():
    notes = NoteQueue(0.0, load_every_s=2.0, alive_every_s=0.5)

    said = [notes.due(half / 2) for half in range(9)]

    words = [None, *[SignOfLife.ALIVE] * 3, SignOfLife.LOAD]
    assert said == [*words, *words[1:]]


def test_a_note_is_as_good_a_sign_of_life():
    notes = NoteQueue(0.0, load_every_s=2.0, alive_every_s=0.5)
    notes.add(Leaving())

    notes.take(0.4)

    assert notes.next_deadline_s() == 0.9
    assert notes.due(0.8) is None
    assert notes.due(0.9) is SignOfLife.ALIVE
    assert notes.take(1.0) is None
    assert notes.next_deadline_s() == 1.4
