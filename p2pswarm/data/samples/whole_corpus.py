"""Rows of whole documents: nothing is cut but what is longer than a row, and nothing is repeated.

Documents are packed into rows by best fit decreasing: the longest first, each into the row with
the least room that has enough. What is left of a row is padding, which is no target. Packing
depends on lengths alone, so it is made once; each epoch has all rows once, in another order.

Shapes:  tokens_S of a row, with marks (`target_marks.py`).
Source:  best fit decreasing: Johnson, "Near-optimal bin packing algorithms", MIT 1973; 11/9 of the
         fewest rows, and a few more.
"""

import bisect
import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import SCAN_TOKENS, Corpus, Tokens, TokenText, scanned
from p2pswarm.data.samples.mixture import MixedCorpus, Orders, order_of
from p2pswarm.data.samples.target_marks import BEGIN, NO_TARGET

log = logging.getLogger(__name__)

NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Which documents lie in which row."""

    documents: NDArray[np.int64]
    """Row after row."""
    starts: NDArray[np.int64]
    """Where each row begins in `documents`; the last number is their count."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, row: int) -> NDArray[np.int64]:
        return self.documents[self.starts[row] : self.starts[row + 1]]


def best_fit(lengths: Sequence[int], capacity: int) -> PackedRows:
    """Rows of `capacity` tokens for documents of these lengths, each from 1 to `capacity`."""
    order = sorted(range(len(lengths)), key=lambda document: (-lengths[document], document))
    rows: list[list[int]] = []
    rooms: list[int] = []  # that some row has, in ascending order
    rows_of: dict[int, list[int]] = {}
    for document in order:
        length = lengths[document]
        place = bisect.bisect_left(rooms, length)
        if place < len(rooms):
            room = rooms[place]
            row = rows_of[room].pop()
            if not rows_of[room]:
                del rows_of[room], rooms[place]
        else:
            room, row = capacity, len(rows)
            rows.append([])
        rows[row].append(document)
        if left := room - length:
            if left not in rows_of:
                rows_of[left] = []
                bisect.insort(rooms, left)
            rows_of[left].append(row)
    counts = np.cumsum([0, *map(len, rows)])
    flat = [document for row in rows for document in row]
    return PackedRows(np.array(flat, dtype=np.int64), counts.astype(np.int64))


@dataclass(frozen=True, slots=True)
class FoundDocuments:
    """The documents of a text whose begins are marked."""

    begins: NDArray[np.int64]
    ends: NDArray[np.int64]
    stops: NDArray[np.int64]
    """Where each ends, or a row that it begins."""
    counts: NDArray[np.int64]
    """Of the targets before that."""

    @classmethod
    def of(cls, text: TokenText, capacity: int, scan_tokens: int = SCAN_TOKENS) -> "FoundDocuments":
        """Read a text, so many tokens at a time; `capacity`: the tokens of a row."""
        begins, counts = [NONE], [NONE]
        for start, part in scanned(text, scan_tokens):
            new = np.flatnonzero(part & BEGIN) + start
            known = np.concatenate([begins[-1][-1:], new])  # the first one began before
            if not len(known):
                continue
            targets = np.flatnonzero(part & NO_TARGET == 0) + start
            owners = np.searchsorted(known, targets, side="right") - 1
            near = (owners >= 0) & (targets - known[owners] < capacity)
            of_each = np.bincount(owners[near], minlength=len(known))
            if goes_on := len(known) - len(new):
                counts[-1][-1] += of_each[0]
            if len(new):
                begins.append(new)
                counts.append(of_each[goes_on:])
        found, counted = np.concatenate(begins), np.concatenate(counts)
        ends = np.append(found[1:], len(text))[: len(found)]
        return cls(found, ends, np.minimum(ends, found + capacity), counted)


