"""ConnectionSlots: which connections to the page are kept, before they have shown a token.

A connection that says nothing holds a slot for some seconds, and loses it earlier to one that comes
after it. So a thousand half-open ones keep nobody out.

Units:   `now_s` seconds on the caller's clock.
"""

from typing import Generic, TypeVar

SLOTS = 64  # 16 viewers with a stream and what loads beside it, twice over
SPEAKS_WITHIN_S = 5.0  # a browser sends its request at once

K = TypeVar("K")


class ConnectionSlots(Generic[K]):
    """The connections that are open, by a key of the caller's."""

    def __init__(self) -> None:
        self._silent: dict[K, float] = {}
        """Those that have shown no token, and when they came; the oldest first."""
        self._known: set[K] = set()

    def on_open(self, key: K, now_s: float) -> list[K]:
        """Take a connection; return those to close for it, or itself if there is no slot."""
        if len(self._silent) + len(self._known) < SLOTS:
            self._silent[key] = now_s
            return []
        if not self._silent:
            return [key]
        oldest = next(iter(self._silent))
        del self._silent[oldest]
        self._silent[key] = now_s
        return [oldest]

    def on_pass(self, key: K) -> None:
        """Keep a connection: a request on it had the token."""
        if self._silent.pop(key, None) is not None:
            self._known.add(key)

    def on_close(self, key: K) -> None:
        """Give its slot to others."""
        self._silent.pop(key, None)
        self._known.discard(key)

    def late(self, now_s: float) -> list[K]:
        """Return those that are to be closed, since they have said nothing for too long."""
        late = [key for key, came_s in self._silent.items() if now_s >= came_s + SPEAKS_WITHIN_S]
        for key in late:
            del self._silent[key]
        return late

    @property
    def count(self) -> int:
        """How many are open."""
        return len(self._silent) + len(self._known)
