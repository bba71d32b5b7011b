"""The shards of an averaging: which member reduces which one, and how large each is.

Shards begin at multiples of a grain: of `ALIGN` elements, so no cache line and no codec block is
cut. Equal shards differ by at most a grain. A member with a share of 0, or one more than there are
grains, owns nothing. Pieces keep a member's memory small, and one piece is reduced while the next
is on its way.

Each shard costs a stream from and to every other member, however small it is. So in a group of more
than `OWNERS_LEAST` a grain is larger, up to `SHARD_LEAST`, and of a small gradient some members own
nothing: else a hundred members would send each other twenty thousand streams of a few bytes.

With n members and shares s that add up to 1, member j carries 1 + (n - 2) * s[j] gradients each
way: the parts of the others for its shard and its parts for theirs, and the same again reduced. All
end together if that is proportional to their rates. Of two members both carry one gradient,
whatever they own: they share equally.

The members report their rates, and the coordinator makes the shares: all are told the same numbers.
A rate is noisy, and other shards help only where rates differ by much. So a rate is the median of
the last rounds, and shares change only if a round then ends clearly sooner.

Units:   elements; bytes per second; a round's time in gradients per byte per second.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median

ALIGN = 256  # the block of the int8 codec
OWNERS_LEAST = 8  # of so many members each owns a shard, if there is a block for it
SHARD_LEAST = 1 << 16  # 256 KiB of float32: 2 ms at 1 Gbit/s, as long as its two streams cost
PIECE = 1 << 20  # 4 MiB of float32: the parts of four members stay in a processor's cache
SHARE_UNIT = 1 << 16  # shares are whole numbers of this sum: no rounding differs anywhere
RATE_LEAST = 1.0  # byte a second: less is no measurement
RATE_MAX = 16  # times the median: a member that claims more gains nothing by it
SHARE_LEAST = 1 / 8  # of an equal share: a smaller shard costs its streams and saves nobody time
ROUNDS = 5  # one round beside a download, or with a pause in it, does not move the median
GAIN_LEAST = 1.2  # times faster: equal links differ by less from round to round


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

    `shares`: the size of each member's shard relative to the others; none means equal ones. Raises
    ValueError when there is no member, or they do not fit the members.
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
    if members <= OWNERS_LEAST:
        return ALIGN
    return ALIGN * max(1, -(-min(SHARD_LEAST, -(-length // OWNERS_LEAST)) // ALIGN))


Shares = tuple[int, ...]
"""One for each member of a group; none mean equal ones."""


def shares_by_bandwidth(bytes_per_s: Sequence[float]) -> Shares:
    """The shares with which all members are done soonest; 0 for a rate that is not known.

    A member whose rate is not known gets an equal share. One that is too slow to reduce
    `SHARE_LEAST` of that in time reduces as much, or nothing, whichever ends sooner. A rate above
    `RATE_MAX` medians counts as that.

    Returns whole numbers of the sum `SHARE_UNIT`; nothing for equal shares.
    """
    members = len(bytes_per_s)
    known = [rate for rate in bytes_per_s if rate >= RATE_LEAST]
    if members <= 2 or not known or min(known) == max(known):  # noqa: PLR2004  see above
        return ()
    most = RATE_MAX * median(known)
    rates = [min(rate, most) if rate >= RATE_LEAST else 0.0 for rate in bytes_per_s]
    tried = [_levelled(rates, least) for least in (SHARE_LEAST / members, 0.0)]
    whole = [_whole(shares, bytes_per_s) for shares in tried]
    return min(whole, key=lambda shares: round_time(shares, rates))


def round_time(shares: Shares, bytes_per_s: Sequence[float]) -> float:
    """Return when the last of the members is done whose rates are known."""
    members = len(bytes_per_s)
    shares = shares or (1,) * members
    total = sum(shares)
    return max(
        (1 + (members - 2) * share / total) / rate
        for share, rate in zip(shares, bytes_per_s, strict=True)
        if rate
    )


def _levelled(rates: Sequence[float], least: float) -> list[float]:
    """Shares with which all are done together, except those who get an equal share or `least`.

    The fastest member is never among these, because they get less than an equal share on average.
    """
    members = len(rates)
    fixed = {j: 1 / members for j, rate in enumerate(rates) if not rate}
    free = sorted((j for j in range(members) if rates[j]), key=lambda j: (-rates[j], j))
    while True:
        carried = (members - 2) * (1 - sum(fixed.values())) + len(free)
        busy_s = carried / sum(rates[j] for j in free)
        share = {j: (rates[j] * busy_s - 1) / (members - 2) for j in free} | fixed
        slowest = free[-1]
        if share[slowest] >= SHARE_LEAST / members:
            return [share[j] for j in range(members)]
        fixed[free.pop()] = least


def _whole(shares: Sequence[float], rates: Sequence[float]) -> Shares:
    """Whole numbers; what rounding down leaves goes to the fastest, `RATE_MAX` or not."""
    whole = [int(SHARE_UNIT * share) for share in shares]
    whole[max(range(len(rates)), key=lambda j: (rates[j], -j))] += SHARE_UNIT - sum(whole)
    return tuple(whole)


class ShardShares:
    """The shares of every stage's group, from what its members measured in the last rounds."""

    def __init__(self) -> None:
        self._rates: dict[int, dict[bytes, deque[float]]] = {}
        """By stage and peer; only of the last group, so it does not grow."""
        self._given: dict[int, tuple[tuple[bytes, ...], Shares]] = {}

    def measured(self, stage: int, peer: bytes, bytes_per_s: float) -> None:
        """A member says what its links carried in a round that succeeded."""
        if bytes_per_s >= RATE_LEAST:
            rates = self._rates.setdefault(stage, {})
            rates.setdefault(peer, deque(maxlen=ROUNDS)).append(bytes_per_s)

    def of_group(self, stage: int, group: tuple[bytes, ...]) -> Shares:
        """The shares of a stage's next round."""
        former = self._rates.get(stage, {})
        self._rates[stage] = {peer: former[peer] for peer in group if peer in former}
        before, given = self._given.get(stage, (group, ()))
        shares = self._chosen(stage, group, given if before == group else ())
        self._given[stage] = group, shares
        return shares

    def forget(self) -> None:
        """A round took too long, perhaps because of its shares: the next ones are equal."""
        self._rates, self._given = {}, {}

    def _chosen(self, stage: int, group: tuple[bytes, ...], given: Shares) -> Shares:
        """The best shares, if a round ends clearly sooner with them than with those before."""
        measured = self._rates[stage]
        rates = [median(measured[peer]) if peer in measured else 0.0 for peer in group]
        best = shares_by_bandwidth(rates)
        if not best:
            return ()
        enough = GAIN_LEAST * round_time(best, rates)
        kept = (shares for shares in (given, ()) if round_time(shares, rates) <= enough)
        return next(kept, best)
