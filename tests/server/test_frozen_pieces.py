"""Which pieces of a version must be saved, or copied, before a commit changes the weights."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.server.frozen_pieces import FrozenPieces


def read(rules: FrozenPieces, count: int) -> None:
    for _ in range(count):
        rules.begin()
        rules.end()


def test_pieces_come_in_order_and_one_at_a_time():
    rules = FrozenPieces([5, 5, 2], window_bytes=4)

    numbers = []
    while (number := rules.begin()) is not None:
        assert rules.reading
        numbers.append(number)
        rules.end()

    assert numbers == [0, 1, 2]
    assert rules.over


def test_what_is_left_may_be_copied_once_it_fits_the_window():
    rules = FrozenPieces([5, 5, 2], window_bytes=7)
    assert not rules.fits

    read(rules, 1)

    assert rules.fits
    assert list(rules.left) == [1, 2]
    assert not rules.over


def test_while_what_is_left_is_copied_no_piece_is_begun():
    rules = FrozenPieces([5, 5, 2], window_bytes=7)
    read(rules, 1)

    rules.close()
    assert rules.must_wait
    rules.copied()

    assert not rules.must_wait
    assert rules.over  # the weights may change: the rest is read from the copy
    assert [rules.begin(), rules.begin(), rules.begin()] == [1, 2, None]
    assert not rules.reading


def test_a_commit_that_comes_with_the_last_piece_leaves_nothing_to_copy():
    rules = FrozenPieces([5], window_bytes=1)
    rules.begin()
    assert rules.fits
    assert not rules.over

    rules.close()
    rules.end()
    assert rules.over
    rules.copied()

    assert not rules.must_wait
    assert rules.begin() is None


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=12),
    st.integers(0, 30),
    st.lists(st.booleans(), max_size=60),
)
def test_no_piece_is_read_from_weights_that_have_changed(sizes, window, turns):
    """A writer and a commit take turns as chance has it; the commit changes the weights once."""
    rules, versions, begun, changed, closed = FrozenPieces(sizes, window), [], None, False, False
    copied: set[int] = set()
    for writer in [*turns, *[True, False] * 40]:
        if writer and begun is not None:
            versions.append((begun, begun in copied or not changed))
            rules.end()
            begun = None
        elif writer and not rules.must_wait:
            begun = rules.begin()
        elif not writer and not changed:
            if rules.over:
                changed = True
            elif not closed and rules.fits:
                rules.close()
                closed = True
            elif closed and not rules.reading:
                copied = set(rules.left)
                assert sum(sizes[number] for number in copied) <= window
                rules.copied()
                changed = True

    assert versions == [(number, True) for number in range(len(sizes))]
    assert changed
