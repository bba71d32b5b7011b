"""Who reduces which part of a gradient: a contiguous shard for each member, cut into pieces.

Every piece starts at a multiple of `ALIGN` elements, so no cache line and no codec block is cut.
Equal shards differ by at most `ALIGN`. A member with a share of 0, or one more than there are
blocks, owns nothing. Pieces keep a member's memory small, and one piece is reduced while the next
is on its way.

Units:   elements.
Errors:  ValueError when there is no member, or the shares do not fit the members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

ALIGN = 256  # the block of the int8 codec
PIECE = 1 << 20  # 4 MiB of float32: the parts of four members stay in a processor's cache


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


def pieces(
    length: int, members: int, piece: int = PIECE, shares: Sequence[int] = ()
) -> tuple[ShardPiece, ...]:
    """All of 0..length in order, the members' shards in the order of the group.

    `shares`: the size of each member's shard relative to the others; none means equal ones.
    """
    shares = shares or (1,) * members
    total = sum(shares)
    if members < 1 or length < 0 or piece < 1:
        raise ValueError(f"{length} elements for {members} members in pieces of {piece}")
    if len(shares) != members or min(shares) < 0 or total < 1:
        raise ValueError(f"shares {tuple(shares)} for {members} members")
    blocks = -(-length // ALIGN)
    borders = [
        min(length, ALIGN * (blocks * before // total)) for before in accumulate(shares, initial=0)
    ]
    return tuple(
        ShardPiece(owner, Span(start, min(start + piece, stop)))
        for owner, (begin, stop) in enumerate(pairwise(borders))
        for start in range(begin, stop, piece)
    )
