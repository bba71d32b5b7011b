"""Inbox: the frames of a stream that were not read yet, in order, and then its end.

Units:   none.
Errors:  `take` raises the error that the stream ended with.
"""

from collections import deque
from typing import Any

from p2pswarm.base.errors import SwarmError


class Inbox:
    """The items of a stream that nobody has taken yet, in order, and how the stream ended."""

    __slots__ = ("_items", "error", "over")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self.over = False
        self.error: SwarmError | None = None

    def put(self, item: object) -> None:
        """Add an item."""
        self._items.append(item)

    def finish(self, error: SwarmError | None) -> None:
        """Note that nothing more will come; only the first call counts."""
        if not self.over:
            self.over = True
            self.error = error

    def clear(self) -> list[Any]:
        """Remove and return every item, because nobody will read them."""
        items = list(self._items)
        self._items.clear()
        return items

    @property
    def ready(self) -> bool:
        """Whether `take` may be called."""
        return bool(self._items) or self.over

    def take(self) -> Any:
        """The oldest item, or None when there is none left and the other side has ended well."""
        if self._items:
            return self._items.popleft()
        if self.error is not None:
            raise self.error
        assert self.over
        return None
