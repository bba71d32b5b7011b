"""How many pieces of an averaging are on their way to a peer."""

import pytest

from p2pswarm.run.averaging.piece_lane import (
    LANE_BYTES,
    PIECES_LEAST,
    PIECES_MOST,
    PieceLane,
    parts_ahead,
)
from p2pswarm.run.averaging.shards import PIECE
from p2pswarm.run.messages.field_limits import GROUP_MAX

RAW_BYTES = 4 * PIECE
SMALL_BYTES = LANE_BYTES // PIECES_MOST


def placed(lane: PieceLane, size_bytes: int) -> int:
    """How many pieces of a size fit."""
    count = 0
    while lane.fits(size_bytes):
        lane.enter(size_bytes)
        count += 1
    return count


@pytest.mark.parametrize(
    ("size_bytes", "pieces"),
    [(RAW_BYTES, 4), (16 * RAW_BYTES, PIECES_LEAST), (SMALL_BYTES, 16), (1, PIECES_MOST)],
)
def test_small_pieces_are_more_at_a_time(size_bytes, pieces):
    assert placed(PieceLane(PIECES_MOST), size_bytes) == pieces


def test_a_lane_of_few_pieces_has_no_more_whatever_their_size():
    assert placed(PieceLane(2), 1) == 2


def test_a_piece_fits_when_another_has_left():
    lane = PieceLane(PIECES_MOST)
    placed(lane, RAW_BYTES)

    lane.leave(RAW_BYTES)

    assert lane.fits(RAW_BYTES)
    assert placed(lane, SMALL_BYTES) == RAW_BYTES // SMALL_BYTES


@pytest.mark.parametrize("members", range(1, GROUP_MAX + 1))
def test_the_parts_of_all_senders_have_a_bound_at_their_owner(members):
    ahead = parts_ahead(members)

    assert PIECES_LEAST <= ahead <= PIECES_MOST
    assert ahead * (members - 1) <= max(64, PIECES_LEAST * (members - 1))
