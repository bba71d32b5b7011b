"""How uneven the attention work of microbatches is when whole documents are packed into them.

    python bench/packing.py --tokens 16384 --documents 20000

Documents of log-normal length are packed into the rows of microbatches, and their
attention is causal within each document: its work is the sum of squared lengths. Two ways: by
length (each document, in its order, goes into the first microbatch of an open window that has room)
and balanced (`p2pswarm/data/packing.py`). Nothing is timed: the work is counted. A document longer
than a row is cut, in both; what has no room is left out by length, and cut when balanced.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from p2pswarm.data.packing import packed

MEAN_LOG = math.log(800)  # the median: text of the web
Packing = list[list[int]]
"""The lengths in each microbatch."""


class Shape(NamedTuple):
    """Of a step."""

    microbatches: int
    rows: int
    """Of a microbatch."""
    row_tokens: int


def lengths(count: int, most: int, deviation: float, rng: Random) -> list[int]:
    """Lengths of documents, in tokens."""
    drawn = (round(rng.lognormvariate(MEAN_LOG, deviation)) for _ in range(count))
    return [min(max(length, 2), most) for length in drawn]


def by_length(documents: list[int], shape: Shape) -> Packing:
    """First fit, in the order of the documents."""
    rows = shape.microbatches * shape.rows
    found: list[list[int]] = [[] for _ in range(rows)]
    free = [shape.row_tokens] * rows
    for length in documents:
        place = next((n for n in range(rows) if free[n] >= length), None)
        if place is not None:
            found[place].append(length)
            free[place] -= length
    whole = range(0, rows, shape.rows)
    return [[x for row in found[first : first + shape.rows] for x in row] for first in whole]


def balanced(documents: list[int], shape: Shape) -> Packing:
    """As `run.batch.samples = "packed"` does: every row is full, of pieces if need be."""
    made = packed(documents, shape.microbatches, shape.rows, shape.row_tokens)
    return [[piece.length for row in rows for piece in row] for rows in made]


def spread(packing: Packing) -> tuple[float, float]:
    """Deviation over mean, and the largest over the mean, of the attention work."""
    work = [sum(length**2 for length in documents) for documents in packing]
    mean = statistics.fmean(work)
    return statistics.pstdev(work) / mean, max(work) / mean


def main() -> None:
    """Pack step after step both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a microbatch")
    parser.add_argument("--rows", type=int, default=8, help="of a microbatch; longer is cut")
    parser.add_argument("--microbatches", type=int, default=16, help="of a step")
    parser.add_argument("--fill", type=float, default=0.95, help="share of the tokens asked for")
    parser.add_argument("--deviation", type=float, default=1.1, help="of the lengths, in logs")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    shape = Shape(flags.microbatches, flags.rows, flags.tokens // flags.rows)
    every = lengths(flags.documents, shape.row_tokens, flags.deviation, Random(flags.seed))
    steps: list[list[int]] = [[]]
    for length in every:
        if sum(steps[-1]) + length > flags.fill * flags.tokens * flags.microbatches:
            steps.append([])
        steps[-1].append(length)
    steps.pop()  # the last is not full
    print(f"{len(every):,} documents, {len(steps)} steps of {flags.microbatches} microbatches")
    print(f"{'':10} {'deviation/mean':>15} {'largest/mean':>13} {'empty':>9}")
    ways: dict[str, Callable[[list[int], Shape], Packing]] = {
        "by length": by_length,
        "balanced": balanced,
    }
    for name, pack in ways.items():
        packings = [pack(step, shape) for step in steps]
        found = [spread(packing) for packing in packings]
        kept = sum(length for packing in packings for documents in packing for length in documents)
        left = 1 - kept / (len(steps) * flags.microbatches * flags.tokens)
        deviation, largest = (statistics.fmean(column) for column in zip(*found, strict=True))
        print(f"{name:10} {deviation:15.3f} {largest:13.3f} {left:9.2%}")


if __name__ == "__main__":
    main()
