"""FairTurns: who comes next of many that wait, by groups of addresses in turn.

Groups of the widest kind take turns, then the groups within each, and so on; within the smallest
group the oldest comes first. So an item waits for one turn of each other group beside its own at
each level, however many a group has. Each step costs the same however many wait.

Units:   counts.
Errors:  none.
Source:  hierarchical round robin, for items of equal cost; `net/os/address_groups.py` for the
         groups.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _TurnGroup(Generic[T]):
    """A group: its own items, and the groups within that have any. The first is next."""

    __slots__ = ("inner", "items")

    def __init__(self) -> None:
        self.items: OrderedDict[T, None] = OrderedDict()
        self.inner: OrderedDict[str, _TurnGroup[T]] = OrderedDict()


class FairTurns(Generic[T]):
    """Who waits, by group."""

    def __init__(self) -> None:
        self._all: _TurnGroup[T] = _TurnGroup()
        self._groups: dict[T, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, item: T) -> bool:
        return item in self._groups

    def add(self, item: T, groups: tuple[str, ...]) -> None:
        """Let `item` wait, once; `groups`: those that it belongs to, the widest first."""
        self._groups[item] = groups
        group = self._all
        for name in groups:
            group = group.inner.setdefault(name, _TurnGroup())
        group.items[item] = None

    def remove(self, item: T) -> None:
        """Forget `item`, if it waits."""
        groups = self._groups.pop(item, None)
        if groups is not None:
            self._take(item, groups)

    def next(self) -> T | None:
        """Take out whose turn it is; None if nobody waits."""
        if not self._groups:
            return None
        group = self._all
        while group.inner:
            name, inner = next(iter(group.inner.items()))
            group.inner.move_to_end(name)  # the others of its kind come before its next turn
            group = inner
        item = next(iter(group.items))
        self._take(item, self._groups.pop(item))
        return item

    def _take(self, item: T, groups: tuple[str, ...]) -> None:
        path = [self._all]
        for name in groups:
            path.append(path[-1].inner[name])
        del path[-1].items[item]
        for name in reversed(groups):
            inner = path.pop()
            if inner.items or inner.inner:
                return
            del path[-1].inner[name]
