"""Rows of text read as they are needed, out of files of JSON lines: any size begins at once.

A row begins at a byte of the files that follows from the seed and the row's number: in the document
that the byte is in, as far into it. Documents follow until the row is full. So nothing is
prepared, no table is kept, and what a row holds depends on the files alone.

Whether a document is held out is decided by the hash of its text, as ever, when it is read.

Units:   bytes; places count through all files, in their order.
Errors:  Unusable for files whose first row has no text, and where no document is on one side.
         Later rows without text are passed over, and told in the log.
"""

import hashlib
import itertools
import logging
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from p2pswarm.data.corpus import Corpus, stable_hash
from p2pswarm.data.prepared_text import is_held_out_document
from p2pswarm.data.rows import LINE_BYTES_MAX, documents, text_of_line
from p2pswarm.data.sources import JSON_LINES
from p2pswarm.data.tokenised import end_of, parts_of
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.data.tokens import Tokens
from p2pswarm.errors import Unusable
from p2pswarm.train_config import TrainConfig

log = logging.getLogger(__name__)
BLOCK_BYTES = 1 << 16
PASSED_BYTES_MAX = 256 << 20  # of documents on the other side before it is given up
DIGEST_BLOCKS = 4096  # 256 MiB of a larger text are hashed: 10 GB would take ten seconds
TOKEN_BYTES = 8  # taken for each token that a row lacks; more are read if that was too few
MEASURED_TOKENS = 1 << 16


