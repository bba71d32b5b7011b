"""Files that are compressed, read from their beginning on.

Errors:  Unusable, in one line, for what cannot be unpacked.
"""

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, BinaryIO

import zstandard

from p2pswarm.base.errors import Unusable, one_line

UNPACKED = frozenset({".gz", ".bz2", ".xz", ".zst"})
WINDOW_BYTES_MAX = 128 << 20  # of zstd: what `zstd --long` makes by default
READ_BYTES = 4096  # zstd may make 100 MB of so many at the most
REASON_CHARS_MAX = 100  # of what a library says
INSTEAD = "copy it again, or unpack it and name what was in it"


def is_packed(file: PurePath) -> bool:
    """Return whether a file is compressed in a way that is read here."""
    return file.suffix.lower() in UNPACKED


def row_ending(file: PurePath) -> str:
    """The ending of what is in a file, in small letters: ".jsonl" of a.jsonl.gz."""
    return PurePath(file.stem if is_packed(file) else file.name).suffix.lower()


@contextmanager
def unpacked(file: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked if it is compressed."""
    try:
        with _opened(file) as opened:
            yield opened
    except (EOFError, gzip.BadGzipFile, lzma.LZMAError, zlib.error, zstandard.ZstdError) as error:
        reason = one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"{file}: cannot be unpacked, {INSTEAD}: {reason}") from error


def _opened(file: Path) -> BinaryIO:
    match file.suffix.lower():
        case ".gz":
            return gzip.open(file)  # type: ignore[return-value]
        case ".bz2":
            return bz2.open(file)  # type: ignore[return-value]
        case ".xz":
            return lzma.open(file)  # type: ignore[return-value]
        case ".zst":
            return io.BufferedReader(_ZstdFrames(file))
        case _:
            return file.open("rb")


class _ZstdFrames(io.RawIOBase):
    """The frames of a file, one after the other: the library's own reader takes a torn one."""

    def __init__(self, file: Path) -> None:
        self._file = file.open("rb")
        self._unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
        self._frame: zstandard.ZstdDecompressionObj | None = None
        self._packed = b""
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """As `io.RawIOBase`."""
        return True

    def readinto(self, into: Any) -> int:
        """As `io.RawIOBase`; EOFError where a frame ends early."""
        while not self._ready:
            packed, self._packed = self._packed or self._file.read(READ_BYTES), b""
            if not packed:
                if self._frame is not None:
                    raise EOFError("it ends early")
                return 0
            self._frame = self._frame or self._unpacker.decompressobj()
            self._ready = memoryview(self._frame.decompress(packed))
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
        length = min(len(into), len(self._ready))
        into[:length], self._ready = self._ready[:length], self._ready[length:]
        return length

    def close(self) -> None:
        """As `io.RawIOBase`."""
        self._file.close()
        super().close()
