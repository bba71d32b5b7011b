"""Where each row of a streamed text begins; which rows are filled in one pass.

A place follows from the seed and the row's number. Where any place is found at once, each row is
drawn from all of the text. Where a group of rows has to be read from its beginning, that would cost
a whole group for each row. So some groups are drawn at a time, as many as are about
`OPEN_BYTES`, and rows are dealt to them in turn; a group is left for another when it has had a row
for each `READ_BYTES` of it, one group after another. Every byte of the text is as likely
to begin a row as any other, and reading costs about `READ_BYTES` a row however large groups are.

Units:   places; bytes.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.data.corpus import stable_hash

READ_BYTES = 1 << 20  # of a group for a row: 1.5 ms of a processor
OPEN_BYTES = 512 << 20  # of groups that are read for the first microbatch: a second
OPEN_GROUPS_MAX = 16
KEPT_BYTES = 16 << 20  # of the rows of groups that are open


@dataclass(frozen=True, kw_only=True, slots=True)
class PlaceLimits:
    """How rows are dealt to groups."""

    read_bytes: int = READ_BYTES
    open_bytes: int = OPEN_BYTES
    kept_bytes: int = KEPT_BYTES


SHIPPED = PlaceLimits()


class RowPlaces:
    """Where the rows of a text begin."""

    def __init__(
        self,
        length: int,
        groups: Sequence[int],
        *,
        seed: int,
        row_shape: tuple[int, int],
        limits: PlaceLimits,
    ) -> None:
        """`groups`: where each begins, and where the last ends; empty if none has to be read whole.

        row_shape: the rows of a microbatch, and the bytes of a row's tokens.
        """
        self._length, self._groups, self._seed = length, groups, seed
        self._rows, row_bytes = row_shape
        self.open = self.each = 1
        if groups:
            mean_bytes = length / (len(groups) - 1)
            self.open = min(OPEN_GROUPS_MAX, max(1, int(limits.open_bytes / mean_bytes)))
            kept = max(1, limits.kept_bytes // (row_bytes * self.open))
            self.each = min(kept, max(1, round(mean_bytes / limits.read_bytes)))

    @property
    def shape(self) -> str:
        """What decides places besides the text and the seed; empty if nothing does."""
        return f" {self.open} groups {self.each} rows" if self.each > 1 else ""

    def visit(self, number: int) -> tuple[int, int]:
        """What rows that are filled in one pass with this one have in common."""
        if self.each == 1:
            return 0, number
        turn, slot = divmod(number, self.open)
        return slot, (turn + self._shift(slot)) // self.each

    def rows_of(self, visit: tuple[int, int]) -> range:
        """The rows that are filled in one pass."""
        slot, number = visit
        if self.each == 1:
            return range(number, number + 1)
        first = number * self.each - self._shift(slot)
        return range(max(0, first) * self.open + slot, (first + self.each) * self.open, self.open)

    def place(self, kind: str, number: int) -> int:
        """Where a row of this kind begins."""
        microbatch, row = divmod(number, self._rows)
        drawn = stable_hash(f"{kind}:{self._seed}:{microbatch}:{row}")
        if self.each == 1:
            return drawn % self._length
        slot, visit = self.visit(number)
        where = stable_hash(f"{kind} group:{self._seed}:{slot}:{visit}") % self._length
        group = bisect_right(self._groups, where) - 1
        begin, end = self._groups[group : group + 2]
        return begin + drawn % (end - begin)

    def _shift(self, slot: int) -> int:
        """By how many of its rows a group is left sooner: all at once would be one long wait."""
        return slot * self.each // self.open