class LineFiles:
    """The documents of files of JSON lines, from any byte of them on."""

    def __init__(self, files: Sequence[Path], field: str) -> None:
        self._files, self._field = tuple(files), field
        try:
            sizes = [file.stat().st_size for file in files]
        except OSError as error:
            raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error
        self._begins = [0, *itertools.accumulate(sizes)]
        self._told = False

    def __len__(self) -> int:
        return self._begins[-1]

    def from_byte(self, place: int) -> Iterator[tuple[bytes, float]]:
        """All documents, once, from the one that a byte is in; and how far into it that is.

        The first one comes whole; of the others that is 0.
        """
        first = bisect_right(self._begins, place) - 1
        inside = place - self._begins[first]
        yield from self._of_file(first, inside, None)
        for number in (*range(first + 1, len(self._files)), *range(first)):
            yield from self._of_file(number, 0, None)
        yield from self._of_file(first, 0, inside)

    def digest(self, what: str) -> bytes:
        """SHA-256 of the files: of all of a small text, of blocks that lie anywhere of a large one.

        `what`: how they are read.
        """
        digest = hashlib.sha256(f"{what} {self._field!r} {self._begins}".encode())
        sizes = [stop - start for start, stop in itertools.pairwise(self._begins)]
        blocks = [0, *itertools.accumulate(-(-size // BLOCK_BYTES) for size in sizes)]
        chosen: Iterable[int] = range(blocks[-1])
        if blocks[-1] > DIGEST_BLOCKS:
            hashes = (stable_hash(f"block:{number}") for number in range(DIGEST_BLOCKS))
            chosen = sorted({found % blocks[-1] for found in hashes})
        for block in chosen:
            number = bisect_right(blocks, block) - 1
            with self._opened(number) as file:
                file.seek((block - blocks[number]) * BLOCK_BYTES)
                digest.update(file.read(BLOCK_BYTES))
        return digest.digest()

    def _of_file(self, number: int, start: int, stop: int | None) -> Iterator[tuple[bytes, float]]:
        """From the line that byte `start` is in, to the one before byte `stop` is."""
        path = self._files[number]
        with self._opened(number) as file:
            begin = _line_begin(file, start)
            stop = None if stop is None else _line_begin(file, stop)
            file.seek(begin)
            while stop is None or begin < stop:
                line = file.readline(LINE_BYTES_MAX + 1)
                if not line:
                    return
                text = self._text(path, begin, line)
                if text:
                    yield text, max(0, start - begin) / len(line)
                begin += len(line)

    def _text(self, path: Path, begin: int, line: bytes) -> bytes:
        """The document of a line; empty for one without."""
        if not line.strip():
            return b""
        try:
            return text_of_line(line, path, self._field, f"the row at byte {begin:,}")
        except Unusable as reason:
            if not self._told:
                log.warning("%s: it is passed over, and so are others like it", reason)
                self._told = True
            return b""

    @contextmanager
    def _opened(self, number: int) -> Iterator[BinaryIO]:
        path, size = self._files[number], self._begins[number + 1] - self._begins[number]
        try:
            if path.stat().st_size != size:
                raise Unusable(
                    f"{path}: changed while the run reads it: put it back as it was, or begin "
                    "another run"
                )
            with path.open("rb") as file:
                yield file
        except OSError as error:
            raise Unusable(f"{path}: cannot be read: {error.strerror}") from error


def _line_begin(file: BinaryIO, place: int) -> int:
    """Where the line begins that a byte is in; the break that ends a line is in it."""
    end = place
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        if (cut := file.read(end - start).rfind(b"\n")) >= 0:
            return start + cut + 1
        end = start
    return 0


class _UnreadText:
    """How long a text is that nobody has read, in bytes of its files."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> Tokens:
        raise TypeError("a text that is streamed has rows, and no tokens by number")


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedCorpus(Corpus):
    """Rows that are read when they are asked for."""

    lines: LineFiles
    share: float
    """Of the documents, that is held out."""
    tokenizer: Tokenizer | None

    @property
    def blocks(self) -> bool:
        """It reads and makes tokens."""
        return True

    @property
    def counted(self) -> bool:
        """Nobody has read all of it."""
        return False

    def digest(self) -> bytes:
        """SHA-256 of the files and of how they are read."""
        tokenizer = self.tokenizer.digest if self.tokenizer else ""
        return self.lines.digest(f"streamed {self.share!r} {tokenizer}")

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on."""
        return self._row("train", number, held_out=False)

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on."""
        return self._row("held out", number, held_out=True)

    def held_out_rows(self, tokens_max: int) -> Iterator[Tokens]:
        """Rows from anywhere: no pass can be made over what nobody has counted."""
        most = max(1, min(tokens_max, len(self.held_out)) // self.sequence_length)
        return (self.held_out_sample(number) for number in range(most))

    @property
    def bytes_per_token(self) -> float:
        """Of the first held-out documents."""
        if self.tokenizer is None:
            return 1.0
        read_bytes = tokens = 0
        for document, _ in self._documents(0, held_out=True):
            encoded = self.tokenizer.encode(list(parts_of(document)))
            read_bytes += len(document)
            tokens += 1 + sum(map(len, encoded))
            if tokens >= MEASURED_TOKENS:
                break
        return read_bytes / tokens

    def _row(self, kind: str, number: int, *, held_out: bool) -> Tokens:
        lacking = self.sequence_length + 1
        microbatch, row = divmod(number, self.rows)
        place = stable_hash(f"{kind}:{self.seed}:{microbatch}:{row}") % len(self.lines)
        end, parts = end_of(self.tokenizer), list[NDArray[Any]]()
        while True:
            for document, into in self._documents(place, held_out=held_out):
                for tokens in (*self._tokens(document, into, lacking), end):
                    parts.append(tokens[:lacking])
                    lacking -= len(parts[-1])
                if not lacking:
                    return np.concatenate(parts)

    def _tokens(self, document: bytes, into: float, most: int) -> Iterator[Tokens]:
        """At least `most` tokens of a document, or all, from a place in it on."""
        begin = int(into * len(document))
        while 0 < begin < len(document) and document[begin] & 0xC0 == 0x80:  # noqa: PLR2004  UTF-8
            begin -= 1
        text = document[begin:]
        if self.tokenizer is None:
            yield np.frombuffer(text[:most], dtype=np.uint8)
            return
        for part in parts_of(text, TOKEN_BYTES * most):
            (tokens,) = self.tokenizer.encode([part])
            yield tokens
            most -= len(tokens)
            if most <= 0:
                return

    def _documents(self, place: int, *, held_out: bool) -> Iterator[tuple[bytes, float]]:
        """The documents of one side, once, from a place on; Unusable if there are none near."""
        passed_bytes = found = 0
        for document, into in self.lines.from_byte(place):
            if is_held_out_document(document, self.share) is held_out:
                found, passed_bytes = found + 1, 0
                yield document, into
                continue
            passed_bytes += len(document)
            if passed_bytes > PASSED_BYTES_MAX:
                break
        if not found:
            side = "held out" if held_out else "to train on"
            raise Unusable(f"no document is {side}: name more text, or change train.held_out_share")


def streamed(
    train: TrainConfig,
    files: Sequence[Path],
    tokenizer: Tokenizer | None,
    *,
    seed: int,
    shape: tuple[int, int],
) -> StreamedCorpus:
    """The corpus of `files`, which `train.data` means; `shape` is rows, sequence length."""
    if not files or any(file.suffix not in JSON_LINES for file in files):
        raise Unusable(
            f'{train.data}: run.batch.samples = "streamed" takes files of JSON lines '
            f"({', '.join(sorted(JSON_LINES))}): convert it, or set another of samples"
        )
    for file in files:
        next(documents(file, train.field), None)  # says what is wrong with its first row
    lines = LineFiles(files, train.field)
    held_out = int(len(lines) * train.held_out_share)
    rows, sequence_length = shape
    corpus = StreamedCorpus(
        train=_UnreadText(len(lines) - held_out),
        held_out=_UnreadText(held_out),
        files=len(files),
        seed=seed,
        rows=rows,
        sequence_length=sequence_length,
        lines=lines,
        share=train.held_out_share,
        tokenizer=tokenizer,
    )
    corpus.sample(0)
    corpus.held_out_sample(0)
    return corpus
