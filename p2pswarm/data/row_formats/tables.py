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


def table_rows(file: Path, field_bytes_max: int) -> Iterator[list[str]]:
    """The rows of a table, its names first."""
    csv.field_size_limit(field_bytes_max)
    delimiter = "\t" if row_ending(file) == ".tsv" else ","
    number = 0
    with unpacked(file) as opened:
        text = io.TextIOWrapper(opened, encoding="utf-8-sig", newline="")
        try:
            for row in csv.reader(text, delimiter=delimiter, strict=True):
                yield row
                number += 1
        except UnicodeDecodeError as error:
            raise Unusable(
                f"{file}: not UTF-8 after row {number}: write the file in UTF-8"
            ) from error
        except csv.Error as error:
            reason = one_line(error, REASON_CHARS_MAX)
            raise Unusable(
                f"{file}: no table after row {number}, save it anew as CSV or JSON lines: {reason}"
            ) from error
