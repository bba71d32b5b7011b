"""Documents out of files with rows: JSON lines, parquet, arrow; and the corpus that they make.

One batch of rows is in memory at a time. pyarrow is loaded when a file needs it.
"""

import codecs
import difflib
import functools
import importlib
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from p2pswarm.base.errors import Unusable, missing_extra, one_line
from p2pswarm.data.held_out import is_held_out_document, warn_of_share
from p2pswarm.data.row_formats.compression import row_ending
from p2pswarm.data.row_formats.endings import ARROW, PARQUET
from p2pswarm.data.row_formats.field_path import (
    JsonObject,
    column_names,
    column_path,
    is_twice,
    value_at,
)
from p2pswarm.data.row_formats.json_rows import json_rows
from p2pswarm.data.row_formats.tables import TABLES, table_rows
from p2pswarm.data.samples.corpus import Corpus
from p2pswarm.data.token_file import PreparedDocument, stored_texts
from p2pswarm.settings.train_config import TrainConfig

log = logging.getLogger(__name__)

REASON_CHARS_MAX = 200  # of what pyarrow says
LINE_BYTES_MAX = 64 << 20  # a line is held in memory a few times over; a book has 1 MB
BATCH_ROWS = 256  # few: rows may be whole books
READ_BYTES = 1 << 20  # of a parquet file at a time
NAMES_SHOWN = 8
INSTEAD = "remove or mend it"
Row = TypeVar("Row")
Choose = Callable[[Any], Sequence[str | int]]
"""Which columns of a schema are read."""
WITHOUT_TEXT_MAX = 1000  # rows at the beginning of a file: then the field is another one


@dataclass(slots=True)
class RowTally:
    """Rows that were read."""

    rows: int = 0
    empty: int = 0
    without: int = 0
    """Without the field, or with one that is no text."""


def documents(
    file: Path, field: str, tally: RowTally | None = None, *, line_bytes_max: int = LINE_BYTES_MAX
) -> Iterator[bytes]:
    """The text of each row of a file, in UTF-8; rows without any are passed over, and counted.

    Unusable if none has text, or none of the first `WITHOUT_TEXT_MAX`.
    """
    tally = tally or RowTally()
    rows = _rows(file, field, line_bytes_max)
    number, halves, found = 0, HalfCharacters(file), False
    why_not: Unusable | None = None
    try:
        for number, text in rows:
            tally.rows += 1
            if not isinstance(text, str):
                tally.without += 1
                without = text if isinstance(text, Unusable) else _no_text(file, number, field)
                why_not = why_not or without
                if not found and number >= WITHOUT_TEXT_MAX:
                    raise why_not
                continue
            found = True
            tally.empty += not text
            if text:
                yield halves.encoded(text)
    except OSError as error:
        reason = error.strerror or one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"{file}: cannot be read, mend or remove it: {reason}") from error
    if number == 0:
        raise Unusable(f"{file}: has no rows: remove it, or copy it again")
    if why_not is not None and not found:
        raise why_not


def _rows(file: Path, field: str, bytes_max: int) -> Iterator[tuple[int, object]]:
    """The number of each row, and its value; why it has none in place of that."""
    ending = row_ending(file)
    if ending in PARQUET:
        return _columns(file, field, _parquet_batches)
    if ending in ARROW:
        return _columns(file, field, _arrow_batches)
    if ending in TABLES:
        return _table(file, field, bytes_max)
    return _json_lines(file, field, bytes_max)


def _json_lines(file: Path, field: str, bytes_max: int) -> Iterator[tuple[int, object]]:
    for number, row in json_rows(file, bytes_max):
        yield number, _field_of(row, file, field, f"row {number}")


def _table(file: Path, field: str, bytes_max: int) -> Iterator[tuple[int, object]]:
    """The rows of a table; one that ends early has no more fields."""
    rows = table_rows(file, bytes_max)
    names = next(rows, [])
    if not names:
        return
    require_field(file, field, names)
    column = names.index(field)
    for number, row in enumerate((row for row in rows if row), 1):
        text = row[column] if column < len(row) else None
        if "\0" in (text or ""):
            raise Unusable(f"{file}: row {number}: has NUL bytes: remove the row")
        yield number, text


