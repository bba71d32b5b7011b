"""Several texts with weights: which row comes from which of them, by the row's number alone."""

from collections import Counter
from fractions import Fraction
from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.samples.corpus import Corpus, held_out_passes
from p2pswarm.data.samples.epoch_corpus import ordered
from p2pswarm.data.samples.mixture import PERIOD, JoinedText, MixtureOrder, mixed, shares

END = 0
WEIGHTS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=8)


def text(token: int, length: int = 400, each: int = 7, sequence: int = 8) -> Corpus:
    """A text of one token, in documents of `each` with the end; so a row says whence it came."""
    tokens = np.array([END if place % each == each - 1 else token for place in range(length)])
    return Corpus(tokens.astype(np.uint16), tokens[:99].astype(np.uint16), 1, 5, 4, sequence)


def whence(rows) -> list[int]:
    """The text that each row is of."""
    return [int(row.max()) for row in rows]


@given(WEIGHTS)
def test_all_rows_of_a_period_are_given_out_by_weight(weights):
    counts, total = shares(weights), sum(map(Fraction, weights))

    assert sum(counts) == PERIOD
    assert min(counts) >= 1
    for count, weight in zip(counts, weights, strict=True):
        small = len(weights)  # one too small for a row takes it from the largest
        assert abs(count - Fraction(weight) * PERIOD / total) <= small


@given(WEIGHTS, st.integers(0, 3 * PERIOD), st.integers(1, 60))
def test_each_row_of_a_text_comes_once(weights, first, rows):
    order = MixtureOrder(weights, "key")
    places = [order[row] for row in range(first, first + rows)]

    assert len(set(places)) == rows
    assert [MixtureOrder(weights, "key")[first]] == places[:1]
    assert all(number >= 0 for _, number in places)


def test_no_row_of_a_text_is_left_out():
    order = MixtureOrder((3, 1), "key")
    numbers = [[], []]
    for row in range(2 * PERIOD):
        part, number = order[row]
        numbers[part].append(number)

    assert [sorted(each) for each in numbers] == [list(range(15_000)), list(range(5_000))]
    begun = Counter(order[row][0] for row in range(400))
    assert 260 < begun[0] < 340
    assert [MixtureOrder((3, 1), "other")[row] for row in range(99)] != [
        order[row] for row in range(99)
    ]


@pytest.mark.parametrize("samples", ["drawn", "once"])
def test_rows_are_of_each_text_by_its_weight(samples):
    whole = ordered(mixed([text(1), text(2)], [3.0, 1.0]), samples, 3, END)
    found = Counter(whence(row for number in range(500) for row in whole.microbatch(number)))
    out = Counter(whence(row for number in range(500) for row in whole.held_out_batch(number)))

    assert abs(found[1] / 2000 - 0.75) < 0.05
    assert out == found
    assert len(whole.train) == 800


def test_windows_of_a_small_text_come_again_before_those_of_a_large_one():
    small, large = text(1, length=65), text(2, length=6401)
    once = ordered(mixed([small, large], [1.0, 1.0]), "once", 3, END)
    first = [row for number in range(20) for row in once.microbatch(number)]

    assert Counter(whence(first))[1] > 2 * 8
    large_rows = [tuple(row) for row in first if row.max() == 2]
    assert len(large_rows) > 20


def test_packed_documents_take_tokens_by_weight_whatever_their_length():
    texts = [text(1, 4000, each=3, sequence=95), text(2, 4000, each=8, sequence=95)]
    packed = ordered(mixed(texts, [1.0, 3.0]), "packed", 4, END)
    tokens = np.concatenate([packed.microbatch(number).ravel() for number in range(40)])
    # the token that stands before each document counts as its own
    share = np.count_nonzero(tokens == 2) * 8 / 7 / len(tokens)

    assert 0.75 * 0.95 - 0.02 < share < 0.75  # the room that is left goes to the shortest ones
    assert packed.digest() == mixed(texts, [1.0, 3.0]).digest()
    assert whence(packed.held_out_batch(0)) == whence(mixed(texts, [1.0, 3.0]).held_out_batch(0))


def test_other_weights_are_another_corpus():
    texts = [text(1), text(2)]
    same, other = mixed(texts, [1.0, 1.0]), mixed(texts, [1.0, 1.1])

    assert same.digest() == mixed(texts, [2.0, 2.0]).digest()
    assert same.digest() != other.digest()
    assert same.digest() != mixed(texts[::-1], [1.0, 1.0]).digest()
    assert mixed(texts[:1], [7.0]) is texts[0]


def test_the_held_out_pass_takes_as_much_of_each_as_its_share():
    whole = mixed([text(1), text(2)], [1.0, 3.0])
    windows = Counter(whence(row for batch in chain(*held_out_passes(whole, 64)) for row in batch))
    assert windows == {1: 2, 2: 6}
    assert sum(batch.shape[0] for batch in chain(*held_out_passes(whole, 10**9))) == 4 + 12


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5),
    st.integers(0, 30),
    st.integers(0, 30),
)
def test_texts_are_read_as_one(texts, start, stop):
    joined = JoinedText([np.array(each, dtype=np.int64) for each in texts])
    flat = [x for each in texts for x in each]

    assert len(joined) == len(flat)
    assert joined[start:stop].tolist() == flat[start:stop]
