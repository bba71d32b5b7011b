"""A corpus of tokens: what each microbatch holds.

Shapes:  tokens_BS: B rows of S = sequence length + 1 tokens: inputs, then targets; uint8 where a
         token is a byte, else int32.
"""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from p2pswarm.data.samples.target_marks import targets_in

Tokens = NDArray[np.integer[Any]]


def stacked(rows: Sequence[Tokens]) -> Tokens:
    """Rows as one array: uint8 for bytes, int32 for all others, which the wire and torch know."""
    together = np.stack(rows)
    return together if together.dtype == np.uint8 else together.astype(np.int32)


class TokenText(Protocol):
    """Text in memory (an array) or on disk (`token_file.StoredText`)."""

    def __len__(self) -> int:
        """Its length in tokens."""
        ...

    def __getitem__(self, part: slice, /) -> Tokens:
        """A part of it."""
        ...


SCAN_TOKENS = 1 << 20  # read at a time


def scanned(text: TokenText, scan_tokens: int = SCAN_TOKENS) -> Iterator[tuple[int, Tokens]]:
    """A whole text in parts, each with its place."""
    for start in range(0, len(text), scan_tokens):
        yield start, text[start : start + scan_tokens]


@dataclass(frozen=True, slots=True)
class Corpus:
    """The text to train on, and the held-out text.

    A microbatch depends only on the run's seed and its number: any trainer can make any microbatch
    again, at any time.
    """

    train: TokenText
    held_out: TokenText
    files: int
    seed: int
    rows: int
    sequence_length: int
    held_out_bytes: int = 0
    """How many bytes the held-out text has; 0: as many as tokens."""

    def digest(self) -> bytes:
        """SHA-256 of all text, 32 bytes: trainers with the same make the same microbatches."""
        digest = hashlib.sha256(len(self.train).to_bytes(8))  # so that no border can be moved
        for text in (self.train, self.held_out):
            for _, part in scanned(text):
                digest.update(part.data)
        return digest.digest()

    def microbatch(self, number: int) -> Tokens:
        """tokens_BS of a microbatch of the run."""
        return stacked([self.sample(row) for row in self._rows_of(number)])

    def held_out_batch(self, number: int) -> Tokens:
        """tokens_BS of one of the batches that are never trained on."""
        return stacked([self.held_out_sample(row) for row in self._rows_of(number)])

    def targets(self, number: int) -> int:
        """How many targets a microbatch has."""
        return sum(map(self.sample_targets, self._rows_of(number)))

    def held_out_targets(self, number: int) -> int:
        """How many targets a held-out batch has."""
        return sum(map(self.held_out_sample_targets, self._rows_of(number)))

    def sample_targets(self, number: int) -> int:
        """How many targets a row to train on has."""
        return targets_in(self.sample(number)[np.newaxis])

    def held_out_sample_targets(self, number: int) -> int:
        """How many targets a held-out row has."""
        return targets_in(self.held_out_sample(number)[np.newaxis])

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on; rows count through all microbatches."""
        return self._window(self.train, "train", number)

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on."""
        return self._window(self.held_out, "held out", number)

    def held_out_rows(self, tokens_max: int) -> Iterator[Tokens]:
        """Consecutive windows, about `tokens_max` tokens, spread evenly over the held-out text."""
        length = self.sequence_length
        windows = (len(self.held_out) - 1) // length
        taken = min(windows, max(1, tokens_max // length))
        begins = (number * windows // taken * length for number in range(taken))
        return (self.held_out[begin : begin + length + 1] for begin in begins)

    @property
    def blocks(self) -> bool:
        """Return whether making samples may take more than a moment: then a thread makes them."""
        return False

    @property
    def counted(self) -> bool:
        """Return whether its tokens are counted; else its lengths are in bytes of its files."""
        return True

    @property
    def parts(self) -> "tuple[WeightedCorpus, ...]":
        """The texts that it is mixed of; one that is not mixed is its only part."""
        return (WeightedCorpus(self, 1.0),)

    @property
    def all_targets(self) -> bool:
        """Return whether every held-out token is a target, but the first of each document."""
        return True

    @property
    def bytes_per_token(self) -> float | None:
        """Of the held-out text; None where some tokens are only read, and their bytes with them."""
        if not self.all_targets:
            return None
        return (self.held_out_bytes or len(self.held_out)) / len(self.held_out)

    def _rows_of(self, microbatch: int) -> range:
        return range(microbatch * self.rows, (microbatch + 1) * self.rows)

    def _window(self, text: TokenText, kind: str, number: int) -> Tokens:
        length = self.sequence_length + 1
        microbatch, row = divmod(number, self.rows)
        place = stable_hash(f"{kind}:{self.seed}:{microbatch}:{row}") % (len(text) - length + 1)
        return text[place : place + length]


@dataclass(frozen=True, slots=True)
class WeightedCorpus:
    """A text of a mixture, and its share of the rows."""

    corpus: Corpus
    share: float


def stable_hash(text: str) -> int:
    """64 bits that depend on the text alone, on every machine.

    Names of files may be in it, and those may be bytes that are no UTF-8.
    """
    return int.from_bytes(hashlib.sha256(text.encode(errors="surrogateescape")).digest()[:8])


def held_out_passes(corpus: Corpus, tokens_max: int) -> list[Iterator[Tokens]]:
    """Batches of consecutive windows, for each text of a mixture, or for the only one.

    About `tokens_max` tokens in all, spread evenly over each, and none twice; texts have their
    shares of them, as far as all have so many.
    """
    whole = [len(part.corpus.held_out) / part.share for part in corpus.parts]
    most = min(float(tokens_max), *whole)
    return [_batches(part.corpus, round(most * part.share)) for part in corpus.parts]


def _batches(corpus: Corpus, tokens_max: int) -> Iterator[Tokens]:
    rows = corpus.held_out_rows(tokens_max)
    while batch := list(itertools.islice(rows, corpus.rows)):
        yield stacked(batch)
