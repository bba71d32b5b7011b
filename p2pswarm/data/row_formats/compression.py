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
from pathlib import Path
from typing import BinaryIO

import zstandard

from p2pswarm.base.errors import Unusable, one_line

UNPACKED = frozenset({".gz", ".bz2", ".xz", ".zst"})
WINDOW_BYTES_MAX = 128 << 20  # of zstd: what `zstd --long` makes by default
REASON_CHARS_MAX = 100  # of what a library says
INSTEAD = "copy it again, or unpack it and name what was in it"


def is_packed(file: Path) -> bool:
    """Return whether a file is compressed in a way that is read here."""
    return file.suffix.lower() in UNPACKED


def row_ending(file: Path) -> str:
    """The ending of what is in a file, in small letters: ".jsonl" of a.jsonl.gz."""
    return Path(file.stem if is_packed(file) else file.name).suffix.lower()


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
            unpacker = zstandard.ZstdDecompressor(max_window_size=WINDOW_BYTES_MAX)
            frames = unpacker.stream_reader(file.open("rb"), read_across_frames=True, closefd=True)
            return io.BufferedReader(frames)
        case _:
            return file.open("rb")
