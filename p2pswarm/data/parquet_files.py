"""Documents of parquet files: a group of rows at a time, of which some rows are in memory.

A group can only be read from its beginning, and its texts are counted when it is first read. So
rows that begin in one group are best filled together (`row_places.py`). A group that is small
stays in memory until another is read.

Units:   places are bytes of the column before compression, as the files' ends tell them.
Errors:  Unusable, one line with the file, for what is no parquet file with a column of text.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from p2pswarm.base.errors import Unusable
from p2pswarm.data.column_groups import batches_from
from p2pswarm.data.fixed_files import FixedFiles
from p2pswarm.data.row_filling import TextBatch
from p2pswarm.data.rows import BATCH_ROWS, parquet_file, require_field
from p2pswarm.data.text_column import MissingTexts, TextColumn, arrow_errors, require_text

HELD_BYTES = 64 << 20  # of the texts of a group that is read twice
FILES_KEPT = 16  # whose ends are kept: one takes up to some MB


class _RowGroup(NamedTuple):
    """A group of rows."""

    file: int
    number: int
    """In its file."""


class ParquetFiles:
    """Files with the text in a column."""

    def __init__(self, paths: Sequence[Path], field: str, held_bytes: int = HELD_BYTES) -> None:
        self.files, self._field = FixedFiles(paths), field
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
            require_field(path, self._field, table.schema_arrow.names)
            require_text(path, self._field, table.schema_arrow.field(self._field).type)
            end = self._keep(file, table.metadata)
        if not end.num_rows:
            raise Unusable(f"{path}: has no rows: remove it, or copy it again")
        names = [end.schema.column(number).path for number in range(end.num_columns)]
        column = names.index(self._field)
        for number in range(end.num_row_groups):
            size_bytes = end.row_group(number).column(column).total_uncompressed_size
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
                column = TextColumn(batch.column(0))
                self._missing.note(path, column)
                yield column

    def _keep(self, file: int, end: Any) -> Any:
        """What the end of a file says of its groups."""
        self._ends[file] = end
        self._ends.move_to_end(file)
        while len(self._ends) > FILES_KEPT:
            self._ends.popitem(last=False)
        return end
