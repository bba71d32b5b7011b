"""What of graphs is kept between forward and backward, and how graphs are made.

A graph is made whole, or block by block: then only what passes between the blocks is held, and the
backward makes one block's graph at a time. Both give the same bits. What is kept of a microbatch is
the first of these that there is room for: its whole graph, what passes between its blocks, its
input. The second costs a little less than a forward more, and the third a whole one, or two where
the graph made from the input has to be made block by block as well.

A graph's size is found by making it. Whoever finds that it passes the limit breaks off and makes it
block by block; from then on that shape of tokens is.

Units:   bytes.
Errors:  none.
Source:  Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016).
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class GraphLimits:
    """What graphs may take of a device."""

    keep_bytes: int
    """All that are kept between forward and backward."""
    room_bytes: float = math.inf
    """One that is made for a backward at once."""
    recompute: str = "auto"
    """`serve.recompute`: auto, stage or block."""


class GraphKind(Enum):
    """How a graph is made."""

    WHOLE = "whole"
    BLOCKS = "block by block"


class GraphBudget:
    """The limits, what is kept, and the sizes that were measured, by the shape of tokens."""

    def __init__(self, limits: GraphLimits) -> None:
        self.keep_bytes = limits.keep_bytes
        self.kept_bytes = 0
        self._room_bytes = limits.room_bytes
        self._recompute = limits.recompute
        self._short = False
        """Whether there was no memory for a whole graph."""
        self._sizes: dict[tuple[Hashable, GraphKind], int] = {}
        self._above: dict[Hashable, float] = {}
        """Whole graphs that were broken off: they take more than that."""

    @property
    def always_by_block(self) -> bool:
        """Whether all graphs were made block by block from the start, which leaves most memory.

        What a larger graph has left behind is in pieces, so one that begins so may need less.
        """
        return self._recompute == "block"

    def kind_to_keep(self, shape: Hashable) -> GraphKind:
        """How to make the graph that may be kept."""
        return self._kind(shape, self.keep_bytes)

    def kind_at_once(self, shape: Hashable) -> GraphKind:
        """How to make the graph for a backward that follows at once."""
        return self._kind(shape, self._room_bytes)

    def _kind(self, shape: Hashable, limit_bytes: float) -> GraphKind:
        if self._recompute == "stage":
            return GraphKind.WHOLE
        if self.always_by_block or self._short:
            return GraphKind.BLOCKS
        size_bytes = self.size_bytes(shape, GraphKind.WHOLE)
        if size_bytes is None:
            fits = self._above.get(shape, -1) < limit_bytes  # or it is not known yet
        else:
            fits = size_bytes <= limit_bytes
        return GraphKind.WHOLE if fits else GraphKind.BLOCKS

    def most_to_keep(self, kind: GraphKind) -> float:
        """Past it, a graph that may be kept is broken off; a whole one only, and by `auto` only."""
        return self.keep_bytes if self._breaks_off(kind) else math.inf

    def most_at_once(self, kind: GraphKind) -> float:
        """As `most_to_keep`, for a backward that follows at once."""
        return self._room_bytes if self._breaks_off(kind) else math.inf

    def _breaks_off(self, kind: GraphKind) -> bool:
        return kind is GraphKind.WHOLE and self._recompute == "auto"

    def size_bytes(self, shape: Hashable, kind: GraphKind) -> int | None:
        """The size of a graph; None if it has not been measured."""
        return self._sizes.get((shape, kind))

    def measured(self, shape: Hashable, kind: GraphKind, size_bytes: int) -> None:
        """A graph was made, and is so large."""
        self._sizes[shape, kind] = size_bytes

    def broken_off(self, shape: Hashable, most_bytes: float) -> None:
        """A whole graph takes more than `most_bytes`."""
        self._above[shape] = most_bytes

    def fits(self, size_bytes: int) -> bool:
        """Whether there is room to keep one more of that size."""
        return self.kept_bytes + size_bytes <= self.keep_bytes

    def given_up(self, held_bytes: int) -> None:
        """There was no memory beside graphs of `held_bytes`, and now none is kept: keep half."""
        self.keep_bytes = min(self.keep_bytes, held_bytes // 2)
        self.kept_bytes = 0

    def make_smaller(self) -> bool:
        """There was no memory for a graph; False if it cannot be made block by block, or was."""
        if self._short or self._recompute != "auto":
            return False
        self._short = True
        return True
