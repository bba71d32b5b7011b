"""Who reduces what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.allreduce.plan import ALIGN, Span, pieces


@given(st.integers(0, 20_000), st.integers(1, 64), st.integers(1, 5_000))
def test_pieces_cover_everything_once_in_the_order_of_the_group(length, members, piece):
    cut = pieces(length, members, piece)

    ends = [0, *(p.span.stop for p in cut)]
    assert ends[-1] == length
    assert [p.span.start for p in cut] == ends[:-1]
    assert all(0 < p.span.length <= piece for p in cut)
    assert [p.owner for p in cut] == sorted(p.owner for p in cut)


@given(st.integers(0, 100_000), st.integers(1, 64))
def test_shards_are_about_equal_and_cut_between_codec_blocks(length, members):
    owned = [0] * members
    for piece in pieces(length, members):
        assert piece.span.start % ALIGN == 0
        owned[piece.owner] += piece.span.length

    assert max(owned) - min(owned) <= 2 * ALIGN


def test_a_large_shard_comes_in_pieces():
    cut = pieces(10 * ALIGN, 2, piece=2 * ALIGN)

    assert [p.span.length // ALIGN for p in cut] == [2, 2, 1, 2, 2, 1]
    assert cut[3].owner == 1
    assert Span(2, 5).length == 3


@pytest.mark.parametrize(("length", "members", "piece"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_plan_for_nobody_is_our_own_mistake(length, members, piece):
    with pytest.raises(ValueError, match="members in pieces"):
        pieces(length, members, piece)
