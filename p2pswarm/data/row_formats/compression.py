"""Files that are compressed, read from their beginning on.

Errors:  Unusable, in one line, for what cannot be unpacked.
"""

import bz2
import functools
import gzip
import importlib
import io
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, BinaryIO, Protocol

from p2pswarm.base.errors import Unusable, one_line

UNPACKED = frozenset({".gz", ".bz2", ".xz", ".zst"})
WINDOW_BYTES_MAX = 128 << 20  # of zstd: what `zstd --long` makes by default
XZ_BYTES_MAX = WINDOW_BYTES_MAX + (1 << 20)  # the same windows; `xz -9` has one of 64 MiB
READ_BYTES = 4096  # zstd may make 100 MB of so many at the most
COUNT_BYTES = 1 << 20  # read at a time
XZ_PADDING = b"\0"  # may stand behind a stream
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
    except (EOFError, OSError, lzma.LZMAError, zlib.error, _zstd().ZstdError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, and not of what was read: gzip and bz2 raise bare ones
        reason = one_line(error, REASON_CHARS_MAX)
        raise Unusable(f"{file}: cannot be unpacked, {INSTEAD}: {reason}") from error


def unpacked_bytes(file: Path) -> int:
    """How many bytes are in a file; it is read for it if it is compressed."""
    if not is_packed(file):
        return file.stat().st_size
    with unpacked(file) as opened:
        return sum(map(len, iter(functools.partial(opened.read, COUNT_BYTES), b"")))


def _opened(file: Path) -> BinaryIO:
    match file.suffix.lower():
        case ".gz":
            return gzip.open(file)  # type: ignore[return-value]
        case ".bz2":
            return bz2.open(file)  # type: ignore[return-value]
        case ".xz":
            return io.BufferedReader(_Frames(file, _xz_stream, XZ_PADDING))
        case ".zst":
            unpacker = _zstd().ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
            return io.BufferedReader(_Frames(file, unpacker.decompressobj))
        case _:
            return file.open("rb")


def _zstd() -> ModuleType:
    """The library, of which a node that others join through has no need."""
    return importlib.import_module("zstandard")


class _Frame(Protocol):
    """What unpacks one frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


def _xz_stream() -> _Frame:
    return lzma.LZMADecompressor(memlimit=XZ_BYTES_MAX)


class _Frames(io.RawIOBase):
    """The frames of a file, one after the other.

    The library's own reader of zstd takes a torn one, and that of xz has no limit of memory.
    """

    def __init__(self, file: Path, frame: Callable[[], _Frame], padding: bytes = b"") -> None:
        """`padding`: the byte that may stand between frames; none if it is empty."""
        self._file = file.open("rb")
        self._new, self._padding = frame, padding
        self._frame: _Frame | None = None
        self._behind_frame = False
        """True where padding may stand."""
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
            if self._frame is None and self._behind_frame:
                packed = packed.lstrip(self._padding)
                if not packed:
                    continue
            self._frame = self._frame or self._new()
            self._ready = memoryview(self._frame.decompress(packed))
            if self._frame.eof:
                self._packed, self._frame = self._frame.unused_data, None
                self._behind_frame = bool(self._padding)
        length = min(len(into), len(self._ready))
        into[:length], self._ready = self._ready[:length], self._ready[length:]
        return length

    def close(self) -> None:
        """As `io.RawIOBase`."""
        self._file.close()
        super().close()
