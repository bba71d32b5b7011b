"""Tests of `run/averaging/shards.py`."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p2pswarm.run.averaging.shards import (
    ALIGN,
    GAIN_LEAST,
    OWNERS_LEAST,
    RATE_MAX,
    ROUNDS,
    SHARD_LEAST,
    SHARE_LEAST,
    SHARE_UNIT,
    ShardShares,
    Span,
    cut_at,
    pieces,
    round_time,
    shares_by_bandwidth,
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


RATES = st.lists(st.floats(0.0, 1e12), min_size=1, max_size=64)
KNOWN = st.lists(st.floats(1.0, 100.0), min_size=3, max_size=16)
A, B, C, D = (bytes([n]) * 32 for n in range(4))
GROUP = A, B, C, D


def seconds(rates, shares):
    """How long each member's links are busy, in gradients per rate."""
    return [
        (1 + (len(rates) - 2) * share / sum(shares)) / rate
        for rate, share in zip(rates, shares, strict=True)
    ]


@given(RATES)
def test_shares_are_whole_numbers_whose_sum_is_the_whole(rates):
    shares = shares_by_bandwidth(rates)

    assert shares == () or (len(shares), sum(shares)) == (len(rates), SHARE_UNIT)
    assert all(0 <= share <= SHARE_UNIT for share in shares)
    assert pieces(1000, len(rates), shares=shares)


