"""One averaging at a time, early pieces in line, slow newcomers counted."""

import pytest

from p2pswarm.base.errors import Busy, NotServing
from p2pswarm.run.averaging.round import Round, RoundId
from p2pswarm.run.averaging.turns import Turns
from p2pswarm.run.messages.step import Reduce

ME = b"a" * 32


def round_of(step: int, generation: int) -> Round:
    return Round(Reduce(b"r" * 16, step, generation, 1, b"", (ME,), ()), ME, 1000)


def test_a_newer_order_ends_the_older():
    turns, older, newer = Turns(), round_of(0, 1), round_of(0, 2)

    assert turns.begin(older) is None
    assert turns.begin(newer) is older
    turns.end(older)
    assert turns.find(newer.turn) is newer


@pytest.mark.parametrize("turn", [(0, 2), (0, 1)])
def test_an_order_comes_once_and_never_after_a_newer(turn):
    turns = Turns()
    turns.begin(round_of(0, 2))

    with pytest.raises(NotServing, match="comes after"):
        turns.begin(round_of(*turn))


def test_a_piece_waits_for_its_order_and_not_after_it():
    turns, round_ = Turns(), round_of(0, 1)

    assert turns.find(round_.turn) is None
    turns.begin(round_)
    assert turns.find(round_.turn) is round_
    turns.end(round_)
    with pytest.raises(NotServing, match="over"):
        turns.find(round_.turn)


def test_a_piece_of_an_older_averaging_is_refused():
    turns = Turns()
    turns.begin(round_of(1, 2))

    with pytest.raises(NotServing, match="step 1, generation 1 is over"):
        turns.find(RoundId(1, 1))


def test_only_so_many_pieces_wait():
    turns = Turns(early_max=1)
    turns.wait_early()

    with pytest.raises(Busy):
        turns.wait_early()
    turns.waited()
    turns.wait_early()


def test_only_so_many_pieces_are_under_way_to_newcomers():
    turns = Turns(observed_max=1)

    assert [turns.serve_observer(), turns.serve_observer()] == [True, False]
    turns.served_observer()
    assert turns.serve_observer()
