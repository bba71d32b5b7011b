"""Orders without a table, and documents packed into rows: whole, even, full."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.data.packing import Piece, packed
from p2pswarm.data.permutation import Permutation

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
