"""Who reduces which part of a gradient: a contiguous shard for each member, cut into pieces.

Shards begin at multiples of a grain: of `ALIGN` elements, so no cache line and no codec block is
cut. Equal shards differ by at most a grain. A member with a share of 0, or one more than there are
grains, owns nothing. Pieces keep a member's memory small, and one piece is reduced while the next
is on its way.

Each shard costs a stream from and to every other member, however small it is. So in a group of more
than `OWNERS_LEAST` a grain is larger, up to `SHARD_LEAST`, and of a small gradient some members own
nothing: else a hundred members would send each other twenty thousand streams of a few bytes.

Units:   elements.
Errors:  ValueError when there is no member, or the shares do not fit the members.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

ALIGN = 256  # the block of the int8 codec
OWNERS_LEAST = 8  # of so many members each owns a shard, if there is a block for it
SHARD_LEAST = 1 << 16  # 256 KiB of float32: 2 ms at 1 Gbit/s, as long as its two streams cost
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
    grain = _grain(length, members)
    grains = -(-length // grain)
    borders = [
        min(length, grain * (grains * before // total)) for before in accumulate(shares, initial=0)
    ]
    return tuple(
        ShardPiece(owner, Span(start, min(start + piece, stop)))
        for owner, (begin, stop) in enumerate(pairwise(borders))
        for start in range(begin, stop, piece)
    )


def cut_at(planned: Sequence[ShardPiece], cut: int) -> Iterator[ShardPiece]:
    """The same pieces, with two instead of one that would lie on both sides of `cut`."""
    for piece in planned:
        span = piece.span
        if span.start < cut < span.stop:
            yield replace(piece, span=Span(span.start, cut))
            yield replace(piece, span=Span(cut, span.stop))
        else:
            yield piece


def _grain(length: int, members: int) -> int:
    """What the shards' borders are multiples of."""
    if members <= OWNERS_LEAST:
        return ALIGN
    return ALIGN * max(1, -(-min(SHARD_LEAST, -(-length // OWNERS_LEAST)) // ALIGN))
