"""The inputs that are kept: tests/corpus/NAME.bin, one file a parser, and blind mutations of them.

A file has its inputs one after another, as `joined` writes them.
"""

import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from fuzzing.base import Parse, joined, parts
from fuzzing.seeds import SEEDS

import p2pswarm

Branch = tuple[str, int, int]
"""A file, and two lines of it that were run one after the other."""
OURS = str(Path(p2pswarm.__file__).parent)  # the checkout may have that name too
CORPUS = Path(__file__).parents[1] / "corpus"
WHOLE_NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, (1 << 63) - 1)


def kept(name: str) -> list[bytes]:
    """The inputs of one parser that are in the repository."""
    path = CORPUS / f"{name}.bin"
    return list(parts(path.read_bytes())) if path.exists() else []


def keep(name: str, inputs: Sequence[bytes]) -> None:
    """Write the parser's file: `inputs` in place of what it had."""
    CORPUS.mkdir(exist_ok=True)
    (CORPUS / f"{name}.bin").write_bytes(joined(*inputs))


def beginnings(name: str) -> list[bytes]:
    """What a fuzzer of the parser begins with: valid inputs, and those that are kept."""
    return [*SEEDS[name](), *kept(name)]


def smallest_that_reach(
    parse: Parse, known: Sequence[bytes], inputs: Sequence[bytes], most_bytes: int
) -> list[bytes]:
    """The inputs, from small to large, that take a branch which none before and no known one takes.

    Together they have at most `most_bytes`; a larger one is left out, and one after it may fit.
    """
    taken = {branch for data in known for branch in branches_of(parse, data)}
    chosen: list[bytes] = []
    for data in sorted(set(inputs) - set(known), key=lambda each: (len(each), each)):
        if 0 < len(data) <= most_bytes:
            new = branches_of(parse, data) - taken
            if new:
                taken |= new
                chosen.append(data)
                most_bytes -= len(data)
    return chosen


def branches_of(parse: Parse, data: bytes) -> set[Branch]:
    """The branches of the package that a parser takes for an input."""
    taken: set[Branch] = set()

    def called(frame: FrameType, _event: str, _arg: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(OURS):
            return None
        before = 0

        def moved(frame: FrameType, event: str, _arg: Any) -> Any:
            nonlocal before
            if event == "line":
                taken.add((file, before, frame.f_lineno))
                before = frame.f_lineno
            return moved

        return moved

    earlier = sys.gettrace()
    sys.settrace(called)
    try:
        parse(data)
    finally:
        sys.settrace(earlier)
    return taken


def mutations(inputs: Sequence[bytes], seed: int) -> Iterator[bytes]:
    """Changed inputs without an end, the same for the same seed."""
    rng = random.Random(seed)
    while True:
        data = bytearray(rng.choice(inputs))
        for _ in range(rng.randint(1, 4)):
            _change(data, rng.choice(inputs), rng)
        yield bytes(data)


def _change(data: bytearray, other: bytes, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    match rng.randrange(7):
        case 0:
            data[at:at] = rng.randbytes(rng.randint(1, 8))
        case 1:
            del data[at : at + rng.randint(1, 16)]
        case 2:
            data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 8)
        case 3:
            data[at:] = other[rng.randrange(len(other) + 1) :]
        case 4:
            number, size = rng.choice(WHOLE_NUMBERS), rng.choice((1, 2, 4, 8))
            order = rng.choice(("big", "little"))
            data[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, order)
        case _:
            if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
