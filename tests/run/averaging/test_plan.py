"""Who reduces what."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.averaging.plan import (
    ALIGN,
    OWNERS_LEAST,
    SHARD_LEAST,
    Span,
    cut_at,
    pieces,
)


def owned(cut, members):
    """The elements of each member's shard."""
    return [sum(p.span.length for p in cut if p.owner == j) for j in range(members)]


@st.composite
def cuts(draw):
    members = draw(st.integers(1, 64))
    shares = draw(st.lists(st.integers(0, 1000), min_size=members, max_size=members).filter(any))
    return draw(st.integers(0, 20_000)), members, draw(st.integers(1, 5_000)), shares


@given(cuts())
def test_pieces_cover_everything_once_in_the_order_of_the_group(cut):
    length, members, piece, shares = cut
    made = pieces(length, members, piece, shares)

    ends = [0, *(p.span.stop for p in made)]
    assert ends[-1] == length
    assert [p.span.start for p in made] == ends[:-1]
    assert all(0 < p.span.length <= piece for p in made)
    assert [p.owner for p in made] == sorted(p.owner for p in made)


@given(cuts())
def test_shards_are_as_large_as_the_shares_and_cut_between_codec_blocks(cut):
    length, members, piece, shares = cut
    made = pieces(length, members, piece, shares)

    grain = ALIGN if members <= OWNERS_LEAST else -(-length // OWNERS_LEAST) + ALIGN
    for mine, share in zip(owned(made, members), shares, strict=True):
        assert abs(mine - length * share / sum(shares)) < 2 * grain
        assert share or not mine
    starts = {p.owner: p.span.start for p in reversed(made)}
    assert all(start % ALIGN == 0 for start in starts.values())


@given(st.integers(0, 8 * SHARD_LEAST), st.integers(OWNERS_LEAST + 1, 128), st.data())
def test_a_small_gradient_of_a_large_group_has_few_owners(length, members, data):
    """Each owner costs two streams with every other member."""
    shares = data.draw(st.lists(st.integers(0, 9), min_size=members, max_size=members).filter(any))
    for given_shares in ((), shares):
        owners = {p.owner for p in pieces(length, members, shares=given_shares)}
        assert len(owners) <= OWNERS_LEAST
    equal = {p.owner for p in pieces(length, members)}
    assert len(equal) >= min(OWNERS_LEAST // 2, length // (2 * ALIGN))


def test_all_of_a_large_group_own_shards_of_a_large_gradient():
    cut = pieces(100 * 3 * SHARD_LEAST, 100)

    assert set(owned(cut, 100)) == {3 * SHARD_LEAST}


@given(st.integers(0, 100_000), st.integers(1, 64))
def test_without_shares_the_shards_are_equal(length, members):
    cut = pieces(length, members)
    sizes = owned(cut, members)

    assert cut == pieces(length, members, shares=[7] * members)
    grain = ALIGN if members <= OWNERS_LEAST else -(-length // OWNERS_LEAST) + ALIGN
    assert max(sizes) - min(sizes) <= 2 * grain


def test_a_large_shard_comes_in_pieces():
    cut = pieces(10 * ALIGN, 2, piece=2 * ALIGN)

    assert [p.span.length // ALIGN for p in cut] == [2, 2, 1, 2, 2, 1]
    assert cut[3].owner == 1
    assert Span(2, 5).length == 3


@pytest.mark.parametrize(("length", "members", "piece"), [(-1, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_a_plan_for_nobody_is_our_own_mistake(length, members, piece):
    with pytest.raises(ValueError, match="members in pieces"):
        pieces(length, members, piece)


@pytest.mark.parametrize("shares", [(1,), (1, 2, 3), (0, 0), (2, -1)])
def test_shares_that_do_not_fit_the_members_are_our_own_mistake(shares):
    with pytest.raises(ValueError, match="shares"):
        pieces(1000, 2, shares=shares)


@given(cuts(), st.integers(0, 20_000))
def test_no_piece_reaches_across_a_cut_and_nothing_else_changes(cut, place):
    length, members, piece, shares = cut
    made = pieces(length, members, piece, shares)

    parted = tuple(cut_at(made, place))

    ends = [0, *(p.span.stop for p in parted)]
    assert [p.span.start for p in parted] == ends[:-1]
    assert not any(p.span.start < place < p.span.stop for p in parted)
    assert owned(parted, members) == owned(made, members)
    assert len(parted) - len(made) == any(p.span.start < place < p.span.stop for p in made)
