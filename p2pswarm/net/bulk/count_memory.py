"""CountMemory: how many bulk connections were best, for peers and kinds of path.

Units:   counts.
Errors:  none.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass

REMEMBERED_MAX = 1024  # as many as there may be links: 100 KB


@dataclass(slots=True)
class BestCount:
    """What is known of one peer and one kind of path."""

    count: int = 0
    """How many were best; 0: nothing is known."""


class CountMemory:
    """The latest peers that tensors were exchanged with."""

    def __init__(self) -> None:
        self._best: OrderedDict[Hashable, BestCount] = OrderedDict()

    def best(self, *key: Hashable) -> BestCount:
        """What is known; whoever finds out more writes it there."""
        found = self._best.setdefault(key, BestCount())
        self._best.move_to_end(key)
        while len(self._best) > REMEMBERED_MAX:
            self._best.popitem(last=False)
        return found
