"""One averaging at a time, early pieces in line, slow newcomers counted."""

import pytest

from p2pswarm.base.errors import Busy, NotServing
from p2pswarm.run.averaging.round import Round, RoundAdmission, RoundId
from p2pswarm.run.messages.step import Reduce

ME = b"a" * 32


def round_of(step: int, generation: int) -> Round:
    return Round(Reduce(b"r" * 16, step, generation, 1, b"", (ME,), ()), ME, 1000)


def test_a_newer_order_ends_the_older():
    admission, older, newer = RoundAdmission(), round_of(0, 1), round_of(0, 2)

    assert admission.begin(older) is None
    assert admission.begin(newer) is older
    admission.end(older)
    assert admission.find(newer.turn) is newer


@pytest.mark.parametrize("turn", [(0, 2), (0, 1)])
def test_an_order_comes_once_and_never_after_a_newer(turn):
    admission = RoundAdmission()
    admission.begin(round_of(0, 2))

    with pytest.raises(NotServing, match="comes after"):
        admission.begin(round_of(*turn))


def test_a_piece_waits_for_its_order_and_not_after_it():
    admission, round_ = RoundAdmission(), round_of(0, 1)

    assert admission.find(round_.turn) is None
    admission.begin(round_)
    assert admission.find(round_.turn) is round_
    admission.end(round_)
    with pytest.raises(NotServing, match="over"):
        admission.find(round_.turn)


def test_a_piece_of_an_older_averaging_is_refused():
    admission = RoundAdmission()
    admission.begin(round_of(1, 2))

    with pytest.raises(NotServing, match="step 1, generation 1 is over"):
        admission.find(RoundId(1, 1))


def test_only_so_many_pieces_wait():
    admission = RoundAdmission(early_max=1)
    admission.enter_early()

    with pytest.raises(Busy):
        admission.enter_early()
    admission.leave_early()
    admission.enter_early()


def test_only_so_many_pieces_are_under_way_to_newcomers():
    admission = RoundAdmission(observed_max=1)

    assert [admission.enter_observed(), admission.enter_observed()] == [True, False]
    admission.leave_observed()
    assert admission.enter_observed()
