"""Who reduces which part of a gradient: a contiguous shard for each member, cut into pieces.

Every piece starts at a multiple of `ALIGN` elements, so no cache line and no codec block is cut.
Shards differ by at most `ALIGN`. If there are more members than blocks, some members own nothing.
Pieces keep a member's memory small, and one piece is reduced while the next is on its way.

Units:   elements.
Errors:  ValueError when there is no member.
"""

from dataclasses import dataclass
from itertools import pairwise

ALIGN = 256  # the block of the int8 codec
PIECE = 1 << 22  # 16 MiB of float32: 64 peers at once stay within a process's 1 GiB for tensors


@dataclass(frozen=True, slots=True)
class Span:
    """Elements start..stop-1."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """The number of elements."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """What is reduced and sent in one go."""

    owner: int
    """The member of the group that reduces it."""
    span: Span


def pieces(length: int, members: int, piece: int = PIECE) -> tuple[ShardPiece, ...]:
    """All of 0..length in order, the members' shards in the order of the group."""
    if members < 1 or length < 0 or piece < 1:
        raise ValueError(f"{length} elements for {members} members in pieces of {piece}")
    blocks = -(-length // ALIGN)
    borders = [min(length, ALIGN * (blocks * j // members)) for j in range(members + 1)]
    return tuple(
        ShardPiece(owner, Span(start, min(start + piece, stop)))
        for owner, (begin, stop) in enumerate(pairwise(borders))
        for start in range(begin, stop, piece)
    )
