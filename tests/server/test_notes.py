"""What a server has to tell the trainer."""

import pytest

from p2pswarm.errors import LinkLost
from p2pswarm.server.notes import NoteQueue
from p2pswarm.swarm.messages.membership import Leaving, Ready


def test_notes_are_sent_in_the_order_they_were_made():
    notes = NoteQueue(0.0)
    notes.add(Ready(0, b""))
    notes.add(Leaving())

    assert notes.take() == Ready(0, b"")
    assert notes.take() == Leaving()
    assert notes.take() is None


def test_a_trainer_that_reads_nothing_is_lost_in_the_end():
    notes = NoteQueue(0.0, notes_max=2)
    notes.add(Leaving())
    notes.add(Leaving())

    with pytest.raises(LinkLost, match="does not read"):
        notes.add(Leaving())


def test_the_load_is_told_once_a_period():
    notes = NoteQueue(10.0, load_every_s=2.0)

    assert notes.next_deadline_s() == 12.0
    assert not notes.load_is_due(11.9)
    assert notes.load_is_due(12.5)
    assert not notes.load_is_due(12.6)
    assert notes.next_deadline_s() == 14.5
