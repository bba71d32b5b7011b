"""FairPlaces: a limited number of places, shared fairly between networks, then within each.

Who holds few places is safe from who holds many. If all are taken, the next to go is the oldest
of the largest group: of the widest kind first, then of the largest one within it, and so on. So a
crowd displaces its own members, however many ids or addresses of its network it uses.

Each step costs the same however many places there are, because sizes change by one.

Units:   counts.
Errors:  none.
Source:  max-min fairness; `net/os/address_groups.py` for the groups.
"""

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class _Group(Generic[T]):
    """The places of one group: its own, and those of the groups within."""

    __slots__ = ("_by_size", "_largest", "inner", "items", "size")

    def __init__(self) -> None:
        self.items: dict[T, None] = {}  # in the order in which they came
        self.inner: dict[str, _Group[T]] = {}
        self.size = 0
        self._by_size: dict[int, dict[str, None]] = {}  # the groups within
        self._largest = 0

    def largest(self) -> "_Group[T]":
        """The largest group within; of several, the one that has been so large the longest."""
        return self.inner[next(iter(self._by_size[self._largest]))]

    def grow(self, name: str, by: int) -> "_Group[T]":
        """Note that the group `name` within changes by 1 or -1; returns that group."""
        group = self.inner.get(name)
        if group is None:
            group = self.inner[name] = _Group()
        alike = self._by_size.get(group.size)
        if alike is not None:
            del alike[name]
            if not alike:
                del self._by_size[group.size]
        group.size += by
        if group.size:
            self._by_size.setdefault(group.size, {})[name] = None
        else:
            del self.inner[name]
        if group.size > self._largest or self._largest not in self._by_size:
            self._largest = group.size
        return group


class FairPlaces(Generic[T]):
    """Who holds a place, by group."""

    def __init__(self) -> None:
        self._all: _Group[T] = _Group()
        self._groups: dict[T, tuple[str, ...]] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, item: T) -> bool:
        return item in self._groups

    def add(self, item: T, groups: tuple[str, ...]) -> None:
        """Give `item` a place; `groups`: those that it belongs to, the widest first."""
        self._groups[item] = groups
        group = self._all
        for name in groups:
            group = group.grow(name, 1)
        group.items[item] = None

    def remove(self, item: T) -> None:
        """Free the place of `item`, if it has one."""
        groups = self._groups.pop(item, ())
        group = self._all
        for name in groups:
            group = group.grow(name, -1)
        group.items.pop(item, None)

    def next_to_go(self) -> Iterator[T]:
        """The places of the largest group, the oldest first."""
        group = self._all
        while group.inner:
            group = group.largest()
        return iter(group.items)
