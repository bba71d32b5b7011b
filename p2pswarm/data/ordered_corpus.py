"""Other samples than windows that are drawn anywhere: each window once an epoch; whole documents.

Both follow from the seed and the number of the microbatch alone, as all samples do.

Shapes:  tokens_BS as `corpus.py`.
Units:   tokens.
Errors:  Unusable for text without documents.
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pswarm.data.corpus import Corpus, TokenText
from p2pswarm.data.packing import Row, packed
from p2pswarm.data.permutation import Permutation
from p2pswarm.data.tokens import Tokens, stacked
from p2pswarm.errors import Unusable

SCAN_TOKENS = 1 << 20  # read at a time
FULL = 0.95  # of a step's room that its documents take, on the mean: few are then cut
STEPS_KEPT = 2  # packings: the step that is trained and the next
EPOCHS_KEPT = 2  # a microbatch may lie over the end of one


@dataclass(frozen=True, slots=True)
class EpochCorpus(Corpus):
    """Consecutive windows of the text, each once an epoch, in another order in each."""

    orders: "OrderedDict[int, Permutation]" = field(default_factory=OrderedDict, compare=False)

    def microbatch(self, number: int) -> Tokens:
        """tokens_BS of a microbatch of the run."""
        length = self.sequence_length
        windows = (len(self.train) - 1) // length
        samples = range(number * self.rows, (number + 1) * self.rows)
        starts = [
            order_of(self.orders, self.seed, *divmod(sample, windows), windows) * length
            for sample in samples
        ]
        return stacked([self.train[start : start + length + 1] for start in starts])


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedCorpus(Corpus):
    """Whole documents packed into rows; each document once an epoch, but for what is cut."""

    microbatches: int
    """Of a step."""
    end: int
    """The token that ends a document; in a row it stands before each."""
    begins: NDArray[np.int64]
    """Where documents begin in the text; one longer than a row is several."""
    lengths: NDArray[np.int32]
    """With the token that stands before them."""
    orders: "OrderedDict[int, Permutation]" = field(default_factory=OrderedDict, compare=False)
    steps: "OrderedDict[int, _Packing]" = field(default_factory=OrderedDict, compare=False)

    @property
    def documents(self) -> int:
        """How many of them a step takes."""
        room = self.microbatches * self.rows * (self.sequence_length + 1)
        return max(1, round(FULL * room / float(self.lengths.mean())))

    def microbatch(self, number: int) -> Tokens:
        """tokens_BS of a microbatch of the run."""
        step, place = divmod(number, self.microbatches)
        packing = self.steps.get(step)
        if packing is None:
            packing = self.steps[step] = self._packing(step)
            while len(self.steps) > STEPS_KEPT:
                self.steps.popitem(last=False)
        return stacked([self._row(row, packing.documents) for row in packing.rows[place]])

    def _packing(self, step: int) -> "_Packing":
        count, there = self.documents, len(self.begins)
        chosen = [
            order_of(self.orders, self.seed, *divmod(place, there), there)
            for place in range(step * count, (step + 1) * count)
        ]
        lengths = [int(self.lengths[document]) for document in chosen]
        capacity = self.sequence_length + 1
        return _Packing(chosen, packed(lengths, self.microbatches, self.rows, capacity))

    def _row(self, row: Row, chosen: list[int]) -> Tokens:
        parts: list[NDArray[Any]] = []
        for piece in row:
            begin = int(self.begins[chosen[piece.document]])
            parts.append(np.array([self.end], dtype=np.int32))
            parts.append(self.train[begin : begin + piece.length - 1].astype(np.int32))
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class _Packing:
    """The rows of a step's microbatches, of the documents that were chosen for it."""

    documents: list[int]
    rows: list[list[Row]]


def order_of(
    orders: "OrderedDict[int, Permutation]", seed: int, epoch: int, place: int, count: int
) -> int:
    """What stands at a place in the order of an epoch; `orders` keeps the last ones."""
    if epoch not in orders:
        orders[epoch] = Permutation(count, f"{seed}:{epoch}")
        while len(orders) > EPOCHS_KEPT:
            orders.popitem(last=False)
    return orders[epoch][place]


def documents_of(
    text: TokenText, end: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Where documents begin, and their lengths with the token before them, of `longest` at most."""
    ends = [
        np.flatnonzero(text[start : start + SCAN_TOKENS] == end) + start
        for start in range(0, len(text), SCAN_TOKENS)
    ]
    stops = np.concatenate([*ends, np.array([len(text)])]).astype(np.int64)
    begins = np.concatenate([np.array([0]), stops[:-1] + 1]).astype(np.int64)
    parts = np.maximum(-(-(stops - begins) // (longest - 1)), 0)
    number = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
    starts = np.repeat(begins, parts) + number * (longest - 1)
    lengths = np.minimum(np.repeat(stops, parts) - starts, longest - 1) + 1
    if not len(starts):
        raise Unusable("the text has no documents: name more text")
    return starts, lengths.astype(np.int32)


def ordered(corpus: Corpus, samples: str, microbatches: int, end: int) -> Corpus:
    """The same text with the samples that `run.batch.samples` says."""
    same = (
        corpus.train,
        corpus.held_out,
        corpus.files,
        corpus.seed,
        corpus.rows,
        corpus.sequence_length,
        corpus.held_out_bytes,
    )
    if samples == "once":
        return EpochCorpus(*same)
    if samples == "packed":
        begins, lengths = documents_of(corpus.train, end, corpus.sequence_length + 1)
        return PackedCorpus(
            *same, microbatches=microbatches, end=end, begins=begins, lengths=lengths
        )
    return corpus
