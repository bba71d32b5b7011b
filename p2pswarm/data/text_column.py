"""A column of text as pyarrow holds it, some rows at a time.

Shapes:  offsets_R1: where each of R texts begins in the column's bytes, and where the last ends.
Units:   bytes.
Errors:  Unusable, one line with the file, for a column that is no text, and for a file that pyarrow
         cannot read.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.row_filling import TextBatch
from p2pswarm.data.rows import pyarrow_part

log = logging.getLogger(__name__)


class TextColumn:
    """The texts of some rows; a row without text has an empty one."""

    def __init__(self, column: Any) -> None:
        """`column`: an array of pyarrow whose type `require_text` takes."""
        types = pyarrow_part("types")
        if not (types.is_string(column.type) or types.is_large_string(column.type)):
            column = column.cast(pyarrow_part("lib").large_string())
        self._column = column
        self.offsets_R1 = _offsets(column, "i8" if types.is_large_string(column.type) else "i4")
        self.missing = int(column.null_count)

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, number: int, /) -> bytes:
        text = self._column[number].as_buffer()
        return b"" if text is None else bytes(text)

    @property
    def text_bytes(self) -> int:
        """Of all its texts."""
        return int(self.offsets_R1[-1]) - int(self.offsets_R1[0])

    def row_at(self, text_byte: int) -> int:
        """The row that has a byte of the texts, 0 <= text_byte < text_bytes."""
        # of the offsets' own type, or numpy would convert, and so read, all of them
        sought = self.offsets_R1.dtype.type(text_byte + int(self.offsets_R1[0]))
        return int(np.searchsorted(self.offsets_R1, sought, side="right")) - 1

    def rows(self, start: int, stop: int) -> "TextColumn":
        """Some of its rows; nothing is copied."""
        return TextColumn(self._column.slice(start, stop - start))

    def batch(self, base: int, before_bytes: int, scale: tuple[int, int]) -> TextBatch:
        """Its texts at the places of the group that it is a part of.

        base: the place where the group begins; before_bytes: of texts before these in the group;
        scale: the group's places, and the bytes of its texts.
        """
        places, text_bytes = scale
        before_bytes -= int(self.offsets_R1[0])
        offsets = self.offsets_R1.tolist()
        begins = [base + (before_bytes + offset) * places // text_bytes for offset in offsets]
        return TextBatch(begins, self)


def _offsets(column: Any, dtype: str) -> NDArray[np.integer[Any]]:
    if not len(column):
        return np.zeros(1, dtype=dtype)
    stop = column.offset + len(column) + 1
    return np.frombuffer(column.buffers()[1], dtype=dtype, count=stop)[column.offset :]


def require_text(path: Path, field: str, kind: Any) -> None:
    """Unusable if a column of this type of pyarrow is no text."""
    types = pyarrow_part("types")
    value = kind.value_type if types.is_dictionary(kind) else kind
    if not any(
        is_kind(value) for is_kind in (types.is_string, types.is_large_string, types.is_string_view)
    ):
        raise Unusable(f"{path}: the column {field!r} is no text but {kind}: set train.field")


@contextmanager
def arrow_errors(path: Path) -> Iterator[None]:
    """Errors of pyarrow while it reads a file, in one line."""
    errors = pyarrow_part("lib")
    try:
        yield
    except (errors.ArrowException, OSError, EOFError) as error:
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise Unusable(
            f"{path}: cannot be read: {reason}: copy it again, or leave it out"
        ) from error


class MissingTexts:
    """Says once that rows without text are passed over."""

    def __init__(self, field: str) -> None:
        self._field, self._told = field, False

    def note(self, path: Path, column: TextColumn) -> None:
        """Rows that were read."""
        if column.missing and not self._told:
            log.warning(
                "%s: a row has no %s: it is passed over, and so are others like it",
                path,
                self._field,
            )
            self._told = True
