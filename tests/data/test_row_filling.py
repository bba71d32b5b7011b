"""Rows that are filled in one pass hold what each would hold alone."""

import itertools
import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.row_filling import Row, TextBatch, fill
from p2pswarm.data.tokenizer import Tokenizer, train_tokenizer


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
    row.add(b"one two", 0.0, ended=False)
    row.add(b"", 0.0, ended=True)
    while not row.full:
        row.add(b"three" * 50, 0.0, ended=True)

    assert np.count_nonzero(row.tokens == tokenizer.end) == 1
    assert "".join(tokenizer.decode(row.tokens.tolist())).startswith("one two")


def test_a_tokenizer_that_makes_no_tokens_is_said_in_one_line():
    word = {"type": "WordLevel", "vocab": {"word": 0}, "unk_token": "word"}
    found = {"model": word, "pre_tokenizer": {"type": "Whitespace"}}
    tokenizer = Tokenizer(json.dumps(found), "here")

    with pytest.raises(Unusable, match="the tokenizer makes no tokens of the text"):
        fill([Row(0, 4, tokenizer)], Documents([[b"  "]]))
