"""The pieces of a download."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.state.pieces import PieceTracker, StatePiece


def all_asked(pieces):
    asked = []
    while (piece := pieces.ask()) is not None:
        asked.append(piece)
    return asked


@given(st.integers(1, 10_000), st.integers(1, 3_000))
def test_pieces_cover_the_snapshot_once_in_order(nbytes, size):
    asked = all_asked(PieceTracker(nbytes, size))

    ends = [0, *(p.offset + p.nbytes for p in asked)]
    assert ends[-1] == nbytes
    assert [p.offset for p in asked] == ends[:-1]
    assert all(0 < p.nbytes <= size for p in asked)


def test_a_download_is_complete_when_every_piece_has_come():
    pieces = PieceTracker(25, 10)
    asked = all_asked(pieces)
    for piece in reversed(asked):
        assert not pieces.complete
        pieces.came(piece)

    assert pieces.complete


def test_what_a_lost_donor_was_asked_for_is_asked_for_again_and_nothing_else():
    pieces = PieceTracker(40, 10)
    first, second = pieces.ask(), pieces.ask()
    pieces.came(second)
    pieces.give_up()

    assert all_asked(pieces) == [first, StatePiece(20, 10), StatePiece(30, 10)]


def test_a_piece_that_was_not_asked_for_is_our_own_mistake():
    pieces = PieceTracker(40, 10)
    with pytest.raises(ValueError, match="not asked for"):
        pieces.came(StatePiece(0, 10))


@pytest.mark.parametrize(("nbytes", "size"), [(0, 1), (1, 0)])
def test_an_empty_snapshot_is_our_own_mistake(nbytes, size):
    with pytest.raises(ValueError, match="in pieces of"):
        PieceTracker(nbytes, size)