@dataclass(frozen=True, slots=True)
class WholeSide:
    """One side of a text, to train on or held out."""

    text: TokenText
    begins: NDArray[np.int64]
    """Where each document begins that has a target within a row's length."""
    lengths: NDArray[np.int64]
    """Of at most a row's length."""
    rows: PackedRows
    counts: NDArray[np.int64]
    """Of targets in each."""
    without: int
    """How many documents were left out, because no target is within a row's length."""
    cut: int
    """How many are longer than a row, and end with it."""
    orders: Orders = field(default_factory=OrderedDict, compare=False)

    @classmethod
    def of(cls, text: TokenText, capacity: int) -> "WholeSide":
        """Read a text whose documents begin with a mark, and pack it."""
        found = FoundDocuments.of(text, capacity)
        begins, stops, counts = found.begins, found.stops, found.counts
        kept = counts > 0
        begins_kept, lengths = begins[kept], (stops - begins)[kept]
        return cls(
            text,
            begins_kept,
            lengths,
            best_fit(lengths.tolist(), capacity),
            counts[kept],
            without=int(np.count_nonzero(~kept)),
            cut=int(np.count_nonzero(found.ends[kept] > stops[kept])),
        )

    def row(self, number: int, key: str) -> NDArray[np.int64]:
        """The documents of a row; each row comes once an epoch."""
        epoch, place = divmod(number, len(self.rows))
        return self.rows[order_of(self.orders, f"{key}:{epoch}", place, len(self.rows))]

    def targets(self, number: int, key: str) -> int:
        """How many targets a row has; nothing is read."""
        return int(self.counts[self.row(number, key)].sum())

    def filled(self, documents: NDArray[np.int64], capacity: int, padding: int) -> Tokens:
        """Documents one after another, and padding."""
        each = ((self.begins[one], self.lengths[one]) for one in documents.tolist())
        parts = [self.text[int(begin) : int(begin + length)] for begin, length in each]
        return padded(parts, capacity, padding)


def padded(documents: Sequence[Tokens], capacity: int, padding: int) -> NDArray[np.int32]:
    """A row of documents, and of padding, which is no part of the last one."""
    tokens = np.full(capacity, padding | NO_TARGET, dtype=np.int32)
    place = 0
    for document in documents:
        tokens[place : place + len(document)] = document
        place += len(document)
    tokens[place : place + 1] |= BEGIN
    return tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeCorpus(Corpus):
    """Whole documents, each once an epoch; which tokens are targets stands in the text."""

    train_side: WholeSide
    held_out_side: WholeSide
    padding: int
    """The token that fills rows; no target."""

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on."""
        documents = self.train_side.row(number, self._train_key)
        return self.train_side.filled(documents, self._capacity, self.padding)

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on."""
        documents = self.held_out_side.row(number, self._held_out_key)
        return self.held_out_side.filled(documents, self._capacity, self.padding)

    def sample_targets(self, number: int) -> int:
        """How many targets a row to train on has."""
        return self.train_side.targets(number, self._train_key)

    def held_out_sample_targets(self, number: int) -> int:
        """How many targets a held-out row has."""
        return self.held_out_side.targets(number, self._held_out_key)

    @property
    def all_targets(self) -> bool:
        """As `Corpus`."""
        side = self.held_out_side
        return bool(np.all(side.counts == side.lengths - 1))

    def held_out_rows(self, tokens_max: int) -> Iterator[Tokens]:
        """Rows of about `tokens_max` tokens, spread evenly over the held-out text."""
        side, length = self.held_out_side, self.sequence_length
        taken = min(len(side.rows), max(1, tokens_max // length))
        numbers = (number * len(side.rows) // taken for number in range(taken))
        return (side.filled(side.rows[n], self._capacity, self.padding) for n in numbers)

    @property
    def _train_key(self) -> str:
        return f"{self.seed}"

    @property
    def _held_out_key(self) -> str:
        return f"held:{self.seed}"

    @property
    def _capacity(self) -> int:
        return self.sequence_length + 1


def whole(corpus: Corpus, padding: int) -> Corpus:
    """The same text in rows of whole documents; Unusable if a side has no target."""
    if isinstance(corpus, MixedCorpus):
        return replace(corpus, texts=tuple(whole(each, padding) for each in corpus.texts))
    capacity = corpus.sequence_length + 1
    sides = {
        kind: WholeSide.of(text, capacity)
        for kind, text in (("training", corpus.train), ("held-out", corpus.held_out))
    }
    for kind, side in sides.items():
        if not len(side.rows):
            raise Unusable(
                f"no document of the {kind} text has a target within its first {capacity:,} "
                "tokens: raise run.model.sequence_length, name more text, or change "
                "train.held_out_share"
            )
        for count, what in (
            (side.without, "have no target within a row, and are passed over"),
            (side.cut, "are longer than a row, and cut at its end"),
        ):
            if count:
                log.warning(
                    "%d of %d %s documents %s (a row has %d tokens)",
                    count,
                    len(side.begins) + side.without,
                    kind,
                    what,
                    capacity,
                )
    texts, counts = (corpus.train, corpus.held_out), (corpus.files, corpus.seed, corpus.rows)
    return WholeCorpus(
        *texts,
        *counts,
        corpus.sequence_length,
        corpus.held_out_bytes,
        train_side=sides["training"],
        held_out_side=sides["held-out"],
        padding=padding,
    )
