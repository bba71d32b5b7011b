"""Other samples than windows drawn anywhere: each window once an epoch; whole documents."""

import bisect
import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import (
    Corpus,
    Tokens,
    TokenText,
    WeightedCorpus,
    scanned,
    stacked,
)
from p2pswarm.data.samples.mixture import (
    PERIOD,
    JoinedText,
    MixedCorpus,
    MixtureOrder,
    Orders,
    order_of,
)
from p2pswarm.data.samples.whole_corpus import whole


class Piece(NamedTuple):
    """The first `length` tokens of a document, in a row."""

    document: int
    length: int


Row = list[Piece]


class _Microbatch:
    """The rows of a microbatch while they are filled."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows: list[Row] = [[] for _ in range(rows)]
        self.free = [(capacity, row) for row in range(rows)]
        """The room of each row, and its number; the least first."""

    def put(self, piece: Piece, place: int) -> None:
        """Add to the row at `place` of `free`."""
        room, row = self.free.pop(place)
        self.rows[row].append(piece)
        if room > piece.length:
            bisect.insort(self.free, (room - piece.length, row))


def packed(lengths: Sequence[int], microbatches: int, rows: int, capacity: int) -> list[list[Row]]:
    """The rows of each microbatch, of documents of these lengths, none over `capacity` or under 1.

    Attention that is causal within each document takes work in proportion to its squared length, as
    FlashCP balances it. The longest document comes first, each goes to the microbatch with the
    least work so far that has room, there into the fullest row that it fits. What no row has room
    for is cut to the room that is left; if there is room still, documents of the step come again
    from their beginning. So every row is full, every token counts, and nothing is padded.
    """
    made = [_Microbatch(rows, capacity) for _ in range(microbatches)]
    least = [(0, number) for number in range(microbatches)]  # work and microbatch, a heap
    order = sorted(range(len(lengths)), key=lambda document: (-lengths[document], document))
    left = [document for document in order if not _placed(document, lengths[document], made, least)]
    again = [*left, *reversed(order)]  # then the shortest: as many whole ones as possible
    turn = 0
    for microbatch in made:
        while microbatch.free:
            document = again[turn % len(again)]
            turn += 1
            room = microbatch.free[-1][0]
            microbatch.put(Piece(document, min(room, lengths[document])), -1)
    return [microbatch.rows for microbatch in made]


def _placed(
    document: int, length: int, made: list[_Microbatch], least: list[tuple[int, int]]
) -> bool:
    """Put a whole document where there is room; False if no row has it."""
    full: list[tuple[int, int]] = []
    found = False
    while least and not found:
        work, number = heapq.heappop(least)
        microbatch = made[number]
        place = bisect.bisect_left(microbatch.free, (length, -1))
        found = place < len(microbatch.free)
        if found:
            microbatch.put(Piece(document, length), place)
            work += length**2
        full.append((work, number))
    for each in full:
        heapq.heappush(least, each)
    return found


FULL = 0.95  # of a step's room that its documents take, on the mean: few are then cut
STEPS_KEPT = 2  # packings: the step that is trained and the next


@dataclass(frozen=True, slots=True)
class EpochCorpus(Corpus):
    """Consecutive windows of the text, each once an epoch, in another order in each."""

    orders: Orders = field(default_factory=OrderedDict, compare=False)

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on."""
        length = self.sequence_length
        windows = (len(self.train) - 1) // length
        epoch, place = divmod(number, windows)
        start = order_of(self.orders, f"{self.seed}:{epoch}", place, windows) * length
        return self.train[start : start + length + 1]


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a text, those longer than a row in pieces."""

    begins: NDArray[np.int64]
    """Where they begin in the text."""
    lengths: NDArray[np.int32]
    """With the token that stands before them."""
    orders: Orders = field(default_factory=OrderedDict, compare=False)

    @property
    def mean(self) -> Fraction:
        """Their length, exactly."""
        return Fraction(int(self.lengths.sum(dtype=np.int64)), len(self.lengths))

    def chosen(self, number: int, seed: int) -> tuple[int, int]:
        """Return where the document begins that is taken as this one, and its length."""
        epoch, place = divmod(number, len(self.begins))
        document = order_of(self.orders, f"{seed}:{epoch}", place, len(self.begins))
        return int(self.begins[document]), int(self.lengths[document])


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedCorpus(Corpus):
    """Whole documents packed into rows; each document once an epoch, but for what is cut."""

    whole: Corpus
    """The same text, with other samples."""
    microbatches: int
    """Of a step."""
    end: int
    """The token that ends a document; in a row it stands before each."""
    documents: tuple[Documents, ...]
    """Of each text of a mixture, places in all text."""
    order: MixtureOrder
    """From which text each document comes: shares are of tokens."""
    steps: "OrderedDict[int, _Packing]" = field(default_factory=OrderedDict, compare=False)

    @property
    def documents_each_step(self) -> int:
        """The documents that a step takes."""
        room = self.microbatches * self.rows * (self.sequence_length + 1)
        counts = zip(self.documents, self.order.counts, strict=True)
        mean = sum(each.mean * count for each, count in counts) / PERIOD
        return max(1, round(float(FULL * room / mean)))

    def digest(self) -> bytes:
        """SHA-256 of all text, as without packing."""
        return self.whole.digest()

    def microbatch(self, number: int) -> Tokens:
        """tokens_BS of a microbatch of the run."""
        step, place = divmod(number, self.microbatches)
        packing = self.steps.get(step)
        if packing is None:
            packing = self.steps[step] = self._packing(step)
            while len(self.steps) > STEPS_KEPT:
                self.steps.popitem(last=False)
        return stacked([self._row(row, packing.begins) for row in packing.rows[place]])

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on: a window."""
        return self.whole.held_out_sample(number)

    @property
    def blocks(self) -> bool:
        """A step is planned at once."""
        return True

    @property
    def parts(self) -> tuple[WeightedCorpus, ...]:
        """The texts that it is mixed of."""
        return self.whole.parts

    def _packing(self, step: int) -> "_Packing":
        count = self.documents_each_step
        places = [self.order[number] for number in range(step * count, (step + 1) * count)]
        chosen = [self.documents[part].chosen(number, self.seed) for part, number in places]
        lengths = [length for _, length in chosen]
        capacity = self.sequence_length + 1
        rows = packed(lengths, self.microbatches, self.rows, capacity)
        return _Packing([begin for begin, _ in chosen], rows)

    def _row(self, row: Row, begins: list[int]) -> Tokens:
        parts: list[NDArray[Any]] = []
        for piece in row:
            begin = begins[piece.document]
            parts.append(np.array([self.end], dtype=np.int32))
            parts.append(self.train[begin : begin + piece.length - 1].astype(np.int32))
        return np.concatenate(parts)


