"""Plain text files: which are read, which are held out, and the corpus that they make.

A hash of its name decides whether a file is held out. So the same folder splits alike
everywhere, and when a folder grows, its old files stay where they were.

Units:   bytes; places count through the parts of one side.
Errors:  Unusable when there is no text, or too little, and as `immutable_files.py`.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.data.corpus import Corpus, stable_hash
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.rows import FOLLOWING, FOLLOWING_MAX, TextBatch, parts_of
from p2pswarm.data.sources import ROWS, before_wildcards, found_files, is_pattern
from p2pswarm.settings.train_config import HELD_OUT_SHARE

FILE_BYTES_MAX = 8 << 30  # it is held in memory
PROBE_BYTES = 8192  # a file with a NUL in its first bytes is not text; git reads as many
SKIPPED = frozenset({"__pycache__", "site-packages", "node_modules"})  # not the user's own text
SEPARATOR = b"\n"


def load_corpus(
    path: Path,
    *,
    suffixes: tuple[str, ...] = (),
    held_out_share: float = HELD_OUT_SHARE,
    seed: int,
    shape: tuple[int, int],
    file_bytes_max: int = FILE_BYTES_MAX,
) -> Corpus:
    """Read a file, all text files below a folder, or those of a pattern.

    `shape` is rows, sequence length.
    """
    files = files_of_text(path, suffixes)
    texts = read_texts(path, files, file_bytes_max)
    train, held_out = (SEPARATOR.join(side) for side in split_texts(texts, held_out_share))
    rows, sequence_length = shape
    for kind, text in (("training", train), ("held-out", held_out)):
        if len(text) <= sequence_length:
            raise Unusable(
                f"{path}: {len(text)} bytes of {kind} text, a sequence has {sequence_length + 1}"
                f"{_passed_over(len(files), len(texts))}: "
                f"name a larger text file or a folder with text files{_of(suffixes)}"
            )
    as_bytes = [np.frombuffer(text, dtype=np.uint8) for text in (train, held_out)]
    return Corpus(as_bytes[0], as_bytes[1], len(texts), seed, rows, sequence_length)


def files_of_text(path: Path, suffixes: tuple[str, ...]) -> list[Path]:
    """The files that `path` means, in the order of their paths, text or not."""
    if is_pattern(path):
        return [file for file in found_files(path) if not suffixes or file.suffix in suffixes]
    if path.is_file():
        return [path]
    if path.is_dir():
        files = list(_files(path, suffixes))
        if not suffixes and files and all(file.suffix in ROWS for file in files):
            raise Unusable(
                f"{path}: a folder is read as plain text, and its files have rows: name them by a "
                f"pattern, {path}/*{files[0].suffix}"
            )
        return files
    raise Unusable(f"{path}: there is no such file or folder to train on")


def read_texts(
    path: Path, files: list[Path], file_bytes_max: int = FILE_BYTES_MAX
) -> dict[str, bytes]:
    """The files of `path` that are text, by their names relative to it."""
    return {
        name: text
        for file, name in zip(files, names_of(path, files), strict=True)
        if (text := _read(file, file_bytes_max)) and b"\0" not in text[:PROBE_BYTES]
    }


def names_of(path: Path, files: Sequence[Path]) -> list[str]:
    """The names of the files that `path` means, relative to it."""
    base = before_wildcards(path) if is_pattern(path) else path
    return [file.relative_to(base).as_posix() for file in files]


def is_held_out(name: str, share: float) -> bool:
    """Return whether a file of this name, relative to the folder, is kept from training."""
    return stable_hash(f"file:{name}") / 2**64 < share


def _files(folder: Path, suffixes: tuple[str, ...]) -> Iterator[Path]:
    """The files to read, in the order of their paths; folders that are passed over are not read."""
    try:
        found = sorted(_below(folder))
    except OSError as error:
        raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error
    return (file for file in found if not suffixes or file.suffix in suffixes)


def _below(folder: Path) -> Iterator[Path]:
    for one in folder.iterdir():
        if one.name in SKIPPED or one.name.startswith("."):
            continue
        if one.is_file():
            yield one
        elif one.is_dir() and not one.is_symlink():  # a link could lead back up
            yield from _below(one)


def _read(file: Path, bytes_max: int) -> bytes:
    try:
        if file.stat().st_size > bytes_max:
            raise Unusable(f"{file}: larger than {bytes_max:,} bytes: split it")
        return file.read_bytes()
    except OSError as error:
        raise Unusable(f"{file}: cannot be read: {error.strerror}") from error


def split_texts(
    texts: Mapping[str, bytes], held_out_share: float
) -> tuple[list[bytes], list[bytes]]:
    """The texts to train on and those that are held out, files in their order."""
    out = {name for name in texts if is_held_out(name, held_out_share)}
    train = [text for name, text in texts.items() if name not in out]
    held_out = [texts[name] for name in texts if name in out]
    if train and held_out:
        return train, held_out
    whole = SEPARATOR.join(texts.values())  # too few files for a hash to split: the end is held out
    cut = round(len(whole) * (1.0 - held_out_share))
    return [whole[:cut]], [whole[cut:]]


def _passed_over(files: int, texts: int) -> str:
    """Return why fewer files were used than the user sees."""
    if files == texts:
        return ""
    if files == 1:
        return " (the file is empty or binary)"
    return f" ({files - texts} of {files} files are empty or binary and were passed over)"


def _of(suffixes: tuple[str, ...]) -> str:
    return f" ({' '.join(suffixes)})" if suffixes else ""


CHUNK_BYTES = 1 << 16


class FileSpan(NamedTuple):
    """A part of a file."""

    file: int
    start: int
    stop: int


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
    path: Path, files: Sequence[Path], share: float, chunk_bytes: int = CHUNK_BYTES
) -> tuple[PlainText, PlainText]:
    """The text to train on and the held-out text; `files` are what `path` means.

    Empty and binary files are passed over. `chunk_bytes`: what is read at a time.
    """
    named = zip(files, names_of(path, files), strict=True)
    texts = [(file, name) for file, name in named if _is_text(file)]
    fixed = ImmutableFiles([file for file, _ in texts])
    spans = [FileSpan(number, 0, size) for number, size in enumerate(fixed.sizes)]
    out = [is_held_out(name, share) for _, name in texts]
    train = [span for span in spans if not out[span.file]]
    held_out = [span for span in spans if out[span.file]]
    if not train or not held_out:
        train, held_out = _cut_at_end(spans, share)
    sides = (
        PlainText(fixed, train, "to train on", chunk_bytes=chunk_bytes),
        PlainText(fixed, held_out, "held out", chunk_bytes=chunk_bytes),
    )
    for side in sides:
        if not len(side):
            raise Unusable(
                f"{path}: no text is {side.name} ({len(texts)} of {len(files)} files are text): "
                "name more text, or change train.held_out_share"
            )
    return sides


def _cut_at_end(spans: Sequence[FileSpan], share: float) -> tuple[list[FileSpan], list[FileSpan]]:
    """All text but its end, and its end; files count as joined by a separator."""
    begins = [0, *itertools.accumulate(span.stop + len(SEPARATOR) for span in spans)]
    cut = round((begins[-1] - len(SEPARATOR)) * (1.0 - share))
    train, held_out = list[FileSpan](), list[FileSpan]()
    for span, begin in zip(spans, begins, strict=False):
        inside = min(max(0, cut - begin), span.stop)
        if inside:
            train.append(FileSpan(span.file, 0, inside))
        if inside < span.stop:
            held_out.append(FileSpan(span.file, inside, span.stop))
    return train, held_out


def _is_text(path: Path) -> bool:
    """Return whether a file is neither empty nor binary."""
    try:
        with path.open("rb") as file:
            probe = file.read(PROBE_BYTES)
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
    return bool(probe) and b"\0" not in probe
