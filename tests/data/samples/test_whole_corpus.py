import logging
import tracemalloc
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.mixture import mixed
from p2pswarm.data.samples.target_marks import BEGIN, IDS, NO_TARGET, marked_document, targets_in
from p2pswarm.data.samples.whole_corpus import FoundDocuments, WholeCorpus, best_fit, whole

CAPACITY = 8
PAD = 255


@given(st.lists(st.integers(1, CAPACITY)))
def test_each_document_lies_in_one_row_and_no_row_is_too_full(lengths):
    rows = best_fit(lengths, CAPACITY)

    assert sorted(rows.documents.tolist()) == list(range(len(lengths)))
    filled = [sum(lengths[document] for document in rows[row]) for row in range(len(rows))]
    assert all(0 < each <= CAPACITY for each in filled)
    assert len(rows) <= 11 / 9 * (sum(lengths) / CAPACITY) + 1 + len(lengths) / 2
    emptiest = sorted(filled)[:2]
    assert len(emptiest) < 2 or sum(emptiest) > CAPACITY, "two rows would fit in one"


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=9),
    st.integers(0, 3),
    st.integers(1, 12),
    st.integers(1, 30),
)
def test_documents_are_found_however_a_text_is_read(found, before, capacity, scan_tokens):
    """`before`: targets of no document, as no text of ours has them."""
    parts = [np.zeros(before), *(document(1, length, prompt) for length, prompt in found)]
    joined = np.concatenate(parts).astype("<u4")

    made = FoundDocuments.of(joined, capacity, scan_tokens)

    lengths = [length for length, _ in found]
    begins = [before + sum(lengths[:number]) for number in range(len(found))]
    assert made.begins.tolist() == begins
    assert made.ends.tolist() == [b + n for b, n in zip(begins, lengths, strict=True)]
    assert made.stops.tolist() == [
        b + min(n, capacity) for b, n in zip(begins, lengths, strict=True)
    ]
    assert made.counts.tolist() == [
        max(0, min(length, capacity) - max(1, prompt)) for length, prompt in found
    ]


@dataclass
class Endless:
    """A text of equal documents, of which only what is asked for is in memory."""

    documents: int
    length: int = 1 << 10

    def __len__(self) -> int:
        return self.documents * self.length

    def __getitem__(self, part: slice) -> np.ndarray:
        tokens = np.arange(part.start, min(part.stop, len(self))) % self.length
        return np.where(tokens == 0, BEGIN | NO_TARGET, 1).astype("<u4")


def test_finding_documents_takes_memory_for_documents_and_not_for_tokens():
    long = Endless(documents=40 << 10)
    tracemalloc.start()
    try:
        found = FoundDocuments.of(long, capacity=512)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert len(found.begins) == long.documents
    assert set(found.counts.tolist()) == {511}
    assert peak < 2 * len(long), f"{peak:,} bytes for {len(long):,} tokens"


def document(number: int, length: int, prompt: int = 1) -> np.ndarray:
    """Its tokens are all its number; after the prompt they are targets."""
    tokens = np.full(length, number)
    return marked_document(tokens, np.arange(length) >= prompt)


def text(*documents: np.ndarray) -> np.ndarray:
    return np.concatenate(documents).astype("<u4")


def corpus(train: np.ndarray, held_out: np.ndarray | None = None, seed: int = 1) -> Corpus:
    held_out = text(document(200, 5)) if held_out is None else held_out
    return Corpus(train, held_out, 1, seed, rows=2, sequence_length=CAPACITY - 1)


LENGTHS = {number: 2 + number * 5 % 7 for number in range(1, 40)}


def made() -> WholeCorpus:
    found = whole(corpus(text(*(document(n, length) for n, length in LENGTHS.items()))), PAD)
    assert isinstance(found, WholeCorpus)
    return found


def test_each_epoch_has_every_document_once_whole():
    found = made()
    rows = len(found.train_side.rows)
    for epoch in range(3):
        seen: Counter[int] = Counter()
        for number in range(epoch * rows, (epoch + 1) * rows):
            seen.update((found.sample(number) & IDS).tolist())
        del seen[PAD]
        assert seen == Counter(LENGTHS)
    orders = [[found.sample(e * rows + n).tolist() for n in range(rows)] for e in range(2)]
    assert orders[0] != orders[1]
    assert sorted(orders[0]) == sorted(orders[1])


def test_a_row_is_int32_and_its_padding_and_first_tokens_are_no_targets():
    found = made()
    for number in range(len(found.train_side.rows)):
        row = found.sample(number)
        assert (row.dtype, len(row)) == (np.int32, CAPACITY)
        begins = np.flatnonzero(np.diff(row & IDS, prepend=-1))
        assert all(row[begins] & NO_TARGET)
        assert all(row[(row & IDS) == PAD] & NO_TARGET)
        assert targets_in(row[np.newaxis]) == CAPACITY - len(begins) - sum(row & IDS == PAD) + (
            (row & IDS == PAD).any()
        )
        assert np.flatnonzero(row & BEGIN).tolist() == begins.tolist()


def test_targets_are_counted_without_reading_the_text():
    found = made()
    for number in range(3 * len(found.train_side.rows)):
        assert found.targets(number) == targets_in(found.microbatch(number))
        assert found.held_out_targets(number) == targets_in(found.held_out_batch(number))


def test_a_document_that_is_too_long_ends_with_its_row_and_one_without_targets_is_left_out(caplog):
    caplog.set_level(logging.WARNING)

    found = whole(corpus(text(document(1, 20), document(2, 20, 9), document(3, 3, 3))), PAD)

    assert len(found.train_side.rows) == 1
    assert (found.sample(0) & IDS).tolist() == [1] * CAPACITY
    assert (
        "2 of 3 training documents have no target within a row, and are passed over" in caplog.text
    )
    assert "1 of 3 training documents are longer than a row, and cut at its end" in caplog.text


def test_a_text_without_a_target_in_reach_is_refused():
    with pytest.raises(Unusable, match="no document of the training text has a target within its"):
        whole(corpus(text(document(2, 20, 9))), PAD)


def test_held_out_rows_are_other_documents():
    held_out = text(*(document(n, 5) for n in range(100, 120)))
    found = whole(corpus(text(document(1, 8)), held_out), PAD)

    assert set((found.held_out_sample(3) & IDS).tolist()) <= {*range(100, 120), PAD}
    rows = list(found.held_out_rows(30))
    assert len(rows) == 30 // (CAPACITY - 1)
    assert len({tuple(row.tolist()) for row in rows}) == len(rows)


def test_texts_of_a_mixture_keep_their_rows_whole():
    texts = [corpus(text(document(n, 8))) for n in (1, 2)]

    found = whole(mixed(texts, [0.5, 0.5]), PAD)

    assert {int(found.sample(n)[0] & IDS) for n in range(20)} == {1, 2}


def test_the_same_seed_has_the_same_rows_and_another_one_others():
    def rows(seed: int) -> list:
        documents = text(*(document(n, length) for n, length in LENGTHS.items()))
        found = whole(corpus(documents, seed=seed), PAD)
        return [found.sample(number).tolist() for number in range(9)]

    assert rows(1) == rows(1)
    assert rows(1) != rows(2)
