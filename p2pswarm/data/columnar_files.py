"""Documents of parquet and arrow files: columns of text, read a group of rows at a time.

A group is a row group of parquet, or a record batch of arrow. It has as many places as bytes are
known of it without reading it. Its texts lie at these places in proportion to their length.

Units:   places count through all groups.
Shapes:  offsets_R1: where each of R texts begins in the column's bytes, and where the last ends.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.data.documents import BATCH_ROWS, column_at, parquet_file, pyarrow_part, require_field
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.row_formats.compression import row_ending, unpacked_bytes
from p2pswarm.data.row_formats.endings import PARQUET
from p2pswarm.data.row_formats.field_path import column_names, column_type
from p2pswarm.data.rows import TextBatch

log = logging.getLogger(__name__)

ReadGroup = Callable[[int, int, int], Iterator[TextBatch]]
"""The batches of a group: its number, the place where it begins, and the place from which on they
are needed. They may begin before that."""


def batches_from(begins: Sequence[int], place: int, read: ReadGroup) -> Iterator[TextBatch]:
    """All texts once, from the one at a place on; after the last group places go on.

    begins: the place where each group begins, and where the last one ends.
    """
    total = begins[-1]
    first = bisect_right(begins, place) - 1
    for batch in read(first, begins[first], place):
        if batch.begins[-1] > place:
            yield batch
    for number in range(first + 1, len(begins) - 1):
        yield from read(number, begins[number], begins[number])
    for number in range(first):
        yield from read(number, begins[number] + total, begins[number] + total)
    for batch in read(first, begins[first] + total, begins[first] + total):
        before = bisect_right(batch.begins, place + total) - 1
        yield TextBatch(batch.begins[: before + 1], batch.texts)
        if before < len(batch.begins) - 1:
            return


class TextColumn:
    """The texts of some rows, as pyarrow holds them; a row without text has an empty one."""

    def __init__(self, column: Any) -> None:
        """`column`: an array of pyarrow whose type `require_text` takes."""
        types = pyarrow_part("types")
        plain = types.is_string(column.type) or types.is_large_string(column.type)
        column.validate(full=not plain)
        if not plain:
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
        found = int(np.searchsorted(self.offsets_R1, sought, side="right")) - 1
        return max(0, found)  # of lengths that were never checked it may be none

    def rows(self, start: int, stop: int) -> "TextColumn":
        """Some of its rows, whose lengths and letters are checked; nothing is copied."""
        return checked_texts(self._column.slice(start, stop - start))

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


def checked_texts(column: Any) -> TextColumn:
    """The texts of rows that are all read now. Raises an error of pyarrow for torn ones."""
    column.validate(full=True)
    return TextColumn(column)


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
    except (errors.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
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


HELD_BYTES = 64 << 20  # of the texts of a group that is read twice
FILES_KEPT = 16  # whose ends are kept: one takes up to some MB


class _RowGroup(NamedTuple):
    file: int
    number: int
    """In its file."""


class ParquetFiles:
    """Parquet files; places are bytes of the column before compression, as the files' ends tell.

    A group can only be read from its beginning, and its texts are counted when it is first read. So
    rows that begin in one group are best filled together (`rows.py`). A group that is small stays
    in memory until another is read.
    """

    def __init__(self, paths: Sequence[Path], field: str, held_bytes: int = HELD_BYTES) -> None:
        self.files, self._field = ImmutableFiles(paths), field
        self._held_bytes_max = held_bytes
        self._groups: list[_RowGroup] = []
        self._ends: OrderedDict[int, Any] = OrderedDict()
        self._text_bytes: dict[int, int] = {}
        self._held: tuple[int, list[TextColumn]] | None = None
        self._missing = MissingTexts(field)
        self._begins = [0]
        for file in range(len(self.files.paths)):
            self._add(file)

    @property
    def groups(self) -> Sequence[int]:
        """Where each group begins that is read from its beginning, and where the last ends."""
        return self._begins

    def __len__(self) -> int:
        return self._begins[-1]

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All texts once, from the one at a place on; after the last group places go on."""
        return batches_from(self._begins, place, self._read)

    def _add(self, file: int) -> None:
        """The groups of a file."""
        path = self.files.paths[file]
        with arrow_errors(path), parquet_file(path) as table:
            require_field(path, self._field, column_names(table.schema_arrow))
            require_text(path, self._field, column_type(table.schema_arrow, self._field))
            end = table.metadata
        self._keep(file, end)
        if not end.num_rows:
            raise Unusable(f"{path}: has no rows: remove it, or copy it again")
        for number, size_bytes in enumerate(_group_bytes(path, end, self._field)):
            self._groups.append(_RowGroup(file, number))
            self._begins.append(self._begins[-1] + size_bytes)

    def _read(self, number: int, base: int, _place: int) -> Iterator[TextBatch]:
        text_bytes = self._text_bytes.get(number)
        if text_bytes is None:
            text_bytes = self._text_bytes[number] = self._count(number)
        scale = (self._begins[number + 1] - self._begins[number], text_bytes)
        before_bytes = 0
        for column in self._columns(number):
            if column.text_bytes:
                yield column.batch(base, before_bytes, scale)
            before_bytes += column.text_bytes

    def _count(self, number: int) -> int:
        """The bytes of a group's texts; the texts stay in memory if they are few."""
        held: list[TextColumn] = []
        text_bytes = 0
        for column in self._columns(number):
            text_bytes += column.text_bytes
            if text_bytes <= self._held_bytes_max:
                held.append(column)
            else:
                held.clear()
        self._held = (number, held) if held else None
        return text_bytes

    def _columns(self, number: int) -> Iterator[TextColumn]:
        """The texts of a group, some rows at a time."""
        if self._held and self._held[0] == number:
            yield from self._held[1]
            return
        group = self._groups[number]
        path = self.files.checked(group.file)
        with arrow_errors(path), parquet_file(path, self._ends.get(group.file)) as table:
            self._keep(group.file, table.metadata)
            for batch in table.iter_batches(
                batch_size=BATCH_ROWS,
                row_groups=[group.number],
                columns=[self._field],
                use_threads=False,
            ):
                column = checked_texts(column_at(batch, self._field))
                self._missing.note(path, column)
                yield column

    def _keep(self, file: int, end: Any) -> None:
        """Keep the end of a file, which tells its groups."""
        self._ends[file] = end
        self._ends.move_to_end(file)
        while len(self._ends) > FILES_KEPT:
            self._ends.popitem(last=False)


