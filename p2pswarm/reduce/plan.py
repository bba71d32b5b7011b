"""Who reduces which part of a gradient: cut into one contiguous shard a member.

Every shard starts at a multiple of `ALIGN` elements, so no cache line and no codec block is cut;
sizes differ by at most that. With more members than such pieces some shards are empty.

Units:   elements.
Errors:  ValueError when there is no member.
"""

from dataclasses import dataclass

ALIGN = 256  # elements: the block of the int8 codec


@dataclass(frozen=True, slots=True)
class Span:
    """Elements start..stop-1."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """How many."""
        return self.stop - self.start


def shards(length: int, members: int) -> tuple[Span, ...]:
    """One span a member, in order, together all of 0..length."""
    if members < 1 or length < 0:
        raise ValueError(f"{length} elements for {members} members")
    pieces = -(-length // ALIGN)
    borders = [min(length, ALIGN * (pieces * j // members)) for j in range(members + 1)]
    return tuple(Span(a, b) for a, b in zip(borders, borders[1:], strict=False))
