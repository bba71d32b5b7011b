"""What the parsers of a fuzzer have in common: their table, and inputs of several parts."""

from collections.abc import Callable, Iterator

Parse = Callable[[bytes], None]
PARSERS: dict[str, Parse] = {}


def parser(parse: Parse) -> Parse:
    """Put a function into the table."""
    PARSERS[parse.__name__] = parse
    return parse


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