MAGIC = b"ARROW1"  # the file format: the stream format between this, padded to 8 bytes, and an end
STREAM_BEGIN = 8


def _group_bytes(path: Path, end: Any, field: str) -> list[int]:
    """The bytes of a column before compression, in each group of rows."""
    names = [end.schema.column(number).path for number in range(end.num_columns)]
    inner = [number for number, name in enumerate(names) if name.startswith(f"{field}.")]
    columns = [names.index(field)] if field in names else inner
    found = list[int]()
    for number in range(end.num_row_groups):
        group = end.row_group(number)
        found.append(sum(group.column(column).total_uncompressed_size for column in columns))
        if found[-1] < 0:
            raise Unusable(f"{path}: a group of {found[-1]} bytes: copy it again")
    return found


def bytes_to_learn(path: Path, field: str) -> int:
    """About how many bytes of text a file has: those of its rows before compression.

    Of parquet those of the column; others are read for it where they are compressed.
    """
    if row_ending(path) not in PARQUET:
        return unpacked_bytes(path)
    with arrow_errors(path), parquet_file(path) as table:
        require_field(path, field, column_names(table.schema_arrow))
        return sum(_group_bytes(path, table.metadata, field))


class _RecordBatch(NamedTuple):
    file: int
    begin: int
    """Its first byte in the file."""


class ArrowFiles:
    """Arrow files, mapped into memory; places are bytes of the batches in their files.

    A file is a sequence of messages, a batch of rows each. Where they lie is read once; a text is
    then read where it is. A batch that is compressed is made whole: rows that begin in one are best
    filled together (`rows.py`).

    Source: arrow.apache.org/docs/format/Columnar.html, "Serialization and Interprocess
    Communication".
    """

    def __init__(self, paths: Sequence[Path], field: str) -> None:
        self.files, self._field = ImmutableFiles(paths), field
        self._schemas: list[Any] = []
        self._batches: list[_RecordBatch] = []
        self._begins = [0]
        self._compressed = False
        self._missing = MissingTexts(field)
        for file in range(len(paths)):
            self._add(file)

    @property
    def groups(self) -> Sequence[int]:
        """Return where each batch begins, and where the last ends, if they are made whole."""
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
            first = ipc.read_message(source)
            if first.type != "schema":  # pyarrow does not look, and may crash
                raise Unusable(f"{path}: does not begin with a schema: copy it again")
            schema = ipc.read_schema(first)
            require_field(path, self._field, column_names(schema))
            require_text(path, self._field, column_type(schema, self._field))
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
        column, path = self._column(rows), self.files.paths[rows.file]
        text_bytes = column.text_bytes
        if not text_bytes:
            return
        scale = (self._begins[number + 1] - self._begins[number], text_bytes)
        # the first byte of the texts that lies at the place, or after it
        first = column.row_at(min(text_bytes - 1, (place - base) * text_bytes // scale[0]))
        origin = int(column.offsets_R1[0])
        for start in range(first, len(column), BATCH_ROWS):
            with arrow_errors(path):
                some = column.rows(start, min(start + BATCH_ROWS, len(column)))
            self._missing.note(path, some)
            yield some.batch(base, int(column.offsets_R1[start]) - origin, scale)

    def _column(self, rows: _RecordBatch) -> TextColumn:
        path, ipc = self.files.checked(rows.file), pyarrow_part("ipc")
        with arrow_errors(path), pyarrow_part("lib").memory_map(str(path)) as source:
            source.seek(rows.begin)
            batch = ipc.read_record_batch(ipc.read_message(source), self._schemas[rows.file])
            return TextColumn(column_at(batch, self._field))


def _next_message(source: Any) -> Any:
    """The next message of a stream; None at its end."""
    try:
        return pyarrow_part("ipc").read_message(source)
    except EOFError:
        return None


def _is_made(message: Any, schema: Any) -> bool:
    """Return whether a batch of rows is made of what is in its message, and not found there."""
    batch = pyarrow_part("ipc").read_record_batch(message, schema)
    begin = message.body.address
    there = range(begin, begin + message.body.size + 1)
    buffers = (buffer for column in batch.columns for buffer in column.buffers() if buffer)
    return any(buffer.size and buffer.address not in there for buffer in buffers)
