"""Plain text files: which of their parts are held out, and the corpus that they make.

Units:   bytes; places count through the parts of one side.
Errors:  Unusable when there is too little text, and as `immutable_files.py`.
"""

import io
import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.data.held_out import FOLLOWING, FOLLOWING_MAX, Part, parts_of_file, warn_of_share
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.rows import TextBatch, parts_of
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.sources import FoundFiles

FILE_BYTES_MAX = 8 << 30  # it is held in memory
SEPARATOR = b"\n"


def load_corpus(
    found: FoundFiles,
    *,
    held_out_share: float,
    seed: int,
    shape: tuple[int, int],
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Corpus:
    """Read text files whole; `shape` is rows, sequence length."""
    sides = read_sides(found, held_out_share, file_bytes_max)
    train, held_out = (SEPARATOR.join(side) for side in sides)
    rows, sequence_length = shape
    for kind, text in (("training", train), ("held-out", held_out)):
        if len(text) <= sequence_length:
            passed = f" ({found.passed()})" if found.passed_over else ""
            raise Unusable(
                f"{found.data}: {len(text)} bytes of {kind} text, a sequence has "
                f"{sequence_length + 1}{passed}: name a larger text file or a folder with text "
                "files"
            )
    warn_of_share(found.data, len(train), len(held_out), held_out_share)
    as_bytes = [np.frombuffer(text, dtype=np.uint8) for text in (train, held_out)]
    return Corpus(as_bytes[0], as_bytes[1], len(found.paths), seed, rows, sequence_length)


def read_sides(
    found: FoundFiles, share: float, file_bytes_max: int = FILE_BYTES_MAX
) -> tuple[list[bytes], list[bytes]]:
    """The texts to train on and those that are held out; files in their order, in memory."""
    texts = [_read(file, file_bytes_max) for file in found.paths]
    parts = [parts_of_file(len(text), share, _reader(io.BytesIO(text))) for text in texts]
    split = split_of(parts, share)
    train, held_out = (
        [texts[span.file][span.start : span.stop] for span in side]
        for side in (split.train, split.held_out)
    )
    return train, held_out


def _read(file: Path, bytes_max: int) -> bytes:
    try:
        if file.stat().st_size > bytes_max:
            raise Unusable(f"{file}: larger than {bytes_max:,} bytes: split it")
        return file.read_bytes()
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from error


class FileSpan(NamedTuple):
    """A part of a file."""

    file: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TextSplit:
    """The parts of files on each side."""

    train: list[FileSpan]
    held_out: list[FileSpan]
    is_at_end: bool = False
    """True if there is too little text to hold out blocks of it: then its end is held out."""


def split_of(files: Sequence[Sequence[Part]], share: float) -> TextSplit:
    """The sides of a text, of its files' parts."""
    spans = [
        (part.held_out, FileSpan(number, part.start, part.stop))
        for number, parts in enumerate(files)
        for part in parts
    ]
    train = [span for held_out, span in spans if not held_out]
    held_out = [span for held_out, span in spans if held_out]
    if train and held_out:
        return TextSplit(train, held_out)
    return _split_at_end([parts[-1].stop if parts else 0 for parts in files], share)


def _split_at_end(sizes: Sequence[int], share: float) -> TextSplit:
    """All text but its end, and its end; files count as joined by a separator."""
    begins = [0, *itertools.accumulate(size + len(SEPARATOR) for size in sizes)]
    cut = round((begins[-1] - len(SEPARATOR)) * (1.0 - share))
    train, held_out = list[FileSpan](), list[FileSpan]()
    for file, (size, begin) in enumerate(zip(sizes, begins, strict=False)):
        inside = min(max(0, cut - begin), size)
        if inside:
            train.append(FileSpan(file, 0, inside))
        if inside < size:
            held_out.append(FileSpan(file, inside, size))
    return TextSplit(train, held_out, is_at_end=True)


CHUNK_BYTES = 1 << 16


class PlainText:
    """One side of the text, read as it is needed: no file is in memory whole."""

    def __init__(
        self,
        files: ImmutableFiles,
        spans: Sequence[FileSpan],
        name: str,
        *,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.files, self.spans, self.name = files, tuple(spans), name
        self._chunk_bytes = chunk_bytes
        lengths = (span.stop - span.start for span in spans)
        self._begins = [0, *itertools.accumulate(lengths)]

    def __len__(self) -> int:
        return self._begins[-1]

    def holds(self, _document: bytes, /) -> bool:
        """Everything: a side has parts of its own."""
        return True

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All of its text once, from a place on; after the last part places go on."""
        first = bisect_right(self._begins, place) - 1
        begin = self._begins[first]
        span = self.spans[first]
        cut = span.start + place - begin
        yield from self._chunks(FileSpan(span.file, cut, span.stop), place, span)
        for number in range(first + 1, len(self.spans)):
            yield from self._chunks(self.spans[number], self._begins[number], self.spans[number])
        for number in range(first):
            base = self._begins[number] + len(self)
            yield from self._chunks(self.spans[number], base, self.spans[number])
        yield from self._chunks(FileSpan(span.file, span.start, cut), begin + len(self), span)

    def _chunks(self, part: FileSpan, base: int, whole: FileSpan) -> Iterator[TextBatch]:
        """A part of a file that is a part of the text; `base` is the place of its first byte."""
        with self.files.opened(part.file) as file:
            at = part.start
            while at < part.stop:
                file.seek(at)
                text = file.read(min(self._chunk_bytes + 1, part.stop - at))
                text = next(parts_of(text, self._chunk_bytes))
                end = at + len(text)
                places = base + at - part.start, base + end - part.start
                inside = _without_half_a_character(text) if at == part.start else text
                yield TextBatch(places, (inside,), ended=end == whole.stop)
                at = end


def _without_half_a_character(text: bytes) -> bytes:
    """A text that begins anywhere, from its first character on."""
    begin = 0
    while begin < min(len(text), FOLLOWING_MAX) and text[begin] in FOLLOWING:
        begin += 1
    return text[begin:]


def plain_sides(
    found: FoundFiles, share: float, chunk_bytes: int = CHUNK_BYTES
) -> tuple[PlainText, PlainText]:
    """The text to train on and the held-out text; `chunk_bytes`: what is read at a time."""
    fixed = ImmutableFiles(found.paths)
    split = _split(fixed, share)
    sides = (
        PlainText(fixed, split.train, "to train on", chunk_bytes=chunk_bytes),
        PlainText(fixed, split.held_out, "held out", chunk_bytes=chunk_bytes),
    )
    for side in sides:
        if not len(side):
            raise Unusable(
                f"{found.data}: no text is {side.name}: name more text, or change "
                "train.held_out_share"
            )
    return sides


def remarks_on_split(found: FoundFiles, share: float) -> list[str]:
    """What the owner of text files should know of what is held out, a line each."""
    if not _split(ImmutableFiles(found.paths), share).is_at_end:
        return []
    remark = (
        f"{found.data}: too little text to hold out blocks of it: its last {share:.1%} are held "
        "out, and that changes when text is added"
    )
    return [remark]


def _split(files: ImmutableFiles, share: float) -> TextSplit:
    parts = []
    for number, size in enumerate(files.sizes):
        with files.opened(number) as file:
            parts.append(parts_of_file(size, share, _reader(file)))
    return split_of(parts, share)


def _reader(file: BinaryIO) -> Callable[[int, int], bytes]:
    def read(start: int, stop: int) -> bytes:
        file.seek(start)
        return file.read(stop - start)

    return read
