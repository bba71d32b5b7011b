"""A program that reads slowly loses the oldest events, and never the end."""

from p2pswarm.api.event_queue import EventQueue
from p2pswarm.progress.events import Ended, MicrobatchCounts, Note


def note(number: int) -> Note:
    return Note(str(number))


ENDED = Ended(2, "all steps are done", False, 3.0, MicrobatchCounts(4, 4, 0), seconds=1.0)


def test_events_are_taken_in_their_order():
    queue = EventQueue()
    queue.put(note(1))
    queue.put(note(2))

    taken = [queue.take(), queue.take(), queue.take()]

    assert taken == [note(1), note(2), None]
    assert queue.lost == 0


def test_nothing_comes_after_the_end_was_taken():
    queue = EventQueue()
    queue.put(note(1))
    queue.put(ENDED)

    queue.take()
    before = queue.finished
    last = queue.take()

    assert not before
    assert last == ENDED
    assert queue.finished
    assert queue.take() is None
    assert queue.finished


def test_oldest_event_goes_when_too_many_wait():
    queue = EventQueue(waiting_max=2)
    for number in (1, 2):
        queue.put(note(number))
    before = queue.lost

    queue.put(ENDED)

    assert (before, queue.lost) == (0, 1)
    assert [queue.take(), queue.take()] == [note(2), ENDED]
