"""TokenBucket: how often something may be done, on average, and how much of it at once.

Source:  the generic cell rate algorithm, ITU-T I.371 (2004), annex A: a token bucket in one number.
"""

import math


class TokenBucket:
    """The uses that are left of one thing.

    Each use pays for a time that has to pass. Uses may be paid ahead of the clock by a burst, and
    no more, so in any time T there are at most `burst + T / every_s`.
    """

    __slots__ = ("_burst", "_every_s", "_paid_until_s")

    def __init__(self, every_s: float, burst: int) -> None:
        """One use each `every_s` on average, and up to `burst` at once."""
        self._every_s = every_s
        self._burst = burst
        self._paid_until_s = float("-inf")

    def left(self, now_s: float, uses: int = 1) -> bool:
        """Return whether there are so many uses left now."""
        return now_s >= self.next_s(uses)

    def take(self, now_s: float, uses: int = 1) -> bool:
        """Use it so many times if so many uses are left; return whether they were."""
        if not self.left(now_s, uses):
            return False
        self._paid_until_s = max(self._paid_until_s, now_s) + uses * self._every_s
        return True

    def next_s(self, uses: int = 1) -> float:
        """The time from which so many uses are left; it may be past. More than a burst: never."""
        if uses > self._burst:
            return math.inf
        return self._paid_until_s - (self._burst - uses) * self._every_s
