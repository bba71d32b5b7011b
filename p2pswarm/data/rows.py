"""Rows of tokens, filled with documents that come one after another; and where each row begins.

Units:   places are in bytes, as their source counts them.
Errors:  Unusable where no document of the side is near.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.held_out import FOLLOWING, FOLLOWING_MAX, LINE
from p2pswarm.data.samples.corpus import Tokens, stable_hash
from p2pswarm.data.tokenizer import Tokenizer

PART_BYTES = 1 << 20  # of a document, tokenised at once


def end_of(tokenizer: Tokenizer | None) -> Tokens:
    """Return what follows a document: the token that ends it, or else a line break."""
    if tokenizer is None:
        return np.frombuffer(LINE, dtype=np.uint8)
    if tokenizer.end is None:
        return tokenizer.encode([LINE])[0]
    return np.array([tokenizer.end], dtype=tokenizer.dtype)


def begin_of(tokenizer: Tokenizer | None) -> Tokens:
    """Return what a document begins with: no token, or one."""
    if tokenizer is None:
        return np.empty(0, dtype=np.uint8)
    return np.array([] if tokenizer.begin is None else [tokenizer.begin], dtype=tokenizer.dtype)


def encoded(texts: Sequence[bytes], tokenizer: Tokenizer | None) -> list[Tokens]:
    """The tokens of each text; without a tokenizer its bytes."""
    if tokenizer is not None:
        return tokenizer.encode(texts)
    return [np.frombuffer(text, dtype=np.uint8) for text in texts]


def parts_of(document: bytes, bytes_max: int = PART_BYTES) -> Iterator[bytes]:
    """A document in parts of at most `bytes_max`, cut after a line, or else before a character.

    `bytes_max` is more than `FOLLOWING_MAX`, or a part could be empty.
    """
    start = 0
    while len(document) - start > bytes_max:
        cut = document.rfind(LINE, start, start + bytes_max) + 1
        if cut == 0:
            cut = start + bytes_max
            while cut > start + bytes_max - FOLLOWING_MAX and document[cut] in FOLLOWING:
                cut -= 1
        yield document[start:cut]
        start = cut
    yield document[start:]


PASSED_BYTES_MAX = 256 << 20  # of documents on the other side before it is given up
TOKEN_BYTES = 8  # taken for each token that a row lacks; more are read if that was too few


class Texts(Protocol):
    """Texts by number, made when they are asked for."""

    def __getitem__(self, number: int, /) -> bytes:
        """One of them, in UTF-8; empty for none."""
        ...


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Texts that follow each other."""

    begins: Sequence[int]
    """Where each begins, and where the last one ends."""
    texts: Texts
    ended: bool = True
    """True if the last one is the end of its document; the others are."""


