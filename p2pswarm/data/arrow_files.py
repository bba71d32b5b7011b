"""Documents of arrow files, as datasets of Hugging Face are: mapped into memory, found at once.

A file is a sequence of messages, a batch of rows each. Where they lie is read once; a text is then
read where it is. A batch that is compressed is made whole: rows that begin in one are
best filled together (`row_places.py`).

Units:   places are bytes of the batches in their files.
Errors:  Unusable, one line with the file, for what is no arrow file with a column of text.
Source:  arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess Communication".
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p2pswarm.base.errors import Unusable
from p2pswarm.data.column_groups import batches_from
from p2pswarm.data.fixed_files import FixedFiles
from p2pswarm.data.row_filling import TextBatch
from p2pswarm.data.rows import BATCH_ROWS, pyarrow_part, require_field
from p2pswarm.data.text_column import MissingTexts, TextColumn, arrow_errors, require_text

MAGIC = b"ARROW1"  # the file format: the stream format between this, padded to 8 bytes, and an end
STREAM_BEGIN = 8


class _RecordBatch(NamedTuple):
    """A batch of rows."""

    file: int
    begin: int
    """Its first byte in the file."""


class ArrowFiles:
    """Files with the text in a column."""

    def __init__(self, paths: Sequence[Path], field: str) -> None:
        self.files, self._field = FixedFiles(paths), field
        self._schemas: list[Any] = []
        self._batches: list[_RecordBatch] = []
        self._begins = [0]
        self._compressed = False
        self._missing = MissingTexts(field)
        for file in range(len(paths)):
            self._add(file)

    @property
    def groups(self) -> Sequence[int]:
        """Where each batch begins, and where the last ends, if they are made whole."""
        return self._begins if self._compressed else ()

    def __len__(self) -> int:
        return self._begins[-1]

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All texts once, from the one at a place on; after the last batch places go on."""
        return batches_from(self._begins, place, self._read)

    def _add(self, file: int) -> None:
        """The batches of a file."""
        path, ipc = self.files.paths[file], pyarrow_part("ipc")
        before = len(self._begins)
        with arrow_errors(path), pyarrow_part("lib").memory_map(str(path)) as source:
            in_file = source.read(len(MAGIC)) == MAGIC
            source.seek(STREAM_BEGIN if in_file else 0)
            schema = ipc.read_schema(ipc.read_message(source))
            require_field(path, self._field, schema.names)
            require_text(path, self._field, schema.field(self._field).type)
            self._schemas.append(schema)
            begin = source.tell()
            for message in iter(lambda: _next_message(source), None):
                self._add_batch(_RecordBatch(file, begin), message)
                begin = source.tell()
            whole = source.tell() > begin  # it has met the mark of the end
            if in_file:
                source.seek(source.size() - len(MAGIC))
                whole = source.read(len(MAGIC)) == MAGIC
        if not whole:
            raise Unusable(f"{path}: ends too early: copy it again, or leave it out")
        if len(self._begins) == before:
            raise Unusable(f"{path}: has no rows: remove it, or copy it again")

    def _add_batch(self, rows: _RecordBatch, message: Any) -> None:
        if message.type != "record batch":
            raise Unusable(
                f"{self.files.paths[rows.file]}: has columns that are numbers of a dictionary: "
                "write them plainly, or set another of run.batch.samples"
            )
        if not self._batches or self._batches[-1].file != rows.file:
            self._compressed |= _is_made(message, self._schemas[rows.file])
        self._batches.append(rows)
        self._begins.append(self._begins[-1] + message.body.size)

    def _read(self, number: int, base: int, place: int) -> Iterator[TextBatch]:
        """The texts of a batch, from the one at a place on."""
        rows = self._batches[number]
        column = self._column(rows)
        text_bytes = column.text_bytes
        if not text_bytes:
            return
        scale = (self._begins[number + 1] - self._begins[number], text_bytes)
        # the first byte of the texts that lies at the place, or after it
        first = column.row_at(min(text_bytes - 1, (place - base) * text_bytes // scale[0]))
        origin = int(column.offsets_R1[0])
        for start in range(first, len(column), BATCH_ROWS):
            some = column.rows(start, min(start + BATCH_ROWS, len(column)))
            self._missing.note(self.files.paths[rows.file], some)
            yield some.batch(base, int(column.offsets_R1[start]) - origin, scale)

    def _column(self, rows: _RecordBatch) -> TextColumn:
        path, ipc = self.files.checked(rows.file), pyarrow_part("ipc")
        with arrow_errors(path), pyarrow_part("lib").memory_map(str(path)) as source:
            source.seek(rows.begin)
            batch = ipc.read_record_batch(ipc.read_message(source), self._schemas[rows.file])
            return TextColumn(batch.column(self._schemas[rows.file].names.index(self._field)))


def _next_message(source: Any) -> Any:
    """The next message of a stream; None at its end."""
    try:
        return pyarrow_part("ipc").read_message(source)
    except EOFError:
        return None


def _is_made(message: Any, schema: Any) -> bool:
    """Whether a batch of rows is made of what is in its message, and not found there."""
    batch = pyarrow_part("ipc").read_record_batch(message, schema)
    begin = message.body.address
    there = range(begin, begin + message.body.size + 1)
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer)
    return any(buffer.size and buffer.address not in there for buffer in buffers)
