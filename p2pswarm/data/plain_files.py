"""Plain text read as it is needed: a file is a document, and is never in memory whole.

Which files are held out, and where the end of the text is if names leave one side empty, is as in
`text_files.py`.

Units:   bytes; places count through the parts of one side.
Errors:  Unusable for a side without text, and as `fixed_files.py`.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from p2pswarm.base.errors import Unusable
from p2pswarm.data.document_parts import FOLLOWING, FOLLOWING_MAX, parts_of
from p2pswarm.data.fixed_files import FixedFiles
from p2pswarm.data.row_filling import TextBatch
from p2pswarm.data.text_files import PROBE_BYTES, SEPARATOR, is_held_out, names_of

CHUNK_BYTES = 1 << 16


class FileSpan(NamedTuple):
    """A part of a file."""

    file: int
    start: int
    stop: int


class PlainText:
    """One side of the text."""

    def __init__(
        self,
        files: FixedFiles,
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
    texts = [
        (file, name)
        for file, name in zip(files, names_of(path, files), strict=True)
        if _is_text(file)
    ]
    fixed = FixedFiles([file for file, _ in texts])
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
    """Whether a file is neither empty nor binary."""
    try:
        with path.open("rb") as file:
            probe = file.read(PROBE_BYTES)
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
    return bool(probe) and b"\0" not in probe