@given(KNOWN)
@example([1.0] * 4 + [6.0, 16.0, 17.0])  # one at the most that counts, one above it
def test_a_slower_member_never_reduces_more_and_one_below_the_mean_never_more_than_its_part(rates):
    shares = shares_by_bandwidth(rates)
    if not shares:
        return
    ranked = [share for _, share in sorted(zip(rates, shares, strict=True))]

    assert ranked == sorted(ranked)
    capped = [min(rate, RATE_MAX * sorted(rates)[len(rates) // 2]) for rate in rates]
    owners = [rate for rate, share in zip(capped, shares, strict=True) if share]
    if len(owners) == len(rates):
        slow = [
            s for r, s in zip(rates, shares, strict=True) if r < 0.99 * sum(capped) / len(rates)
        ]
        assert all(share <= SHARE_UNIT / len(rates) for share in slow)
    assert ranked[0] <= SHARE_UNIT / len(rates)


@given(KNOWN)
def test_a_share_is_never_below_the_floor_unless_none_ends_sooner(rates):
    shares = shares_by_bandwidth(rates)
    floor = SHARE_UNIT * SHARE_LEAST / len(rates)

    assert all(share == 0 or share > floor - 1 for share in shares)
    if 0 in shares:
        least = [share or int(floor) for share in shares]
        assert max(seconds(rates, shares)) <= max(seconds(rates, least))


@given(KNOWN)
def test_a_round_never_ends_later_than_with_equal_shares(rates):
    shares = shares_by_bandwidth(rates)

    assert round_time(shares, rates) <= 1.001 * round_time((), rates)


@given(st.lists(st.floats(1.0, 4.0), min_size=3, max_size=8))
def test_all_members_above_the_floor_are_done_at_the_same_time(rates):
    shares = shares_by_bandwidth(rates)
    floor = SHARE_UNIT * SHARE_LEAST / len(rates)
    if not shares:
        return

    busy_s = [s for s, share in zip(seconds(rates, shares), shares, strict=True) if share > floor]
    assert max(busy_s) == pytest.approx(min(busy_s), rel=0.01)


@given(st.floats(0.0, 1e15), st.integers(1, 64))
def test_equal_links_share_equally(rate, members):
    assert shares_by_bandwidth([rate] * members) == ()


@given(KNOWN, st.integers(1, 3))
def test_a_member_whose_rate_is_not_known_gets_an_equal_share(rates, newcomers):
    shares = shares_by_bandwidth([*rates, *[0.0] * newcomers])

    members = len(rates) + newcomers
    for share in shares[len(rates) :]:
        assert share == int(SHARE_UNIT / members)


def test_a_faster_link_reduces_more():
    shares = shares_by_bandwidth([100.0, 100.0, 100.0, 200.0])

    assert shares[0] == shares[1] == shares[2]
    assert shares[3] > 2 * shares[0]


def test_a_member_too_slow_for_its_own_parts_reduces_nothing():
    assert shares_by_bandwidth([100.0, 1.0, 100.0, 100.0])[1] == 0


def test_a_member_that_could_reduce_almost_the_least_reduces_the_least():
    shares = shares_by_bandwidth([100.0, 100.0, 100.0, 64.0])

    assert shares[3] == int(SHARE_UNIT * SHARE_LEAST / 4)


def test_a_member_gains_nothing_by_claiming_more_than_anybody_could_carry():
    most = shares_by_bandwidth([RATE_MAX * 10.0, 10.0, 10.0, 10.0, 10.0])

    assert shares_by_bandwidth([1e12, 10.0, 10.0, 10.0, 10.0]) == most


@pytest.mark.parametrize("rates", [[], [5.0], [1.0, 100.0], [0.0, 0.0, 0.0]])
def test_where_nothing_is_known_or_gained_the_shards_are_equal(rates):
    assert shares_by_bandwidth(rates) == ()


def measured(shares: ShardShares, *rates: float, stage: int = 0) -> ShardShares:
    for peer, rate in zip(GROUP, rates, strict=False):
        shares.measured(stage, peer, rate)
    return shares


def test_a_group_that_measured_nothing_shares_equally():
    assert ShardShares().of_group(0, GROUP) == ()


def test_a_slow_member_reduces_less_from_the_next_round_on():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)

    assert shares.of_group(0, GROUP) == shares_by_bandwidth([100.0, 100.0, 100.0, 25.0])
    assert shares.of_group(1, GROUP) == (), "another stage's members are others"


@given(st.lists(st.lists(st.floats(90.0, 107.0), min_size=4, max_size=4), max_size=8))
def test_links_that_differ_by_little_share_equally_round_after_round(rounds):
    shares = ShardShares()
    for rates in rounds:
        assert measured(shares, *rates).of_group(0, GROUP) == ()


@given(st.lists(st.lists(st.floats(1.0, 100.0), min_size=4, max_size=4), min_size=1, max_size=8))
def test_the_same_measurements_make_the_same_shares_and_never_much_worse_than_the_best(rounds):
    one, other = ShardShares(), ShardShares()
    for rates in rounds:
        measured(one, *rates)
        measured(other, *rates)

        assert one.of_group(0, GROUP) == other.of_group(0, GROUP)
    last = [sorted(each)[len(each) // 2] for each in zip(*rounds[-1:], strict=True)]
    if len(rounds) == 1:
        given_s = round_time(one.of_group(0, GROUP), last)
        assert given_s <= 1.001 * GAIN_LEAST * round_time(shares_by_bandwidth(last), last)


def test_one_bad_round_of_several_changes_nothing():
    shares = ShardShares()
    for _ in range(ROUNDS - 1):
        measured(shares, 100.0, 100.0, 100.0, 100.0)
    measured(shares, 100.0, 100.0, 100.0, 5.0)

    assert shares.of_group(0, GROUP) == ()


def test_shares_that_are_still_good_stay_although_others_would_be_a_little_better():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)
    given_first = shares.of_group(0, GROUP)
    measured(shares, 100.0, 100.0, 90.0, 27.0)

    assert shares.of_group(0, GROUP) == given_first


def test_a_link_that_is_fast_again_reduces_as_much_as_the_others_after_some_rounds():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)
    assert shares.of_group(0, GROUP)
    for _ in range(ROUNDS):
        measured(shares, 100.0, 100.0, 100.0, 100.0)

    assert shares.of_group(0, GROUP) == ()


def test_who_was_out_of_the_group_is_measured_anew():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)
    assert shares.of_group(0, GROUP[:3]) == ()

    assert shares.of_group(0, GROUP) == ()


def test_after_a_round_that_took_too_long_the_shares_are_equal():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)
    assert shares.of_group(0, GROUP)
    shares.forget()

    assert shares.of_group(0, GROUP) == ()


def test_a_round_too_short_to_measure_says_nothing():
    shares = measured(ShardShares(), 100.0, 100.0, 100.0, 25.0)
    before = shares.of_group(0, GROUP)

    assert measured(shares, 0.0, 0.0, 0.0, 0.0).of_group(0, GROUP) == before
