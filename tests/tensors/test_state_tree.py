"""The pieces of a state, and the digest that they have together."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.tensors.state_tree import piece_hash, piece_spans, root_of


@pytest.mark.parametrize(
    ("length", "spans"),
    [(0, [(0, 0)]), (1, [(0, 1)]), (4, [(0, 4)]), (5, [(0, 4), (4, 5)]), (8, [(0, 4), (4, 8)])],
)
def test_the_pieces_of_a_state(length, spans):
    assert piece_spans(length, piece_values=4) == spans


@given(st.integers(1, 10_000), st.integers(1, 1000))
def test_every_element_is_in_one_piece(length, piece_values):
    spans = piece_spans(length, piece_values)

    assert [i for start, stop in spans for i in range(start, stop)] == list(range(length))
    assert all(stop - start == piece_values for start, stop in spans[:-1])


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 60)), max_size=12), st.integers(1, 50))
def test_what_is_to_be_whole_lies_in_one_piece_and_pieces_are_as_long_as_that_allows(gaps, most):
    whole, end = [], 0
    for gap, length in gaps:
        whole.append((end + gap, end := end + gap + length))
    length = end + 7

    spans = piece_spans(length, most, whole)

    assert [i for start, stop in spans for i in range(start, stop)] == list(range(length))
    for start, stop in whole:
        assert any(first <= start and stop <= last for first, last in spans)
    for start, stop in spans[:-1]:
        longest = max((b for a, b in whole if a <= start < b), default=0)
        assert stop - start <= most + most // 8 or stop == longest
        ends = next((a for a, b in whole if a < start + most < b), start + most)
        assert stop >= min(ends, length) or ends <= start


def test_the_hash_of_a_piece_is_of_its_parts_in_order():
    parts = [memoryview(b"weights"), memoryview(b"first"), memoryview(b"second")]

    assert piece_hash(parts) == hashlib.sha256(b"weightsfirstsecond").digest()
    assert root_of([b"a" * 32, b"b" * 32]) == hashlib.sha256(b"a" * 32 + b"b" * 32).digest()
