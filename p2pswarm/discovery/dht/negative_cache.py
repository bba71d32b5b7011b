"""NegativeCache: the keys that were recently not found, so that they are not looked up again.

Units:   seconds on the caller's monotonic clock.
Errors:  none.
"""


class NegativeCache:
    """At most `misses_max` keys, each for `keep_s`."""

    def __init__(self, misses_max: int, keep_s: float) -> None:
        self._misses_max = misses_max
        self._keep_s = keep_s
        self._until_s: dict[bytes, float] = {}

    def add(self, key: bytes, now_s: float) -> None:
        """Note that a key was not found; if the cache is full, the oldest key is dropped."""
        self.forget(key)  # so that the key becomes the newest of the dict
        self._until_s[key] = now_s + self._keep_s
        if len(self._until_s) > self._misses_max:
            del self._until_s[next(iter(self._until_s))]

    def forget(self, key: bytes) -> None:
        """Forget a key, because it is there or may be."""
        self._until_s.pop(key, None)

    def holds(self, key: bytes, now_s: float) -> bool:
        """Whether a key was recently not found."""
        return self._until_s.get(key, now_s) > now_s
