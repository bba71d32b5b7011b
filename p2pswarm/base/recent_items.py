"""RecentItems: a dictionary of the newest items, for what strangers may name without end."""

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RecentItems(dict[K, V]):
    """A dictionary whose oldest item makes way for one too many; an item that is set is the newest.

    Only `[key] = value` keeps the bound.
    """

    def __init__(self, items_max: int) -> None:
        super().__init__()
        self._items_max = items_max

    def __setitem__(self, key: K, value: V) -> None:
        self.pop(key, None)
        super().__setitem__(key, value)
        if len(self) > self._items_max:
            del self[next(iter(self))]