@dataclass(frozen=True, slots=True)
class _Packing:
    """The rows of a step's microbatches, of the documents that were chosen for it."""

    begins: list[int]
    """Where each document begins in the text."""
    rows: list[list[Row]]


def documents_of(
    text: TokenText, end: int, longest: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The documents' begins, and lengths with the token before them, of `longest` at most."""
    ends = [np.flatnonzero(part == end) + start for start, part in scanned(text)]
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
    if samples == "packed":
        return _in_documents(corpus, microbatches, end)
    if samples == "whole":
        return whole(corpus, max(end, 0))
    if samples != "once":
        return corpus
    if isinstance(corpus, MixedCorpus):
        return replace(corpus, texts=tuple(EpochCorpus(*_same(each)) for each in corpus.texts))
    return EpochCorpus(*_same(corpus))


def _in_documents(corpus: Corpus, microbatches: int, end: int) -> PackedCorpus:
    texts, begins, longest = corpus.parts, [0], corpus.sequence_length + 1
    if isinstance(corpus.train, JoinedText):
        begins = corpus.train.begins
    documents = []
    for text, begin in zip(texts, begins, strict=False):
        starts, lengths = documents_of(text.corpus.train, end, longest)
        documents.append(Documents(starts + begin, lengths))
    pairs = zip(texts, documents, strict=True)
    weights = [Fraction(text.share) / found.mean for text, found in pairs]  # of documents
    return PackedCorpus(
        *_same(corpus),
        whole=corpus,
        microbatches=microbatches,
        end=end,
        documents=tuple(documents),
        order=MixtureOrder(weights, f"documents:{corpus.seed}"),
    )


def _same(corpus: Corpus) -> tuple[TokenText, TokenText, int, int, int, int, int]:
    """Return what all kinds of a corpus have."""
    texts, counts = (corpus.train, corpus.held_out), (corpus.files, corpus.seed, corpus.rows)
    return *texts, *counts, corpus.sequence_length, corpus.held_out_bytes
