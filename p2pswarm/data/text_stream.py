"""Rows of text read as they are needed, out of files of any size: a run begins at once.

A row begins at a place of the text that follows from the seed and the row's number: in the
document that the place is in, as far into it. Documents follow until the row is full. So nothing
is prepared, no table is kept, and what a row holds depends on the files alone.

The hash of its text decides whether a row of a file is held out, when it is read; blocks of plain
text are held out before (`held_out.py`).

Units:   bytes; places as `line_files.py`, `columnar_files.py`, `text_files.py`.
Errors:  Unusable for files without text, and where no document is on one side. Later rows
  without text are passed over, and told in the log.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from p2pswarm.base.errors import Unusable
from p2pswarm.data.columnar_files import ArrowFiles, ParquetFiles
from p2pswarm.data.held_out import is_held_out_document
from p2pswarm.data.immutable_files import ImmutableFiles
from p2pswarm.data.line_files import LineFiles
from p2pswarm.data.row_formats.compression import is_packed, row_ending
from p2pswarm.data.row_formats.endings import ARROW, PARQUET
from p2pswarm.data.row_formats.tables import TABLES
from p2pswarm.data.rows import SHIPPED, PlaceLimits, Row, RowPlaces, Side, TextBatch, fill, parts_of
from p2pswarm.data.samples.corpus import Corpus, Tokens
from p2pswarm.data.sources import files_of, has_array
from p2pswarm.data.text_files import plain_sides
from p2pswarm.data.tokenizer import Tokenizer
from p2pswarm.settings.train_config import TrainConfig

MEASURED_TOKENS = 1 << 16
Visit = tuple[int, int]


class RowFiles(Protocol):
    """Files whose rows are documents."""

    @property
    def files(self) -> ImmutableFiles:
        """Return what is read."""
        ...

    @property
    def groups(self) -> Sequence[int]:
        """Where each group begins that is read from its beginning, and where the last ends."""
        ...

    def __len__(self) -> int:
        """Its places."""
        ...

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All rows once, from the one at a place on; after the end places go on."""
        ...


def _reader(file: Path) -> Callable[[Sequence[Path], str], RowFiles]:
    """Return what reads files of this kind."""
    ending = file.suffix.lower()
    return ParquetFiles if ending in PARQUET else ArrowFiles if ending in ARROW else LineFiles


@dataclass(frozen=True, slots=True)
class RowSide:
    """The rows of files that are on one side."""

    rows: RowFiles
    share: float
    """Of the documents, that is held out."""
    held_out: bool
    data: Path
    """What the files are named by."""

    @property
    def name(self) -> str:
        """Return what its documents are."""
        return f"{'held out' if self.held_out else 'to train on'} in {self.data}"

    def __len__(self) -> int:
        """Places of both sides: a row is on one, wherever it is."""
        return len(self.rows)

    def batches_from(self, place: int) -> Iterator[TextBatch]:
        """All rows, of both sides."""
        return self.rows.batches_from(place)

    def holds(self, document: bytes, /) -> bool:
        """By the hash of its text."""
        return is_held_out_document(document, self.share) is self.held_out


