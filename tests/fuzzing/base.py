"""What the parsers of a fuzzer have in common: their table, inputs of several parts, files."""

import functools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

Parse = Callable[[bytes], None]
PARSERS: dict[str, Parse] = {}
SLOW: set[str] = set()
"""Parsers that take over 0.1 ms: they get fewer inputs."""


def parser(parse: Parse) -> Parse:
    """Put a function into the table."""
    PARSERS[parse.__name__] = parse
    return parse


def slow_parser(parse: Parse) -> Parse:
    """Put a function into the table that takes over 0.1 ms an input."""
    SLOW.add(parse.__name__)
    return parser(parse)


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="fuzz-")


def placed(name: str, data: bytes) -> Path:
    """A file with these bytes, in the place of one that had the name before."""
    path = Path(_folder().name) / name
    path.unlink(missing_ok=True)  # whoever has the old one mapped keeps its bytes
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


def parts(data: bytes) -> Iterator[bytes]:
    """The parts of an input: each after its length, a little-endian u16 that may say too much."""
    at = 0
    while at + 2 <= len(data):
        end = at + 2 + int.from_bytes(data[at : at + 2], "little")
        yield data[at + 2 : end]
        at = end


def joined(*pieces: bytes) -> bytes:
    """An input of these parts."""
    return b"".join(len(piece).to_bytes(2, "little") + piece for piece in pieces)