def text_of_line(line: bytes, file: Path, field: str, row: str) -> str:
    """The document of a line of JSON; Unusable, which names the `row`, without one."""
    text = _field_of(line, file, field, row)
    if isinstance(text, Unusable):
        raise text
    if not isinstance(text, str):
        raise _no_text(file, row, field)
    return text


class HalfCharacters:
    """Says once that halves of surrogate pairs, which JSON can carry, become question marks."""

    def __init__(self, file: Path) -> None:
        self._file, self._told = file, False

    def encoded(self, text: str) -> bytes:
        """A text in UTF-8."""
        try:
            return text.encode()
        except UnicodeEncodeError as error:
            if not self._told:
                half = f"\\u{ord(text[error.start]):04x}"
                log.warning(
                    "%s: %s is half a character: such become question marks", self._file, half
                )
                self._told = True
            return text.encode("utf-8", "replace")


def _no_text(file: Path, row: str | int, field: str) -> Unusable:
    where = f"row {row}" if isinstance(row, int) else row
    return Unusable(
        f"{file}: {where}: the field {field!r} is no text: remove the row, or set train.field"
    )


def json_text(line: bytes, file: Path, row: str) -> str:
    """The text of a line of JSON; Unusable, which names the `row`, for what is no text."""
    try:
        read = line.removeprefix(codecs.BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise Unusable(f"{file}: {row}: not UTF-8: write the file in UTF-8") from error
    if "\0" in read:  # JSON writes one as \u0000
        raise Unusable(
            f"{file}: {row}: has NUL bytes, as a file that a crash cut short, or UTF-16: remove "
            "the row, or write the file in UTF-8"
        )
    return read


def _field_of(line: bytes, file: Path, field: str, row: str) -> object:
    """The value of a line's field; why it has none in place of that."""
    read = json_text(line, file, row)
    try:
        found = json.loads(read)
        maybe = any(read.count(name) > 1 for name in _names_in_json(field))
        twice = maybe and is_twice(json.loads(read, object_pairs_hook=JsonObject), field)
    except (ValueError, RecursionError) as error:
        raise Unusable(f"{file}: {row}: not JSON: {INSTEAD}") from error
    if not isinstance(found, dict):
        raise Unusable(f'{file}: {row}: not an object such as {{"text": "..."}}')
    if twice:
        raise Unusable(f"{file}: {row}: has two fields {field!r}: remove one of them")
    try:
        return value_at(found, field)
    except LookupError:
        return _no_field(file, field, found)


@functools.cache
def _names_in_json(field: str) -> tuple[str, ...]:
    """The names on the way to a field, as lines have them."""
    return tuple(json.dumps(name) for name in {field, *field.split(".")})


def _columns(
    file: Path, field: str, batches: Callable[[Path, str], Iterable[Any]]
) -> Iterator[tuple[int, object]]:
    """The values of a field in a file that pyarrow reads."""

    def texts(batch: Any) -> list[object]:
        column = column_at(batch, field)
        column.validate(full=True)  # lengths and UTF-8: pyarrow believes both, and may crash
        found: list[object] = column.to_pylist()
        return found

    return column_rows(file, batches(file, field), texts)


def column_rows(
    file: Path, batches: Iterable[Any], rows: Callable[[Any], list[Row]]
) -> Iterator[tuple[int, Row]]:
    """The rows of a file that pyarrow reads, each with its number; `rows`: those of a batch."""
    number = 0
    errors = pyarrow_part("lib")
    try:
        for batch in batches:
            for row in rows(batch):
                number += 1
                yield number, row
    except (errors.ArrowException, UnicodeDecodeError) as error:
        reason = str(error).split("\n")[0]
        raise Unusable(
            f"{file}: unreadable after row {number}, remove it or copy it again: {reason}"
        ) from error


def _parquet_batches(file: Path, field: str) -> Iterator[Any]:
    def choose(schema: Any) -> list[str]:
        require_field(file, field, column_names(schema))
        return [field]

    return parquet_batches(file, choose)


def parquet_batches(file: Path, choose: Choose) -> Iterator[Any]:
    """A few rows at a time, of the columns that are chosen."""
    with parquet_file(file) as table:
        yield from table.iter_batches(batch_size=BATCH_ROWS, columns=choose(table.schema_arrow))


def parquet_file(file: Path, metadata: Any = None) -> Any:
    """A parquet file of pyarrow that is read a page at a time: a group of rows may be gigabytes."""
    parquet = pyarrow_part("parquet")
    return parquet.ParquetFile(file, metadata=metadata, buffer_size=READ_BYTES, pre_buffer=False)


def _arrow_batches(file: Path, field: str) -> Iterator[Any]:
    def choose(schema: Any) -> list[int]:
        require_field(file, field, column_names(schema))
        return column_path(schema, field)[:1]

    return arrow_batches(file, choose)


def arrow_batches(file: Path, choose: Choose) -> Iterator[Any]:
    """The same of arrow's stream format, which datasets write; else of its file format."""
    arrow, ipc = pyarrow_part("lib"), pyarrow_part("ipc")
    with arrow.memory_map(str(file)) as source:
        try:
            reader = ipc.open_stream(source)
        except arrow.ArrowInvalid:
            reader = ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            batches = iter(reader)
        columns = choose(reader.schema)
        for batch in batches:
            for start in range(0, batch.num_rows, BATCH_ROWS):  # a batch can be the whole file
                yield batch.select(columns).slice(start, BATCH_ROWS)


def column_at(batch: Any, field: str) -> Any:
    """The column of some rows; of a row whose struct is null, null."""
    first, *inner = column_path(batch.schema, field)
    column = batch.column(first)
    return pyarrow_part("compute").struct_field(column, inner) if inner else column


def require_field(file: Path, field: str, names: list[str]) -> None:
    """Unusable, with the nearest name, if a file has no such field."""
    if field not in names:
        raise _no_field(file, field, names)
    if names.count(field) > 1:
        raise Unusable(f"{file}: has two columns {field!r}: give one of them another name")


def _no_field(file: Path, field: str, there: Iterable[str]) -> Unusable:
    names = sorted(str(name) for name in there)
    near = difflib.get_close_matches(field, names, 1)
    guess = f" (did you mean {near[0]!r}?)" if near else ""
    listed = ", ".join(names[:NAMES_SHOWN]) or "none"
    return Unusable(
        f"{file}: its rows have no field {field!r}{guess}; there are: {listed}; set train.field"
    )


def pyarrow_part(part: str) -> ModuleType:
    """A module of pyarrow; Unusable, with what to install, where it is not there."""
    try:
        return importlib.import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise missing_extra("parquet and arrow files need pyarrow", "data") from error


SEPARATOR = b"\n"


def load_documents(
    train: TrainConfig, files: Sequence[Path], *, cache: Path, seed: int, shape: tuple[int, int]
) -> Corpus:
    """The corpus of `files`, which `train.data` means, prepared on disk once.

    `shape` is rows, sequence length.
    """
    assert train.data is not None, "it named the files"
    data, field, share = train.data, train.field, train.held_out_share
    texts = all_documents(files, field)
    found = (
        PreparedDocument(is_held_out_document(text, share), text + SEPARATOR, len(text) + 1)
        for text in texts
    )
    learnt, held_out = stored_texts(data, files, f"{field!r} {share!r}", cache, found)
    rows, sequence_length = shape
    for kind, text in (("training", learnt), ("held-out", held_out)):
        if len(text) <= sequence_length:
            raise Unusable(
                f"{data}: {len(text)} bytes of {kind} text, a sequence has {sequence_length + 1}: "
                "name more documents, or change train.held_out_share"
            )
    warn_of_share(data, len(learnt), len(held_out), share)
    return Corpus(learnt, held_out, len(files), seed, rows, sequence_length)


def all_documents(files: Iterable[Path], field: str) -> Iterator[bytes]:
    """The documents of all files, in their order."""
    tally = RowTally()
    for file in files:
        yield from documents(file, field, tally)
    for count, what in ((tally.empty, "an empty"), (tally.without, "no")):
        if count:
            log.warning("%d of %d rows have %s %s: passed over", count, tally.rows, what, field)
