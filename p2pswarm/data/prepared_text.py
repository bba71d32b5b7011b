"""Documents prepared for training: one file on disk that is read in pieces, whatever its size.

The file holds the text to train on, then the held-out text, then a trailer with their lengths and
the fingerprint of the sources. It is written under another name and moved when it is whole. So it
is there or not, and a file whose sources have changed since is written anew.

Units:   bytes.
Errors:  Unusable when the disk is full, or the file is gone or torn while a run reads it.
"""

import hashlib
import os
import shutil
import struct
import tempfile
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from p2pswarm.data.corpus import stable_hash
from p2pswarm.errors import Unusable

TRAILER = struct.Struct("<8s32sQQ")  # the tag, the fingerprint, the lengths of the two texts
TAG = b"p2ptext1"  # rises when what is written changes
SEPARATOR = b"\n"
COPY_BYTES = 1 << 20
ENDING = ".prepared"


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
    """A part of the file, read when it is asked for: `text[start:stop]` is an array of bytes."""

    def __init__(self, file: PreparedFile, begin: int, length: int) -> None:
        self._file = file
        self._begin, self._length = begin, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, part: slice, /) -> NDArray[np.uint8]:
        start, stop, _ = part.indices(self._length)
        found = self._file.read(self._begin + start, max(0, stop - start))
        return np.frombuffer(found, dtype=np.uint8)


def is_held_out_document(document: bytes, share: float) -> bool:
    """Whether a document is kept from training: a hash of its text alone decides."""
    digest = hashlib.sha256(b"document:" + document).digest()
    return int.from_bytes(digest[:8]) / 2**64 < share


def fingerprint(files: Iterable[Path], field: str, share: float) -> bytes:
    """32 bytes that change when a file, its size or its time of writing changes."""
    digest = hashlib.sha256(f"{field!r} {share!r}".encode())
    for file in files:
        try:
            about = file.stat()
        except OSError as error:
            raise Unusable(f"{file}: cannot be read: {error.strerror}") from error
        digest.update(f"{str(file.absolute())!r} {about.st_size} {about.st_mtime_ns}\n".encode())
    return digest.digest()


def cached_name(data: Path, field: str, share: float) -> str:
    """The name in the cache of what is prepared of `data`; one for each setting, however it grows.

    So the cache of a corpus that grows every day stays one file.
    """
    return f"{stable_hash(f'{data.absolute()} {field!r} {share!r}'):016x}{ENDING}"


def open_prepared(path: Path, mark: bytes) -> tuple[StoredText, StoredText] | None:
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
        tag, found, train, held_out = TRAILER.unpack(file.read(TRAILER.size))
        if (tag, found, train + held_out + TRAILER.size) == (TAG, mark, size):
            prepared = PreparedFile(file)
            return StoredText(prepared, 0, train), StoredText(prepared, train, held_out)
    file.close()
    return None


def prepare(path: Path, documents: Iterable[bytes], share: float, mark: bytes) -> None:
    """Write the documents, those that are held out at the end; `path` appears when it is whole."""
    part = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            tempfile.NamedTemporaryFile(
                dir=path.parent, prefix=path.stem, suffix=".part", delete=False
            ) as train,
            tempfile.TemporaryFile(dir=path.parent) as held_out,
        ):
            part = train.name
            for document in documents:
                side = held_out if is_held_out_document(document, share) else train
                side.write(document + SEPARATOR)
            lengths = train.tell(), held_out.tell()
            held_out.seek(0)
            shutil.copyfileobj(held_out, train, COPY_BYTES)
            train.write(TRAILER.pack(TAG, mark, *lengths))
            train.flush()
            os.fsync(train.fileno())
        Path(part).replace(path)
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
