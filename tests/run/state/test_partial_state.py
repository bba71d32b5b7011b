"""The layout of a newcomer's file, and which pieces are written when."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.state.partial_state import (
    SLOT_HEAD_BYTES,
    PartialLayout,
    PartialMap,
    slot_hash,
    slot_head,
    slot_version,
)

RUN = b"r" * 16
SIZES = (60, 60, 24)


def slots(layout):
    heads = [layout.offset(piece) for piece in range(len(layout.sizes))]
    return [(at, at + SLOT_HEAD_BYTES + size) for at, size in zip(heads, layout.sizes, strict=True)]


@given(st.lists(st.integers(0, 100), min_size=1, max_size=9).map(sorted))
def test_slots_follow_the_head_and_never_overlap(sizes):
    layout = PartialLayout(RUN, 0, sizes[::-1])

    ends = [len(layout.head), *(end for _, end in slots(layout))]

    assert all(begin >= end for (begin, _), end in zip(slots(layout), ends, strict=False))


@pytest.mark.parametrize(
    "other", [(b"q" * 16, 0, SIZES), (RUN, 1, SIZES), (RUN, 0, (60, 84)), (RUN, 0, (60, 60, 25))]
)
def test_another_run_stage_or_cut_has_another_head(other):
    assert PartialLayout(*other).head != PartialLayout(RUN, 0, SIZES).head
    assert len(PartialLayout(*other).head) == len(PartialLayout(RUN, 0, SIZES).head)


@given(st.integers(0, 2**64 - 1), st.binary(max_size=50))
def test_a_slot_tells_its_version_and_its_hash(version, data):
    head = slot_head(version, memoryview(data))

    assert len(head) == SLOT_HEAD_BYTES
    assert slot_version(head) == version
    assert slot_hash(head, data) == hashlib.sha256(data).digest()


@given(st.binary(min_size=1, max_size=50), st.data())
def test_a_torn_slot_is_none(data, draw):
    head = slot_head(3, memoryview(data))
    other = draw.draw(st.binary(max_size=50).filter(lambda other: other != data))

    assert slot_hash(head, other) is None


@pytest.mark.parametrize("head", [b"", b"x" * (SLOT_HEAD_BYTES - 1), bytes(SLOT_HEAD_BYTES)])
def test_what_was_never_written_has_no_version(head):
    assert slot_version(head) is None


def test_only_pieces_of_the_stages_version_are_of_use():
    kept = PartialMap({3: 8, 0: 7, 1: 8})

    assert kept.usable(8) == [1, 3]
    assert kept.usable(9) == []


def test_what_the_file_lacks_is_written_before_what_is_old_there():
    kept = PartialMap({0: 7, 1: 6})
    held = {0: 8, 1: 8, 5: 8}

    order = []
    while (piece := kept.due(held)) is not None:
        kept.written(piece, 8)
        order.append(piece)

    assert order == [5, 1, 0]


def test_nothing_is_due_that_is_not_held():
    assert PartialMap({0: 7}).due({}) is None
    assert PartialMap({0: 7}).due({0: 7}) is None


def test_a_person_is_told_what_the_file_was_good_for():
    assert PartialMap({}).remark(0, 5) == ""
    used = "pieces of the weights taken from the folder `state`: "
    old = "older than step 5 and fetched again: "
    assert PartialMap({0: 5, 1: 5}).remark(2, 5) == f"{used}2"
    assert PartialMap({0: 5, 1: 4}).remark(1, 5) == f"{used}1; {old}1"
    assert PartialMap({0: 4}).remark(0, 5) == f"{old}1"