class Side(Protocol):
    """The text to train on, or the held-out text."""

    @property
    def name(self) -> str:
        """Return what its documents are, for an error."""
        ...

    def __len__(self) -> int:
        """Its places."""
        ...

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All of its documents once, from the one at a place on; after the end places go on."""
        ...

    def holds(self, document: bytes, /) -> bool:
        """Return whether a document is on this side."""
        ...


class Row:
    """A row that is being filled.

    It begins at a place: in the document that the place is in, as far into it. Documents follow,
    each with what ends it, until the row is full.
    """

    def __init__(self, place: int, length: int, tokenizer: Tokenizer | None) -> None:
        self.place = place
        self.lacking = length
        """How many tokens it needs still."""
        self._tokenizer = tokenizer
        self._begin, self._end = begin_of(tokenizer), end_of(tokenizer)
        self._parts: list[NDArray[Any]] = []

    @property
    def tokens(self) -> Tokens:
        """tokens_S, when it is full."""
        return np.concatenate(self._parts)

    def add(self, document: bytes, into: float, *, begun: bool, ended: bool) -> None:
        """A document, or a part of one, from as far into it on; `begun`: it has its beginning."""
        begin = int(into * len(document))
        if begun and begin == 0:
            self._take(self._begin)
        while 0 < begin < len(document) and document[begin] in FOLLOWING:
            begin -= 1
        for tokens in self._encoded(document[begin:], self.lacking):
            self._take(tokens)
        if ended:
            self._take(self._end)

    def _take(self, tokens: Tokens) -> None:
        self._parts.append(tokens[: self.lacking])
        self.lacking -= len(self._parts[-1])

    def _encoded(self, text: bytes, most: int) -> Iterator[Tokens]:
        """At least `most` tokens of a text, or all."""
        if self._tokenizer is None:
            yield np.frombuffer(text[:most], dtype=np.uint8)
            return
        for part in parts_of(text, TOKEN_BYTES * most):
            (tokens,) = self._tokenizer.encode([part])
            yield tokens
            most -= len(tokens)
            if most <= 0:
                return


def fill(rows: Sequence[Row], side: Side, passed_bytes_max: int = PASSED_BYTES_MAX) -> None:
    """Fill rows that are in the order of their places; a short text comes again and again.

    Rows whose places lie near each other are best filled together: what lies between them is read
    once.
    """
    filling = _Filling(rows, side, passed_bytes_max)
    while not filling.done:
        filling.lap()


class _Filling:
    """Rows that are filled, and how much was passed over since something was found."""

    def __init__(self, rows: Sequence[Row], side: Side, passed_bytes_max: int) -> None:
        self._begin = rows[0].place
        self._side = side
        self._waiting, self._open = list(rows), list[Row]()
        self._found = self._passed_bytes = 0
        self._ended = False
        """True if the text before the next one is the end of its document."""
        self._passed_bytes_max = passed_bytes_max

    @property
    def done(self) -> bool:
        """Return whether all rows are full."""
        return not self._waiting and not self._open

    def lap(self) -> None:
        """Go through all documents once, or until all rows are full."""
        self._found = self._passed_bytes = 0
        self._ended = False  # a place may lie within a document that is torn apart
        before = self._lacking
        for batch in self._side.batches_from(self._begin):
            self._take(batch)
            if self.done:
                return
            if self._passed_bytes > self._passed_bytes_max:
                break
        if not self._found:
            raise Unusable(
                f"no document is {self._side.name}: name more text, or change train.held_out_share"
            )
        if self._lacking == before:
            raise Unusable(
                "the tokenizer makes no tokens of the text: name another in train.tokenizer"
            )

    @property
    def _lacking(self) -> int:
        """Return how many tokens all rows need."""
        return sum(row.lacking for row in (*self._waiting, *self._open))

    def _take(self, batch: TextBatch) -> None:
        count, number = len(batch.begins) - 1, 0
        while number < count and not self.done:
            if not self._open:  # what no row needs is not made
                at = bisect_right(batch.begins, self._waiting[0].place) - 1
                if (number := max(number, at)) >= count:
                    return
            begin, end = batch.begins[number], batch.begins[number + 1]
            while self._waiting and self._waiting[0].place < end:
                self._open.append(self._waiting.pop(0))
            text = batch.texts[number]
            number += 1
            begun, ended = self._ended, batch.ended or number < count
            self._ended = ended
            if text:
                self._add(text, begin, end, begun=begun, ended=ended)

    def _add(self, text: bytes, begin: int, end: int, *, begun: bool, ended: bool) -> None:
        if not self._side.holds(text):
            self._passed_bytes += len(text)
            return
        self._found, self._passed_bytes = self._found + 1, 0
        length = max(1, end - begin)  # a short text may lie between two places
        for row in self._open:
            row.add(text, max(0, row.place - begin) / length, begun=begun, ended=ended)
        self._open = [row for row in self._open if row.lacking]


READ_BYTES = 1 << 20  # of a group for a row: 1.5 ms of a processor
OPEN_BYTES = 512 << 20  # of groups that are read for the first microbatch: a second
OPEN_GROUPS_MAX = 16
KEPT_BYTES = 16 << 20  # of the rows of groups that are open


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceLimits:
    """How rows are dealt to groups."""

    read_bytes: int = READ_BYTES
    open_bytes: int = OPEN_BYTES
    kept_bytes: int = KEPT_BYTES


SHIPPED = PlaceLimits()


class RowPlaces:
    """The places where the rows of a text begin; they follow from the seed and the row's number.

    Where any place is found at once, each row is drawn from all of the text. Where a group of rows
    has to be read from its beginning, that would cost a whole group for each row. So some groups
    are drawn at a time, as many as are about `OPEN_BYTES`, and rows are dealt to them in turn; a
    group is left for another when it has had a row for each `READ_BYTES` of it, one group after
    another. Every byte of the text is as likely to begin a row as any other, and reading costs
    about `READ_BYTES` a row however large groups are.
    """

    def __init__(
        self,
        length: int,
        groups: Sequence[int],
        *,
        seed: int,
        row_shape: tuple[int, int],
        limits: PlaceLimits,
    ) -> None:
        """`groups`: where each begins, and where the last ends; empty if none has to be read whole.

        row_shape: the rows of a microbatch, and the bytes of a row's tokens.
        """
        self._length, self._groups, self._seed = length, groups, seed
        self._rows, row_bytes = row_shape
        self.open = self.each = 1
        if groups:
            mean_bytes = length / (len(groups) - 1)
            self.open = min(OPEN_GROUPS_MAX, max(1, int(limits.open_bytes / mean_bytes)))
            kept = max(1, limits.kept_bytes // (row_bytes * self.open))
            self.each = min(kept, max(1, round(mean_bytes / limits.read_bytes)))

    @property
    def shape(self) -> str:
        """Return what decides places besides the text and the seed; empty if nothing does."""
        return f" {self.open} groups {self.each} rows" if self.each > 1 else ""

    def visit(self, number: int) -> tuple[int, int]:
        """Return what rows that are filled in one pass with this one have in common."""
        if self.each == 1:
            return 0, number
        turn, slot = divmod(number, self.open)
        return slot, (turn + self._shift(slot)) // self.each

    def rows_of(self, visit: tuple[int, int]) -> range:
        """The rows that are filled in one pass."""
        slot, number = visit
        if self.each == 1:
            return range(number, number + 1)
        first = number * self.each - self._shift(slot)
        return range(max(0, first) * self.open + slot, (first + self.each) * self.open, self.open)

    def place(self, kind: str, number: int) -> int:
        """Return where a row of this kind begins."""
        microbatch, row = divmod(number, self._rows)
        drawn = stable_hash(f"{kind}:{self._seed}:{microbatch}:{row}")
        if self.each == 1:
            return drawn % self._length
        slot, visit = self.visit(number)
        where = stable_hash(f"{kind} group:{self._seed}:{slot}:{visit}") % self._length
        group = bisect_right(self._groups, where) - 1
        begin, end = self._groups[group : group + 2]
        return begin + drawn % (end - begin)

    def _shift(self, slot: int) -> int:
        """By how many of its rows a group is left sooner: all at once would be one long wait."""
        return slot * self.each // self.open
