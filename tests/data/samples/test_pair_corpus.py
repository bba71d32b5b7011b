"""Rows that are pairs: the chosen answer, then the rejected one, each pair once an epoch."""

import logging
from dataclasses import replace

import numpy as np
import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.samples.pair_corpus import PairCorpus, paired
from p2pswarm.data.samples.references import References
from p2pswarm.data.samples.target_marks import (
    BEGIN,
    IDS,
    MARKS,
    NO_TARGET,
    NUMBER_SHIFT,
    marked_document,
    targets_in,
)

CAPACITY, PAD = 12, 255


def answer(number: int, length: int, prompt: int = 2) -> np.ndarray:
    tokens = np.full(length, number)
    return marked_document(tokens, np.arange(length) >= prompt)


def text(*pairs: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return np.concatenate([each for pair in pairs for each in pair]).astype("<u4")


def pairs(first: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [
        (answer(2 * n, 3 + n % 5), answer(2 * n + 1, 4 + n % 3))
        for n in range(first, first + count)
    ]


def corpus(*train: tuple[np.ndarray, np.ndarray], seed: int = 1) -> Corpus:
    held_out = text(*pairs(100, 3))
    return Corpus(text(*train), held_out, 1, seed, rows=4, sequence_length=CAPACITY - 1)


def made(count: int = 7) -> PairCorpus:
    return paired(corpus(*pairs(1, count)), PAD)


def test_each_epoch_has_every_pair_once_and_both_answers_lie_side_by_side():
    found, orders = made(), []
    for epoch in range(2):
        rows = [found.sample(epoch * 14 + n) & IDS for n in range(14)]
        firsts = [int(row[0]) for row in rows]
        assert all(firsts[n + 1] == firsts[n] + 1 for n in range(0, 14, 2))
        assert sorted(firsts) == list(range(2, 16))
        orders.append(firsts)
    assert orders[0] != orders[1]
    batch = found.microbatch(2)
    assert (batch.shape, batch.dtype) == ((4, CAPACITY), np.int32)
    assert batch[1].tolist() == found.sample(9).tolist()


def test_prompts_and_padding_are_no_targets():
    found = made()
    for number in range(28):
        row = found.sample(number)
        ids, length = row & IDS, int((row & IDS != PAD).sum())
        assert targets_in(row[np.newaxis]) == length - 2 == found.sample_targets(number)
        assert np.flatnonzero(row & BEGIN).tolist() == [0, length]
        assert all(row[ids == PAD] & NO_TARGET)
    assert found.held_out_targets(0) == targets_in(found.held_out_batch(0))


def test_what_does_not_differ_within_a_row_is_passed_over(caplog):
    long = [answer(50, CAPACITY + 5), answer(50, CAPACITY + 9)]
    silent = (answer(60, 20, prompt=15), answer(61, 5))
    cut = (answer(70, CAPACITY + 1), answer(71, 5))

    with caplog.at_level(logging.WARNING):
        found = paired(corpus((long[0], long[1]), silent, cut), PAD)

    assert len(found.train_side) == 1
    assert (found.sample(0) & IDS).tolist() == [70] * CAPACITY
    assert "2 of 3 training pairs do not differ" in caplog.text
    assert "1 of 3 training pairs have an answer that is longer" in caplog.text
    with pytest.raises(Unusable, match="no pair of the training text differs within its first 12"):
        paired(corpus(silent), PAD)


def test_rows_carry_references_and_those_that_lack_one_are_not_made(tmp_path):
    found = made(3)
    numbers = References(tmp_path / "references", bytes(32), 3, 12)
    numbers.keep(0, [*(-np.arange(1.0, 7) / 3), -1.0, -1.0, -2.0])
    told = replace(found, references=numbers)

    for number in range(6):
        plain, row = found.sample(number), told.sample(number)
        assert (row & (IDS | MARKS)).tolist() == plain.tolist()
        bits = sum(int(part) << 7 * place for place, part in enumerate(row[:10] >> NUMBER_SHIFT))
        value = np.array([bits], dtype=np.uint64).view(np.float64)[0]
        pair = (int(plain[0] & IDS) - 2) // 2
        assert value == numbers.train[pair, number % 2]
        assert (row >= 0).all()
    assert told.digest() == found.digest()
    with pytest.raises(Unusable, match=r"are not here.* name the file .* in train.references"):
        [told.held_out_sample(number) for number in range(6)]
    numbers.keep(9, [-4.0] * 3)  # it is told meanwhile
    assert all(told.held_out_sample(number).max() > BEGIN * 2 for number in range(6))


def test_each_answer_is_in_a_batch_whose_references_are_computed():
    found = made(3)

    batches = np.concatenate([found.reference_batch(number) for number in range(3)])

    assert found.answers == 12
    firsts = (batches[:, 0] & IDS).tolist()
    assert firsts == [2, 3, 4, 5, 6, 7, *range(200, 206)]
    assert (found.reference_batch(3)[:, 0] & IDS).tolist() == [2, 3, 4, 5]
    assert (batches < 1 << NUMBER_SHIFT).all()
