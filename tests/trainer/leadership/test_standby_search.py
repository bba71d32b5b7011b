"""Whom a standby asks: everybody in turn, and at once the one that is named."""

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.trainer.leadership.standby_search import HINTS_MAX, StandbySearch

A, B, C = (Contact(PeerId(name * 32), Address("h", 1)) for name in (b"a", b"b", b"c"))


def test_all_are_asked_in_turn_and_then_there_is_a_pause():
    search = StandbySearch()

    assert [search.ask([A, B]) for _ in range(4)] == [A, B, None, A]


def test_the_one_that_is_named_is_asked_at_once():
    search = StandbySearch()
    search.ask([A, B])
    search.hint(C)
    search.hint(None)

    assert [search.ask([A, B]) for _ in range(2)] == [C, B]


def test_trainers_that_name_each_other_send_a_standby_round_no_circle():
    search = StandbySearch()
    asked = []
    for _ in range(20):
        asked.append(search.ask([A]))
        search.hint(B)
        if asked[-1] is None:
            break

    assert asked == [A, *[B] * HINTS_MAX, None]


def test_once_the_coordinator_was_found_all_begins_anew():
    search = StandbySearch()
    search.ask([A, B])
    search.found()

    assert search.ask([A, B]) == A
