"""Where rows begin: anywhere, or in groups that are read once for many rows."""

from bisect import bisect_right
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.row_places import SHIPPED, PlaceLimits, RowPlaces

MIB = 1 << 20


def places(groups, limits=SHIPPED, seed=1, row_bytes=1025):
    return RowPlaces(groups[-1], groups, seed=seed, row_shape=(4, row_bytes), limits=limits)


def equal_groups(count, size):
    return [number * size for number in range(count + 1)]


def test_where_nothing_is_read_whole_a_row_begins_anywhere():
    anywhere = RowPlaces(10**9, (), seed=1, row_shape=(4, 1025), limits=SHIPPED)

    found = [anywhere.place("train", number) for number in range(400)]
    assert len(set(found)) == 400
    assert 0.4e9 < sum(found) / 400 < 0.6e9
    assert anywhere.shape == ""
    assert anywhere.rows_of(anywhere.visit(17)) == range(17, 18)


@pytest.mark.parametrize(
    ("group_mib", "opened", "each"), [(1, 16, 1), (3, 16, 3), (128, 4, 128), (2048, 1, 2048)]
)
def test_reading_costs_about_a_mebibyte_a_row_however_large_groups_are(group_mib, opened, each):
    found = places(equal_groups(40, group_mib * MIB))

    assert (found.open, found.each) == (opened, each)
    assert (found.shape == "") is (each == 1)


def test_rows_that_are_kept_are_few_where_they_are_long():
    found = places(equal_groups(40, 128 * MIB), row_bytes=4 * 32_769)

    assert found.open * found.each * 4 * 32_769 <= 16 * MIB
    assert places(equal_groups(9, 128 * MIB), row_bytes=100 * MIB).each == 1


LIMITS = st.builds(
    PlaceLimits,
    read_bytes=st.integers(1, 200),
    open_bytes=st.integers(1, 5000),
    kept_bytes=st.integers(1, 10**6),
)


@given(st.lists(st.integers(1, 500), min_size=1, max_size=9), LIMITS, st.integers(0, 3000))
def test_each_row_is_in_one_pass_and_begins_in_the_group_of_the_others(sizes, limits, number):
    groups = [0]
    for size in sizes:
        groups.append(groups[-1] + size)
    found = places(groups, limits, row_bytes=41)

    together = found.rows_of(found.visit(number))
    assert number in together
    assert {found.visit(each) for each in together} == {found.visit(number)}
    assert len(together) <= found.each
    begun = [found.place("train", each) for each in together]
    assert all(0 <= place < groups[-1] for place in begun)
    assert len({bisect_right(groups, place) for place in begun}) == 1


def test_groups_are_left_one_after_another():
    found = places(equal_groups(50, 100), PlaceLimits(read_bytes=10, open_bytes=500))
    assert (found.open, found.each) == (5, 10)

    visits = [[found.visit(turn * 5 + slot)[1] for slot in range(5)] for turn in range(40)]
    left = [sum(a != b for a, b in zip(*two, strict=True)) for two in pairwise(visits)]
    assert max(left) == 1


def test_every_byte_is_as_likely_to_begin_a_row():
    """By the share of rows in each part of the text, of uneven groups."""
    groups = [0, 100, 150, 400, 1000]
    found = places(groups, PlaceLimits(read_bytes=50, open_bytes=600))
    assert found.each > 1

    counts = Counter(found.place("train", number) // 100 for number in range(20_000))
    assert all(1700 < counts[part] < 2300 for part in range(10))
