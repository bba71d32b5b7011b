"""Whole documents packed into the rows of a step, so that microbatches have even attention work.

Attention that is causal within each document takes work in proportion to the sum of its squared
length. The longest document comes first, each goes to the microbatch with the least work so far
that has room, there into the fullest row that it fits. What no row has room for is cut to the
room that is left; if there is room still, documents of the step come again from their beginning.
So every row is full, every token counts, and nothing is padded.

Units:   tokens.
Source:  FlashCP balances documents by their squares.
"""

import bisect
import heapq
from collections.abc import Sequence
from typing import NamedTuple


class Piece(NamedTuple):
    """The first `length` tokens of a document, in a row."""

    document: int
    length: int


Row = list[Piece]


class _Microbatch:
    """The rows of a microbatch while they are filled."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.rows: list[Row] = [[] for _ in range(rows)]
        self.free = [(capacity, row) for row in range(rows)]
        """The room of each row, and its number; the least first."""

    def put(self, piece: Piece, place: int) -> None:
        """Add to the row at `place` of `free`."""
        room, row = self.free.pop(place)
        self.rows[row].append(piece)
        if room > piece.length:
            bisect.insort(self.free, (room - piece.length, row))


def packed(lengths: Sequence[int], microbatches: int, rows: int, capacity: int) -> list[list[Row]]:
    """The rows of each microbatch, of documents of these lengths, none over `capacity` or under 1.

    There is at least one document.
    """
    made = [_Microbatch(rows, capacity) for _ in range(microbatches)]
    least = [(0, number) for number in range(microbatches)]  # work and microbatch, a heap
    order = sorted(range(len(lengths)), key=lambda document: (-lengths[document], document))
    left = [document for document in order if not _placed(document, lengths[document], made, least)]
    again = [*left, *reversed(order)]  # then the shortest: as many whole ones as possible
    turn = 0
    for microbatch in made:
        while microbatch.free:
            document = again[turn % len(again)]
            turn += 1
            room = microbatch.free[-1][0]
            microbatch.put(Piece(document, min(room, lengths[document])), -1)
    return [microbatch.rows for microbatch in made]


def _placed(
    document: int, length: int, made: list[_Microbatch], least: list[tuple[int, int]]
) -> bool:
    """Put a whole document where there is room; False if no row has it."""
    full: list[tuple[int, int]] = []
    found = False
    while least and not found:
        work, number = heapq.heappop(least)
        microbatch = made[number]
        place = bisect.bisect_left(microbatch.free, (length, -1))
        found = place < len(microbatch.free)
        if found:
            microbatch.put(Piece(document, length), place)
            work += length**2
        full.append((work, number))
    for each in full:
        heapq.heappush(least, each)
    return found
