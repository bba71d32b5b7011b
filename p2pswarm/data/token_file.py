"""Documents prepared for training: one file on disk that is read in pieces, whatever its size.

The file holds the tokens to train on, then the held-out ones, then a trailer with their lengths,
those of the text that they were made of, and the fingerprint of the sources. It is written under
another name and moved when it is whole. So it is there or not, and a file whose sources have
changed since is written anew.

Errors:  Unusable when the disk is full, or the file is gone or torn while a run reads it.
"""

import hashlib
import os
import shutil
import struct
import sys
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.base.files import replace_file
from p2pswarm.data.samples.corpus import Tokens, stable_hash
from p2pswarm.settings.dataset_name import is_dataset

if sys.platform != "win32":
    import fcntl

TRAILER = struct.Struct("<8s32sQQQQ")  # tag, fingerprint, lengths of the two parts, of their texts
TAG = b"p2ptext3"  # rises when what is written changes
COPY_BYTES = 1 << 20
BYTE = np.dtype(np.uint8)
ENDING, PART = ".prepared", ".part"


class PreparedDocument(NamedTuple):
    """A document, or a part of one, as it is written."""

    held_out: bool
    written: bytes
    text_bytes: int
    """The length of its text."""


class PreparedFile:
    """The file, kept open: one that replaces it in the cache does not reach those who read it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lock = threading.Lock()
        weakref.finalize(self, file.close)  # it is read as long as anybody has the corpus

    def read(self, place: int, length: int) -> bytes:
        """`length` bytes from `place` on."""
        try:
            with self._lock:
                self._file.seek(place)
                found = self._file.read(length)
        except OSError as error:
            raise Unusable(f"{self._file.name}: cannot be read: {error.strerror}") from error
        if len(found) < length:
            raise Unusable(f"{self._file.name}: was cut short: delete it and start again")
        return found


class StoredText:
    """A part of the file, read when it is asked for: `text[start:stop]` is an array of tokens."""

    def __init__(
        self, file: PreparedFile, part: tuple[int, int], dtype: np.dtype[Any], text_bytes: int
    ) -> None:
        self._file, self._dtype = file, dtype
        self._begin, self._length = part[0], part[1] // dtype.itemsize
        self.text_bytes = text_bytes

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> Tokens:
        start, stop, _ = part.indices(self._length)
        size = self._dtype.itemsize
        found = self._file.read(self._begin + size * start, size * max(0, stop - start))
        return np.frombuffer(found, dtype=self._dtype)


def fingerprint(files: Iterable[Path], settings: str) -> bytes:
    """32 bytes that change when a file, its size or its time of writing changes, or a setting."""
    digest = hashlib.sha256(settings.encode())
    for file in files:
        try:
            about = file.stat()
        except OSError as error:
            raise Unusable(f"{file}: cannot be read: {error.strerror}") from error
        digest.update(f"{str(file.absolute())!r} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.digest()


def stored_texts(
    data: Path,
    files: Sequence[Path],
    settings: str,
    cache: Path,
    documents: Iterable[PreparedDocument],
    dtype: np.dtype[Any] = BYTE,
) -> tuple[StoredText, StoredText]:
    """The text to train on and the held-out text of `data`, written to the cache once.

    `documents` of the files are asked for only if the cache has none of these sources.
    """
    mark, path = fingerprint(files, settings), cache / cached_name(data, settings)
    texts = open_prepared(path, mark, dtype)
    if texts is None:
        prepare(path, documents, mark)
        if fingerprint(files, settings) != mark:
            raise Unusable(f"{data}: changed while it was read: start again when it is complete")
        texts = open_prepared(path, mark, dtype)
    if texts is None:
        raise Unusable(f"{path}: was replaced while it was read: start again")
    return texts


def cached_name(data: Path, settings: str) -> str:
    """The name in the cache of what is prepared of `data`; one for each setting, however it grows.

    So the cache of a corpus that grows every day stays one file.
    """
    place = data if is_dataset(data) else data.absolute()
    return f"{stable_hash(f'{place} {settings}'):016x}{ENDING}"


def open_prepared(
    path: Path, mark: bytes, dtype: np.dtype[Any] = BYTE
) -> tuple[StoredText, StoredText] | None:
    """The text to train on and the held-out text; None if there is none of these sources."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
    size = os.fstat(file.fileno()).st_size
    if size >= TRAILER.size:
        file.seek(size - TRAILER.size)
        tag, found, train, held_out, *texts = TRAILER.unpack(file.read(TRAILER.size))
        if (tag, found, train + held_out + TRAILER.size) == (TAG, mark, size):
            prepared = PreparedFile(file)
            return (
                StoredText(prepared, (0, train), dtype, texts[0]),
                StoredText(prepared, (train, held_out), dtype, texts[1]),
            )
    file.close()
    return None


@contextmanager
def _swept(path: Path) -> Iterator[None]:
    """Delete what writers that were killed left of this text, unless somebody is writing there."""
    parts = path.parent.glob(f"{path.stem}*{PART}")
    with ExitStack() as held:
        if sys.platform == "win32":
            for part in parts:
                with suppress(OSError):  # one that is open stays
                    part.unlink(missing_ok=True)
        else:
            folder = os.open(path.parent, os.O_RDONLY)
            held.callback(os.close, folder)
            with suppress(OSError):  # another writes; or a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for part in parts:
                    part.unlink(missing_ok=True)
            with suppress(OSError):
                fcntl.flock(folder, fcntl.LOCK_SH)  # writers do not keep each other waiting
        yield


def prepare(path: Path, documents: Iterable[PreparedDocument], mark: bytes) -> None:
    """Write the documents, those that are held out at the end; `path` appears when it is whole."""
    texts = [0, 0]
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _swept(path),
            tempfile.NamedTemporaryFile(
                dir=path.parent, prefix=path.stem, suffix=PART, delete=False
            ) as train,
            tempfile.TemporaryFile(dir=path.parent) as held_out,
        ):
            part = train.name
            for document in documents:
                side = held_out if document.held_out else train
                side.write(document.written)
                texts[document.held_out] += document.text_bytes
            lengths = train.tell(), held_out.tell()
            held_out.seek(0)
            shutil.copyfileobj(held_out, train, COPY_BYTES)
            train.write(TRAILER.pack(TAG, mark, *lengths, *texts))
            train.flush()
            os.fsync(train.fileno())
        replace_file(Path(part), path)
        part = ""
    except OSError as error:
        raise Unusable(
            f"{path.parent}: the prepared text cannot be written: {error.strerror}: free some "
            "space, or set train.cache to a folder on another disk"
        ) from error
    finally:
        if part:
            with suppress(OSError):  # the error that led here says more
                Path(part).unlink(missing_ok=True)
