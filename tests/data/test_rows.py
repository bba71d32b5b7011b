"""Tests of `data/rows.py`."""

import itertools
import json
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.rows import SHIPPED, PlaceLimits, Row, RowPlaces, TextBatch, fill, parts_of
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer


@given(st.text().map(str.encode), st.integers(4, 12))
def test_parts_are_the_document_and_each_is_text(document: bytes, bytes_max: int):
    parts = list(parts_of(document, bytes_max))

    assert b"".join(parts) == document
    assert all(len(part) <= bytes_max for part in parts)
    assert "".join(part.decode() for part in parts) == document.decode()


@given(st.binary(max_size=60), st.integers(4, 12))
def test_bytes_that_are_no_text_are_cut_too(document: bytes, bytes_max: int):
    parts = list(parts_of(document, bytes_max))

    assert b"".join(parts) == document
    assert all(0 < len(part) <= bytes_max for part in parts) or document == b""


@dataclass
class Documents:
    """Documents in batches; those with a minus are on the other side."""

    batches: list[list[bytes]]
    name: str = "held out"

    def __len__(self):
        return sum(map(len, itertools.chain(*self.batches)))

    def holds(self, document, /):
        return not document.startswith(b"-")

    def batches_from(self, place):
        """All batches, once; the one with the place comes first, and its beginning again."""
        begins = [0, *itertools.accumulate(sum(map(len, each)) for each in self.batches)]
        first = next(n for n, begin in enumerate(begins[1:]) if place < begin)
        for lap, numbers in enumerate((range(first, len(self.batches)), range(first))):
            for number in numbers:
                lengths = itertools.accumulate(map(len, self.batches[number]))
                base = begins[number] + lap * len(self)
                yield TextBatch(
                    [base, *(base + length for length in lengths)], self.batches[number]
                )


DOCUMENTS = st.lists(st.binary(max_size=9).map(lambda text: text.replace(b"\n", b" ")), max_size=4)


def filled(side, places, length, tokenizer=None):
    rows = [Row(place, length, tokenizer) for place in places]
    fill(rows, side)
    return [row.tokens for row in rows]


@given(st.lists(DOCUMENTS, max_size=5), st.data())
def test_a_row_is_the_rest_of_its_document_and_those_that_follow(batches, data):
    side = Documents([[b"first"], *batches, [b"last", b"-other"]])
    places = data.draw(st.lists(st.integers(0, len(side) - 1), min_size=1, max_size=6))
    length = data.draw(st.integers(1, 30))

    texts = [text for batch in side.batches for text in batch]
    begins = [0, *itertools.accumulate(map(len, texts))]
    for place, row in zip(sorted(places), filled(side, sorted(places), length), strict=True):
        # what it is, document by document
        first = next(n for n in range(len(texts)) if place < begins[n + 1])
        order = [texts[first][place - begins[first] :]] if side.holds(texts[first]) else []
        order += [text for text in texts[first + 1 :] if text and side.holds(text)]
        expected = b"\n".join((*order, b""))
        while order and order[0] and order[0][0] & 0xC0 == 0x80:  # not asked of such bytes here
            return
        assert bytes(row)[: len(expected)] == expected[:length]


def test_rows_of_a_short_text_hold_it_again_and_again():
    (row,) = filled(Documents([[b"ab", b"-c"]]), [1], 12)

    assert bytes(row) == b"b\nb\nb\nb\nb\nb\n"


def test_what_no_row_needs_is_not_made():
    class Few(list):
        made = 0

        def __getitem__(self, number):
            Few.made += 1
            return super().__getitem__(number)

    side = Documents([Few([b"x" * 10] * 100), Few([b"y" * 10] * 100)])

    rows = filled(side, [5, 1205], 12)
    assert [bytes(row)[:5] for row in rows] == [b"xxxxx", b"yyyyy"]
    assert Few.made <= 6


def test_a_side_without_documents_is_said_in_one_line():
    with pytest.raises(Unusable, match="no document is held out: name more text"):
        filled(Documents([[b"-a", b"-b"]]), [0], 4)


def test_a_search_that_finds_nothing_ends():
    side = Documents([[b"-" * 10] for _ in range(90)] + [[b"here"]])

    with pytest.raises(Unusable, match="no document"):
        fill([Row(0, 4, None)], side, passed_bytes_max=100)
    row = Row(850, 16, None)
    fill([row], side, passed_bytes_max=100)
    assert bytes(row.tokens) == b"here\nhere\nhere\nh"


def test_a_row_begins_with_a_character():
    side = Documents([["ä€ö".encode()]])

    (row,) = filled(side, [4], 5)
    assert bytes(row).decode() == "€ö"


def test_a_document_in_parts_ends_once():
    tokenizer = train_tokenizer(300, [b"one two three"] * 9)
    row = Row(0, 12, tokenizer)
    row.add(b"one two", 0.0, begun=True, ended=False)
    row.add(b"", 0.0, begun=False, ended=True)
    while row.lacking:
        row.add(b"three" * 50, 0.0, begun=True, ended=True)

    assert np.count_nonzero(row.tokens == tokenizer.end) == 1
    assert "".join(tokenizer.decode(row.tokens.tolist())).startswith("one two")


def test_a_tokenizer_that_makes_no_tokens_is_said_in_one_line():
    word = {"type": "WordLevel", "vocab": {"word": 0}, "unk_token": "word"}
    found = {"model": word, "pre_tokenizer": {"type": "Whitespace"}}
    tokenizer = Tokenizer(json.dumps(found), "here")

    with pytest.raises(Unusable, match="the tokenizer makes no tokens of the text"):
        fill([Row(0, 4, tokenizer)], Documents([[b"  "]]))


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
