"""Rows of JSON: an object a line, or the objects of one array.

An array is read an object at a time, so its file may be larger than the memory.

Errors:  Unusable, in one line, with the number of the row.
"""

import codecs
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.data.row_formats.compression import unpacked

READ_BYTES = 1 << 20
SPACE = b" \t\r\n"
NO_SPACE = re.compile(r"[^ \t\r\n]")
ARRAY = b"["
INSTEAD = "remove or mend it"
VALUES = b",[{"  # stand before each value of a list or an object, or in it
VALUE = re.compile(r"[,\[{]")
VALUES_MAX = 1 << 22  # of a row: each takes some 70 bytes, however few are in the file


def json_rows(file: Path, bytes_max: int) -> Iterator[tuple[int, bytes]]:
    """The JSON of each row, with its number; empty lines are counted, and are no rows."""
    with unpacked(file) as opened:
        first = opened.readline(bytes_max + 1)
        if first.removeprefix(codecs.BOM_UTF8).lstrip(SPACE).startswith(ARRAY):
            yield from _elements(file, first, opened, bytes_max)
            return
        number = 0
        while first:
            number += 1
            if len(first) > bytes_max:
                raise _too_long(file, number, bytes_max)
            if len(first) > VALUES_MAX and sum(map(first.count, VALUES)) > VALUES_MAX:
                raise _too_many(file, number)
            if first.strip():
                yield number, first
            first = opened.readline(bytes_max + 1)


def _too_long(file: Path, number: int, bytes_max: int) -> Unusable:
    return Unusable(f"{file}: row {number}: longer than {bytes_max:,} bytes: split it")


def _too_many(file: Path, number: int) -> Unusable:
    return Unusable(f"{file}: row {number}: has over {VALUES_MAX:,} commas and brackets: split it")


def is_array(head: bytes) -> bool:
    """Return whether a file that begins so is an array of objects."""
    begin = head.removeprefix(codecs.BOM_UTF8).lstrip(SPACE)
    return begin.startswith(ARRAY) and begin[1:].lstrip(SPACE).startswith(b"{")


def _elements(
    file: Path, begin: bytes, opened: BinaryIO, bytes_max: int
) -> Iterator[tuple[int, bytes]]:
    """The elements of an array; what follows it is refused."""
    source = _Characters(file, begin, opened)
    decoder, number = json.JSONDecoder(), 0
    source.take("[")
    while not source.take("]"):
        if number and not source.take(","):
            raise Unusable(f"{file}: row {number + 1}: not JSON: {INSTEAD}")
        number += 1
        end = _element_end(source, decoder, file, number, bytes_max)
        element = source.text[source.place : end].encode()
        if len(element) > bytes_max:
            raise _too_long(file, number, bytes_max)
        yield number, element
        source.drop(end)
    source.skip_space()
    if source.place < len(source.text):
        raise Unusable(f"{file}: goes on after its array: {INSTEAD}")


def _element_end(
    source: "_Characters", decoder: json.JSONDecoder, file: Path, number: int, bytes_max: int
) -> int:
    """Where the next element ends in the text that is held; as much is read as it takes."""
    source.skip_space()
    while True:
        text = source.text_of_values(VALUES_MAX)
        try:
            _, end = decoder.raw_decode(text, source.place)
            broken = None
            if end < len(text):  # a number or a word at the very end may go on
                return end
        except (ValueError, RecursionError) as error:
            broken = error
        if len(text) < len(source.text):
            raise _too_many(file, number) from broken
        if source.held > bytes_max:
            raise _too_long(file, number, bytes_max) from broken
        if not source.more(bytes_max):
            if broken:
                raise Unusable(f"{file}: row {number}: not JSON: {INSTEAD}") from broken
            return end


class _Characters:
    """The text of a file, of which as much is held as one element takes."""

    def __init__(self, file: Path, begin: bytes, opened: BinaryIO) -> None:
        self._file, self._opened = file, opened
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._read_bytes = READ_BYTES
        self._ahead = self._decoded(begin)
        """What was read and is not held yet: the values of an element are counted in time."""
        self.text, self.place = "", 0
        self.values = 0
        """Of all that was read for the element, and for those behind it."""

    @property
    def held(self) -> int:
        """The characters that are held and not used."""
        return len(self.text) - self.place

    def text_of_values(self, most: int) -> str:
        """The text, up to where the next element has so many values."""
        if self.values <= most:
            return self.text
        marks = VALUE.finditer(self.text, self.place)
        beyond = next(itertools.islice(marks, most, None), None)
        return self.text[: beyond.start()] if beyond else self.text

    def more(self, most: int) -> bool:
        """Read on, twice as much each time, to about `most` that are held; False at the end."""
        size = max(READ_BYTES, min(self._read_bytes, most - self.held))
        self._read_bytes *= 2
        new, self._ahead = self._ahead[:size], self._ahead[size:]
        there = bool(new)
        if not there:
            data = self._opened.read(size)
            new, there = self._decoded(data), bool(data)
        self.text += new
        self.values += sum(map(new.count, VALUES.decode()))
        return there

    def drop(self, end: int) -> None:
        """Forget what was used."""
        self.place, self._read_bytes, self.values = end, READ_BYTES, 0
        if end > READ_BYTES:
            rest = self.text[end:]
            self.text, self.place = rest[:READ_BYTES], 0
            if len(rest) > READ_BYTES:
                self._ahead = rest[READ_BYTES:] + self._ahead

    def skip_space(self) -> None:
        """Go on to the next character; space that was passed is forgotten."""
        while not (found := NO_SPACE.search(self.text, self.place)):
            self.text, self.place = "", 0
            if not self.more(READ_BYTES):
                return
        self.place = found.start()

    def take(self, character: str) -> bool:
        """Go past a character if it is the next."""
        self.skip_space()
        there = self.text.startswith(character, self.place)
        self.place += there
        return there

    def _decoded(self, data: bytes) -> str:
        try:
            return self._decoder.decode(data, final=not data)
        except UnicodeDecodeError as error:
            raise Unusable(f"{self._file}: not UTF-8: write the file in UTF-8") from error
