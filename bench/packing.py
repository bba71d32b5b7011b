"""How uneven the attention work of microbatches is when whole documents are packed into them.

    python bench/packing.py --tokens 16384 --documents 20000

Documents of log-normal length are packed into microbatches of at most so many tokens, and their
attention is causal within each document: its work is the sum of squared lengths. Two ways: by
length (each document, in its order, goes into the first microbatch of an open window that has room)
and balanced (the longest document first, into the microbatch with the least work so far that has
room, after FlashCP). Nothing is timed: the work is counted. A longer document is cut, in both.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from random import Random

MEAN_LOG = math.log(800)  # the median: text of the web
Packing = list[list[int]]


def lengths(count: int, most: int, deviation: float, rng: Random) -> list[int]:
    """Lengths of documents, in tokens."""
    drawn = (round(rng.lognormvariate(MEAN_LOG, deviation)) for _ in range(count))
    return [min(max(length, 2), most) for length in drawn]


def by_length(documents: list[int], bins: int, most: int) -> Packing:
    """First fit, in the order of the documents."""
    packed: Packing = [[] for _ in range(bins)]
    free = [most] * bins
    for length in documents:
        place = next((n for n in range(bins) if free[n] >= length), None)
        if place is not None:
            packed[place].append(length)
            free[place] -= length
    return packed


def balanced(documents: list[int], bins: int, most: int) -> Packing:
    """The longest first, each into the microbatch with the least work that has room."""
    packed: Packing = [[] for _ in range(bins)]
    free, work = [most] * bins, [0] * bins
    for length in sorted(documents, reverse=True):
        fitting = [n for n in range(bins) if free[n] >= length]
        if fitting:
            place = min(fitting, key=lambda n: (work[n], n))
            packed[place].append(length)
            free[place] -= length
            work[place] += length**2
    return packed


def spread(packed: Packing) -> tuple[float, float]:
    """Deviation over mean, and the largest over the mean, of the attention work."""
    work = [sum(length**2 for length in documents) for documents in packed]
    mean = statistics.fmean(work)
    return statistics.pstdev(work) / mean, max(work) / mean


def main() -> None:
    """Pack step after step both ways."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--tokens", type=int, default=16_384, help="of a microbatch")
    parser.add_argument("--microbatches", type=int, default=16, help="of a step")
    parser.add_argument("--fill", type=float, default=0.95, help="share of the tokens asked for")
    parser.add_argument("--deviation", type=float, default=1.1, help="of the lengths, in logs")
    parser.add_argument("--seed", type=int, default=1)
    flags = parser.parse_args()
    every = lengths(flags.documents, flags.tokens, flags.deviation, Random(flags.seed))
    steps: list[list[int]] = [[]]
    for length in every:
        if sum(steps[-1]) + length > flags.fill * flags.tokens * flags.microbatches:
            steps.append([])
        steps[-1].append(length)
    steps.pop()  # the last is not full
    print(f"{len(every):,} documents, {len(steps)} steps of {flags.microbatches} microbatches")
    print(f"{'':10} {'deviation/mean':>15} {'largest/mean':>13} {'left out':>9}")
    ways: dict[str, Callable[[list[int], int, int], Packing]] = {
        "by length": by_length,
        "balanced": balanced,
    }
    for name, pack in ways.items():
        packings = [pack(step, flags.microbatches, flags.tokens) for step in steps]
        found = [spread(packing) for packing in packings]
        kept = sum(len(documents) for packing in packings for documents in packing)
        left = 1 - kept / sum(map(len, steps))
        deviation, largest = (statistics.fmean(column) for column in zip(*found, strict=True))
        print(f"{name:10} {deviation:15.3f} {largest:13.3f} {left:9.2%}")


if __name__ == "__main__":
    main()
