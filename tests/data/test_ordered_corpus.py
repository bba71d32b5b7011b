"""Each window once an epoch, and whole documents in rows, by the microbatch's number alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.corpus import Corpus
from p2pswarm.data.ordered_corpus import documents_of, ordered

END = 0
NOTHING = np.arange(100, dtype=np.uint16)


def corpus(tokens, rows=2, length=8, seed=1) -> Corpus:
    return Corpus(np.array(tokens, dtype=np.uint16), NOTHING, 1, seed, rows, length)


def documents(*lengths: int) -> list[int]:
    """A text in which each document has a number of its own."""
    return [x for number, n in enumerate(lengths, 1) for x in (*([number] * n), END)]


def test_each_window_comes_once_an_epoch_in_another_order():
    once = ordered(corpus(range(8 * 12 + 1)), "once", 3, END)
    epochs = [
        [row[0] for number in range(6 * epoch, 6 * epoch + 6) for row in once.microbatch(number)]
        for epoch in range(3)
    ]

    assert [sorted(epoch) for epoch in epochs] == [list(range(0, 96, 8))] * 3
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert once.microbatch(0).shape == (2, 9)


@pytest.mark.parametrize("samples", ["once", "packed"])
def test_a_microbatch_is_the_same_whatever_was_asked_before(samples):
    text = corpus(documents(*(n % 7 + 1 for n in range(80))))
    fresh = [ordered(text, samples, 3, END) for _ in range(6)]
    used = ordered(text, samples, 3, END)

    for number in (0, 100, 3, 10**6, 0, 4):
        assert np.array_equal(fresh.pop().microbatch(number), used.microbatch(number))
    other = ordered(corpus(text.train, seed=2), samples, 3, END)
    assert not np.array_equal(other.microbatch(0), used.microbatch(0))
    assert other.digest() == text.digest()
    assert used.microbatch(0).dtype == np.int32


def test_rows_hold_whole_documents_with_the_end_before_each():
    lengths = [n % 4 + 1 for n in range(60)]
    packed = ordered(corpus(documents(*lengths), rows=4, length=19), "packed", 2, END)
    cut = whole = 0

    for row in (row for number in range(10) for row in packed.microbatch(number)):
        assert row[0] == END
        for part in np.split(row, np.flatnonzero(row == END))[1:]:
            number = set(part[1:].tolist())
            assert len(number) <= 1  # of one document
            if number and len(part) - 1 == lengths[number.pop() - 1]:
                whole += 1
            else:
                cut += 1
    assert whole > 5 * cut


def test_each_document_comes_once_an_epoch():
    lengths = [3] * 40
    packed = ordered(corpus(documents(*lengths), rows=2, length=15), "packed", 2, END)
    steps = 40 // packed.documents_each_step
    seen = [x for step in range(steps) for x in packed._packing(step).begins]

    assert len(seen) == len(set(seen))


@given(st.lists(st.integers(0, 30), max_size=20), st.integers(3, 12), st.booleans())
def test_pieces_cover_every_document_once(lengths, longest, unended):
    tokens = documents(*lengths) + [99] * (5 if unended else 0) + [98, END]
    begins, found = documents_of(np.array(tokens, dtype=np.uint16), END, longest)
    pieces = [tokens[b : b + n - 1] for b, n in zip(begins, found, strict=True)]

    assert [x for piece in pieces for x in piece] == [x for x in tokens if x != END]
    assert all(1 <= len(piece) < longest for piece in pieces)
