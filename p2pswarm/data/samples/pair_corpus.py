"""Pairs of answers: rows 2k and 2k + 1 are a chosen answer and a rejected one, behind their prompt.

Each pair is once an epoch in a row pair, in another order each epoch. A row holds one answer and
padding. An answer that is longer than a row is cut at its end. Nothing is left to learn from a pair
if then one answer has no target, or both are the same tokens: it is passed over.

Shapes:  tokens_S of a row, with marks (`target_marks.py`).
"""

import logging
import math
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import Corpus, Tokens, TokenText, stacked
from p2pswarm.data.samples.mixture import Orders, order_of
from p2pswarm.data.samples.references import References
from p2pswarm.data.samples.target_marks import with_number
from p2pswarm.data.samples.whole_corpus import FoundDocuments, padded

log = logging.getLogger(__name__)

CHOSEN = 0
MISSING = (
    "the references of this run are not here, and its weights are not the first ones any more: "
    "name the file that its trainer wrote in train.references"
)


@dataclass(frozen=True, slots=True)
class PairSide:
    """One side of a text, to train on or held out."""

    text: TokenText
    begins: NDArray[np.int64]
    """Where the answers of each pair begin, (pairs, 2)."""
    lengths: NDArray[np.int64]
    """Of at most a row's length."""
    counts: NDArray[np.int64]
    """Of targets in each."""
    without: int
    """How many pairs were left out, because nothing is to be compared within a row's length."""
    cut: int
    """How many have an answer that is longer than a row, and ends with it."""
    orders: Orders = field(default_factory=OrderedDict, compare=False)

    @classmethod
    def of(cls, text: TokenText, capacity: int) -> "PairSide":
        """Read a text whose documents are the answers, in turns."""
        found = FoundDocuments.of(text, capacity)
        begins, stops, ends, counts = (
            each.reshape(-1, 2) for each in (found.begins, found.stops, found.ends, found.counts)
        )
        cut: NDArray[np.bool_] = np.any(ends > stops, axis=1)
        kept: NDArray[np.bool_] = np.all(counts > 0, axis=1)
        for pair in np.flatnonzero(cut & kept).tolist():
            chosen, rejected = (text[begins[pair, i] : stops[pair, i]] for i in range(2))
            kept[pair] = not np.array_equal(chosen, rejected)
        return cls(
            text,
            begins[kept],
            (stops - begins)[kept],
            counts[kept],
            without=int(np.count_nonzero(~kept)),
            cut=int(np.count_nonzero(cut & kept)),
        )

    def __len__(self) -> int:
        """Its pairs."""
        return len(self.begins)

    def pair(self, number: int, key: str) -> int:
        """Which pair stands at a place; each comes once an epoch."""
        epoch, place = divmod(number, len(self))
        return order_of(self.orders, f"{key}:{epoch}", place, len(self))

    def answer(self, pair: int, side: int) -> Tokens:
        """The tokens of a prompt and its answer."""
        begin, length = int(self.begins[pair, side]), int(self.lengths[pair, side])
        return self.text[begin : begin + length]


@dataclass(frozen=True, kw_only=True, slots=True)
class PairCorpus(Corpus):
    """Pairs of answers, each once an epoch; which tokens are targets stands in the text."""

    train_side: PairSide
    held_out_side: PairSide
    padding: int
    """The token that fills rows; no target."""
    references: References | None = None
    """Numbers that rows carry, in a run that compares with them."""

    @property
    def all_targets(self) -> bool:
        """As `Corpus`: prompts are none."""
        return False

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on."""
        pair, side = self._train_answer(number)
        given = None if self.references is None else self.references.train
        return self._row(self.train_side, pair, side, given)

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on."""
        pair, side = self._held_out_answer(number)
        given = None if self.references is None else self.references.held_out
        return self._row(self.held_out_side, pair, side, given)

    def sample_targets(self, number: int) -> int:
        """How many targets a row to train on has."""
        return int(self.train_side.counts[self._train_answer(number)])

    def held_out_sample_targets(self, number: int) -> int:
        """How many targets a held-out row has."""
        return int(self.held_out_side.counts[self._held_out_answer(number)])

    def held_out_rows(self, tokens_max: int) -> Iterator[Tokens]:
        """Chosen answers of about `tokens_max` tokens, spread evenly over the held-out text."""
        side = self.held_out_side
        taken = min(len(side), max(1, tokens_max // self.sequence_length))
        pairs = (number * len(side) // taken for number in range(taken))
        return (self._row(side, pair, CHOSEN, None) for pair in pairs)

    @property
    def sides(self) -> tuple[PairSide, PairSide]:
        """What is trained on, and what is held out."""
        return self.train_side, self.held_out_side

    @property
    def answers(self) -> int:
        """All of both sides, those to train on first."""
        return 2 * (len(self.train_side) + len(self.held_out_side))

    def reference_batch(self, number: int) -> Tokens:
        """tokens_BS of answers whose references are computed; after the last one some come again.

        They carry a reference of 0: what they have gained over it is their log probability.
        """
        first = number * self.rows
        return stacked([self.answer(n % self.answers) for n in range(first, first + self.rows)])

    def answer(self, number: int) -> Tokens:
        """tokens_S of an answer, as the text has it."""
        pair, side = divmod(number, 2)
        of = self.train_side
        if pair >= len(of):
            pair, of = pair - len(of), self.held_out_side
        return self._row(of, pair, side, None)

    def _train_answer(self, number: int) -> tuple[int, int]:
        return self.train_side.pair(number // 2, f"{self.seed}"), number % 2

    def _held_out_answer(self, number: int) -> tuple[int, int]:
        return self.held_out_side.pair(number // 2, f"held:{self.seed}"), number % 2

    def _row(self, of: PairSide, pair: int, side: int, given: NDArray[np.float64] | None) -> Tokens:
        row = padded([of.answer(pair, side)], self.sequence_length + 1, self.padding)
        if given is None:
            return row
        number = float(given[pair, side])
        if not math.isfinite(number):
            raise Unusable(MISSING)
        return with_number(row, number)


def paired(corpus: Corpus, padding: int) -> PairCorpus:
    """The same text in rows that are pairs; Unusable if a side has none."""
    capacity = corpus.sequence_length + 1
    sides = {
        kind: PairSide.of(text, capacity)
        for kind, text in (("training", corpus.train), ("held-out", corpus.held_out))
    }
    for kind, side in sides.items():
        if not len(side):
            raise Unusable(
                f"no pair of the {kind} text differs within its first {capacity:,} tokens: raise "
                "run.model.sequence_length, name more text, or change train.held_out_share"
            )
        for count, what in (
            (side.without, "do not differ in answers within a row, and are passed over"),
            (side.cut, "have an answer that is longer than a row, and cut at its end"),
        ):
            if count:
                pairs = len(side) + side.without
                text = "%d of %d %s pairs %s (a row has %d tokens)"
                log.warning(text, count, pairs, kind, what, capacity)
    texts, counts = (corpus.train, corpus.held_out), (corpus.files, corpus.seed, corpus.rows)
    return PairCorpus(
        *texts,
        *counts,
        corpus.sequence_length,
        corpus.held_out_bytes,
        train_side=sides["training"],
        held_out_side=sides["held-out"],
        padding=padding,
    )
