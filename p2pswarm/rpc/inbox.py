"""What came on a stream and was not read yet, in order, and then how the stream ended.

Errors:  `take` raises what the stream ended with.
"""

from collections import deque
from typing import Any

from p2pswarm.errors import (
    SwarmError,
)


class Inbox:
    """What came on a stream and nobody has taken yet, in order; then how it ended."""

    __slots__ = ("_items", "error", "over")

    def __init__(self) -> None:
        self._items: deque[Any] = deque()
        self.over = False
        self.error: SwarmError | None = None

    def put(self, item: object) -> None:
        """Something came."""
        self._items.append(item)

    def finish(self, error: SwarmError | None) -> None:
        """Nothing more will come; the first reason stands."""
        if not self.over:
            self.over = True
            self.error = error

    def clear(self) -> list[Any]:
        """Take everything that waits: nobody will read it."""
        items = list(self._items)
        self._items.clear()
        return items

    @property
    def ready(self) -> bool:
        """Whether `take` has something to say."""
        return bool(self._items) or self.over

    def take(self) -> Any:
        """The oldest item, or None when all is taken and the other side has finished well."""
        if self._items:
            return self._items.popleft()
        if self.error is not None:
            raise self.error
        assert self.over
        return None
