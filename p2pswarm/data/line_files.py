"""Documents of files of JSON lines, from any byte of them on.

Units:   bytes; places count through all files, in their order.
Errors:  as `immutable_files.py`. A row without text is passed over, and told once in the log.
"""

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.data.documents import LINE_BYTES_MAX, HalfCharacters, documents, text_of_line
from p2pswarm.data.immutable_files import BLOCK_BYTES, ImmutableFiles
from p2pswarm.data.rows import TextBatch

log = logging.getLogger(__name__)


class LineFiles:
    """Files whose lines are objects, with the text in a field."""

    def __init__(self, paths: Sequence[Path], field: str) -> None:
        """Unusable if the first row of a file has no text."""
        for path in paths:
            next(documents(path, field), None)  # says what is wrong with it
        self.files, self._field = ImmutableFiles(paths), field
        self.groups: Sequence[int] = ()
        self._told = False
        self._halves = HalfCharacters(paths[0])

    def __len__(self) -> int:
        return self.files.begins[-1]

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All lines once, from the one that a byte is in; after the last file places go on."""
        begins, count = self.files.begins, len(self.files.paths)
        first = bisect_right(begins, place) - 1
        inside = place - begins[first]
        yield from self._of_file(first, begins[first], inside, None)
        for number in range(first + 1, count):
            yield from self._of_file(number, begins[number], 0, None)
        for number in range(first):
            yield from self._of_file(number, begins[number] + len(self), 0, None)
        yield from self._of_file(first, begins[first] + len(self), 0, inside)

    def _of_file(self, number: int, base: int, start: int, stop: int | None) -> Iterator[TextBatch]:
        """From the line that byte `start` is in, to the one before byte `stop` is.

        `base`: the place of the file's first byte.
        """
        path = self.files.paths[number]
        with self.files.opened(number) as file:
            begin = _line_begin(file, start)
            stop = None if stop is None else _line_begin(file, stop)
            file.seek(begin)
            while stop is None or begin < stop:
                line = file.readline(LINE_BYTES_MAX + 1)
                if not line:
                    return
                end = begin + len(line)
                yield TextBatch((base + begin, base + end), _Line(self, path, begin, line))
                begin = end

    def text(self, path: Path, begin: int, line: bytes) -> bytes:
        """The document of a line; empty for one without."""
        if not line.strip():
            return b""
        try:
            text = text_of_line(line, path, self._field, f"the row at byte {begin:,}")
        except Unusable as reason:
            if not self._told:
                log.warning("%s: it is passed over, and so are others like it", reason)
                self._told = True
            return b""
        return self._halves.encoded(text)


@dataclass(frozen=True, slots=True)
class _Line:
    """The only text of a batch."""

    files: LineFiles
    path: Path
    begin: int
    line: bytes

    def __getitem__(self, number: int, /) -> bytes:
        return self.files.text(self.path, self.begin, self.line)


def _line_begin(file: BinaryIO, place: int) -> int:
    """Return where the line begins that a byte is in; the break that ends a line is in it."""
    end = place
    while end > 0:
        start = max(0, end - BLOCK_BYTES)
        file.seek(start)
        if (cut := file.read(end - start).rfind(b"\n")) >= 0:
            return start + cut + 1
        end = start
    return 0
