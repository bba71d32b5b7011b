"""Who reduces which part of a gradient: a contiguous shard for each member, cut into pieces.

Every piece starts at a multiple of `ALIGN` elements, so no cache line and no codec block is cut.
Equal shards differ by at most `ALIGN`. A member with a share of 0, or one more than there are
blocks, owns nothing. Pieces keep a member's memory small, and one piece is reduced while the next
is on its way.

Units:   elements; rates in bytes per second.
Errors:  ValueError when there is no member, or the shares do not fit the members.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import median

ALIGN = 256  # the block of the int8 codec
PIECE = 1 << 20  # 4 MiB of float32: the parts of four members stay in a processor's cache
SHARE_UNIT = 1 << 16  # shares are whole numbers of about this sum: no rounding differs anywhere
RATE_LEAST = 1.0  # byte a second: less is no measurement
RATE_MAX = 16  # times the median: a member that claims more gains nothing by it


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


def shares_by_bandwidth(bytes_per_s: Sequence[float]) -> tuple[int, ...]:
    """The shares with which all members are done soonest; 0 for a rate that is not known.

    With n members and shares s that add up to 1, member j carries 1 + (n - 2) * s[j] gradients
    each way: the parts of the others for its shard and its parts for theirs, and the same again
    reduced. All end together if that is proportional to their rates. A member too slow even for its
    own parts owns nothing. A rate that is not known counts as the median of the known ones, and one
    above `RATE_MAX` medians as that. Of two members both carry one gradient whatever they own: they
    share equally.

    Returns whole numbers, at least one of them positive; nothing for equal shares.
    """
    members = len(bytes_per_s)
    known = [rate for rate in bytes_per_s if rate >= RATE_LEAST]
    if members <= 2 or not known:  # noqa: PLR2004  two members, as the docstring says
        return ()
    middle = median(known)
    rates = [min(rate, RATE_MAX * middle) if rate >= RATE_LEAST else middle for rate in bytes_per_s]
    owners = sorted(range(members), key=lambda j: (-rates[j], j))
    while True:
        busy_s = (members - 2 + len(owners)) / sum(rates[j] for j in owners)
        share = {j: (rates[j] * busy_s - 1) / (members - 2) for j in owners}
        if share[owners[-1]] >= 0:
            return tuple(round(SHARE_UNIT * share.get(j, 0.0)) for j in range(members))
        owners.pop()  # the slowest; what it would have reduced goes to the others
