"""Which text is never trained on: a rule of the text alone, so that every member splits alike.

A row of a file is a document, and the hash of its text decides on which side it is.

A text file is cut into blocks at ends of lines. Block n is held out if the fraction of

    phase + n / golden ratio

is below the share, where the phase is a hash of the file's first 64 KiB. Multiples of the golden
ratio lie evenly in [0, 1) however few they are, so the held-out blocks of each file have nearly the
share of its bytes, and each file begins anywhere in the sequence. No name, no order of files, and
no other file has a say: files that are added, renamed or moved leave all others as they are, a file
that has grown keeps its earlier blocks, and a larger share only adds to what is held out.

A block has 1/64 of the bytes before it, from 1 KiB to 1 MiB. So a small file has blocks enough for
its share, and a large one has few places where its text is torn apart.

Units:   bytes.
Source:  Kronecker sequences: Niederreiter, "Random Number Generation and Quasi-Monte Carlo
         Methods", SIAM 1992, section 3.1; the golden ratio has the least discrepancy of them.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

RULE = "blocks 1"  # rises when other parts of text files are held out
STEP = 0x9E3779B97F4A7C15  # 2**64 over the golden ratio, as Knuth's multiplicative hash has it
WORD = 1 << 64
BLOCK_BYTES_MIN, BLOCK_BYTES_MAX = 1 << 10, 1 << 20
BLOCKS_BEFORE = 64  # a block has this part of what is before it
PHASE_BYTES = 1 << 16  # more than a licence or a web page's head, which many files begin with
LINE_BYTES_MAX = 4 << 10  # a longer line is cut, before a character
LINE = b"\n"
FOLLOWING_MAX = 3  # bytes of a character after its first, in UTF-8 (RFC 3629)
FOLLOWING = range(0x80, 0xC0)

Read = Callable[[int, int], bytes]
"""The bytes of a file from a place to another."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a file that is on one side."""

    start: int
    stop: int
    held_out: bool


def is_held_out_document(document: bytes, share: float) -> bool:
    """Return whether a document is kept from training: a hash of its text alone decides."""
    return _hash(b"document:" + document) < share * WORD


def parts_of_file(size: int, share: float, read: Read) -> list[Part]:
    """The parts of a text file in their order; neighbours are on different sides."""
    phase = _hash(b"file:" + read(0, min(size, PHASE_BYTES)))
    parts = list[Part]()
    begin = number = 0
    while begin < size:
        held_out = _is_held_out_block(phase, number, share)
        while begin < size and _is_held_out_block(phase, number, share) is held_out:
            begin += min(max(begin // BLOCKS_BEFORE, BLOCK_BYTES_MIN), BLOCK_BYTES_MAX)
            number += 1
        start, stop = parts[-1].stop if parts else 0, _cut(size, begin, read)
        if start == stop:  # a long line is all that lies between two cuts
            continue
        if parts and parts[-1].held_out is held_out:
            parts[-1] = Part(parts[-1].start, stop, held_out)
        else:
            parts.append(Part(start, stop, held_out))
    return parts


def _is_held_out_block(phase: int, number: int, share: float) -> bool:
    return (phase + number * STEP) % WORD < share * WORD


def _cut(size: int, place: int, read: Read) -> int:
    """The end of the line that the byte before a place is in; or else a character's begin."""
    if place >= size:
        return size
    after = read(place - 1, min(size, place + LINE_BYTES_MAX))
    if (end := after.find(LINE)) >= 0:
        return place + end
    if len(after) <= LINE_BYTES_MAX:
        return size
    before = 0
    while before < FOLLOWING_MAX and after[1 + before] in FOLLOWING:
        before += 1
    return place + before


def _hash(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8])
