"""Rows of tables, whose first row has the names of columns.

Errors:  Unusable, in one line, for a table that is none.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from p2pswarm.base.errors import Unusable, one_line
from p2pswarm.data.row_formats.compression import row_ending, unpacked

TABLES = frozenset({".csv", ".tsv"})
REASON_CHARS_MAX = 100  # of what csv says
DELIMITERS_MAX = 1 << 20  # of a row: each field takes some 60 bytes more than its letters


def table_rows(file: Path, row_bytes_max: int) -> Iterator[list[str]]:
    """The rows of a table, its names first."""
    csv.field_size_limit(row_bytes_max)  # its own is smaller
    delimiter = "\t" if row_ending(file) == ".tsv" else ","
    number = 0
    with unpacked(file) as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
        lines = _Lines(text, delimiter, row_bytes_max)
        try:
            for row in csv.reader(lines, delimiter=delimiter, strict=True):
                lines.begin_row()
                yield row
                number += 1
        except _RowTooLongError as error:
            raise Unusable(
                f"{file}: the row after row {number} {error}: split it, or save it in JSON lines"
            ) from error
        except UnicodeDecodeError as error:
            raise Unusable(
                f"{file}: not UTF-8 after row {number}: write the file in UTF-8"
            ) from error
        except csv.Error as error:
            reason = one_line(error, REASON_CHARS_MAX)
            raise Unusable(
                f"{file}: no table after row {number}, save it anew as CSV or JSON lines: {reason}"
            ) from error


class _RowTooLongError(Exception):
    """A row has more than its limits."""


class _Lines:
    """The lines of a table; a row may have several."""

    def __init__(self, text: io.TextIOWrapper, delimiter: str, row_max: int) -> None:
        self._text, self._delimiter, self._row_max = text, delimiter, row_max
        self.begin_row()

    def begin_row(self) -> None:
        """What is read now belongs to the next row."""
        self._length = self._delimiters = 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = self._text.readline(self._row_max + 1)
        if not line:
            raise StopIteration
        self._length += len(line)
        self._delimiters += line.count(self._delimiter)
        if self._length > self._row_max:
            raise _RowTooLongError(f"is longer than {self._row_max:,} bytes")
        if self._delimiters > DELIMITERS_MAX:
            raise _RowTooLongError(f"has over {DELIMITERS_MAX:,} commas or tabs")
        return line