class _UnreadText:
    """How long a text is that nobody has read, in bytes of its files."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> Tokens:
        raise TypeError("a text that is streamed has rows, and no tokens by number")


class StreamedRows:
    """The rows of one side, made when they are asked for."""

    def __init__(
        self, side: Side, kind: str, places: RowPlaces, length: int, tokenizer: Tokenizer | None
    ) -> None:
        """`kind`: what tells the places of both sides apart; `length`: of a row, in tokens."""
        self.side, self.places, self.tokenizer = side, places, tokenizer
        self._kind, self._length = kind, length
        self._visits: OrderedDict[Visit, dict[int, Tokens]] = OrderedDict()

    def row(self, number: int) -> Tokens:
        """tokens_S of a row; it is kept, with those that are filled in the same pass."""
        visit = self.places.visit(number)
        if visit not in self._visits:
            self._visits[visit] = self._filled(visit)
        self._visits.move_to_end(visit)
        # groups that were just left are asked for again: microbatches are not made in order
        while len(self._visits) > 2 * self.places.open:
            self._visits.popitem(last=False)
        return self._visits[visit][number]

    @property
    def bytes_per_token(self) -> float:
        """Of its first documents."""
        if self.tokenizer is None:
            return 1.0
        read_bytes = tokens = 0
        for document in self._documents():
            read_bytes += len(document)
            tokens += 1 + sum(map(len, self.tokenizer.encode(list(parts_of(document)))))
            if tokens >= MEASURED_TOKENS:
                break
        return read_bytes / tokens

    def _filled(self, visit: Visit) -> dict[int, Tokens]:
        """Rows that are filled in one pass."""
        rows = {
            number: Row(self.places.place(self._kind, number), self._length, self.tokenizer)
            for number in self.places.rows_of(visit)
        }
        fill(sorted(rows.values(), key=lambda row: row.place), self.side)
        return {number: row.tokens for number, row in rows.items()}

    def _documents(self) -> Iterator[bytes]:
        """All of the side."""
        for batch in self.side.batches_from(0):
            for number in range(len(batch.begins) - 1):
                document = batch.texts[number]
                if document and self.side.holds(document):
                    yield document


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamedCorpus(Corpus):
    """Rows that are read when they are asked for."""

    fixed: ImmutableFiles
    """What is read."""
    how: str
    """How it is read."""
    train_rows: StreamedRows
    held_out_samples: StreamedRows
    lock: threading.Lock = field(default_factory=threading.Lock, compare=False)
    """Two threads may ask for rows, and both sides read the same files."""

    @property
    def blocks(self) -> bool:
        """It reads and makes tokens."""
        return True

    @property
    def counted(self) -> bool:
        """Nobody has read all of it."""
        return False

    def digest(self) -> bytes:
        """SHA-256 of the files and of how they are read."""
        return self.fixed.digest(self.how)

    def sample(self, number: int) -> Tokens:
        """tokens_S of a row to train on."""
        with self.lock:
            return self.train_rows.row(number)

    def held_out_sample(self, number: int) -> Tokens:
        """tokens_S of a row that is never trained on."""
        with self.lock:
            return self.held_out_samples.row(number)

    def held_out_rows(self, tokens_max: int) -> Iterator[Tokens]:
        """Rows from anywhere: no pass can be made over what nobody has counted."""
        most = max(1, min(tokens_max, len(self.held_out)) // self.sequence_length)
        return (self.held_out_sample(number) for number in range(most))

    @property
    def bytes_per_token(self) -> float:
        """Of the first held-out documents."""
        with self.lock:
            return self.held_out_samples.bytes_per_token


class _StreamedText(NamedTuple):
    """A text that is streamed."""

    files: ImmutableFiles
    sides: tuple[Side, Side]
    """To train on, and held out."""
    lengths: tuple[int, int]
    """Of the sides, about, in bytes of the files."""
    groups: Sequence[int]
    what: str
    """What decides its documents, beside the files."""


def streamed(
    train: TrainConfig,
    tokenizer: Tokenizer | None,
    *,
    seed: int,
    shape: tuple[int, int],
    limits: PlaceLimits = SHIPPED,
) -> StreamedCorpus:
    """The corpus of `train.data`; `shape` is rows, sequence length."""
    text = _text(train)
    count, sequence_length = shape
    length = sequence_length + 1
    row_bytes = length * (tokenizer.dtype.itemsize if tokenizer else 1)

    def rows_of(side: Side, kind: str) -> StreamedRows:
        row_shape = count, row_bytes
        places = RowPlaces(len(side), text.groups, seed=seed, row_shape=row_shape, limits=limits)
        return StreamedRows(side, kind, places, length, tokenizer)

    learnt, held_out = rows_of(text.sides[0], "train"), rows_of(text.sides[1], "held out")
    digest = tokenizer.digest if tokenizer else ""
    if tokenizer is not None and tokenizer.begin is not None:
        digest += f" {tokenizer.begin}"
    corpus = StreamedCorpus(
        train=_UnreadText(text.lengths[0]),
        held_out=_UnreadText(text.lengths[1]),
        files=len(text.files.paths),
        seed=seed,
        rows=count,
        sequence_length=sequence_length,
        fixed=text.files,
        how=f"streamed {train.held_out_share!r} {digest} {text.what}{learnt.places.shape}",
        train_rows=learnt,
        held_out_samples=held_out,
    )
    corpus.sample(0)
    corpus.held_out_sample(0)
    return corpus


def _text(train: TrainConfig) -> _StreamedText:
    """Return what `train.data` means."""
    assert train.data is not None, "the command line requires it"
    share = train.held_out_share
    found = files_of(train.data, train.suffixes)
    if not found.rows:
        plain = plain_sides(found, share)
        spans = repr([[tuple(span) for span in side.spans] for side in plain])
        return _StreamedText(plain[0].files, plain, (len(plain[0]), len(plain[1])), (), spans)
    rows = _row_files(train, found.paths)
    held_out_bytes = int(len(rows) * share)
    sides = (
        RowSide(rows, share, held_out=False, data=train.data),
        RowSide(rows, share, held_out=True, data=train.data),
    )
    lengths = len(rows) - held_out_bytes, held_out_bytes
    return _StreamedText(rows.files, sides, lengths, rows.groups, repr(train.field))


def _row_files(train: TrainConfig, files: Sequence[Path]) -> RowFiles:
    """The files, read as their kind is."""
    for file in files:
        if is_packed(file) or row_ending(file) in TABLES or has_array(file):
            raise Unusable(
                f"{file}: can only be read from its beginning, and rows are streamed from "
                "anywhere: save it as JSON lines or parquet, or set another run.batch.samples"
            )
    readers = {_reader(file) for file in files}
    if len(readers) > 1:
        found = ", ".join(sorted({file.suffix for file in files}))
        raise Unusable(
            f"{train.data}: finds files of several kinds ({found}), and one text is streamed from "
            "files of one: name one kind, or two texts in [[train.mixture]]"
        )
    return readers.pop()(files, train.field)
