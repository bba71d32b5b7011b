"""Tests of `data/samples/epoch_corpus.py`."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.epoch_corpus import Piece, documents_of, ordered, packed
from p2pswarm.data.samples.mixture import Permutation

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


SIZES = st.integers(1, 5), st.integers(1, 4), st.integers(2, 40)


@given(st.integers(1, 700), st.text(max_size=5))
def test_an_order_has_every_number_once(count: int, key: str):
    order = Permutation(count, key)

    assert sorted(order[place] for place in range(count)) == list(range(count))


def test_another_key_is_another_order_and_the_same_on_every_machine():
    one, other = ([Permutation(100, key)[i] for i in range(100)] for key in "ab")

    assert one != other
    assert one[:5] == [Permutation(100, "a")[i] for i in range(5)]
    assert Permutation(10**12, "a")[123] == 816427784556  # it may never change


@given(*SIZES, st.data())
def test_every_row_is_full_and_a_piece_is_the_beginning_of_a_document(mbs, rows, capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=60))
    made = packed(lengths, mbs, rows, capacity)

    assert [len(microbatch) for microbatch in made] == [rows] * mbs
    for row in (row for microbatch in made for row in microbatch):
        assert sum(piece.length for piece in row) == capacity
        assert all(1 <= piece.length <= lengths[piece.document] for piece in row)
    assert packed(lengths, mbs, rows, capacity) == made


@given(*SIZES, st.data())
def test_a_document_is_cut_only_where_no_row_had_room(mbs, rows, capacity, data):
    lengths = data.draw(st.lists(st.integers(1, capacity), min_size=1, max_size=60))
    pieces = [piece for mb in packed(lengths, mbs, rows, capacity) for row in mb for piece in row]
    whole = {piece.document for piece in pieces if piece.length == lengths[piece.document]}

    if sum(lengths) <= capacity:  # all of them fit one row
        assert whole == set(range(len(lengths)))
    assert len(whole) >= min(len(lengths), mbs * rows)  # each row has one that is whole


def test_an_exact_packing_by_hand():
    assert packed([5, 3, 2, 4], 2, 1, 7) == [
        [[Piece(0, 5), Piece(2, 2)]],
        [[Piece(3, 4), Piece(1, 3)]],
    ]


def test_the_work_of_microbatches_is_even():
    order = Permutation(1_900, "lengths")
    lengths = [max(2, order[i] ** 2 // 7_220) for i in range(230)]  # up to 500, most are short
    made = packed(lengths, 8, 8, 512)
    work = [sum(p.length**2 for row in mb for p in row) for mb in made]

    assert statistics.pstdev(work) / statistics.mean(work) < 0.1
