"""How much may be done now, and when the rest.

A bucket fills at a steady rate up to a burst; what is done is taken out of it. It
waits for nothing: it answers, and the caller decides.

Units:   amounts in whatever the rate counts (bytes, calls), `now_s` seconds on the
         caller's monotonic clock.
Errors:  ValueError when we are misused.
Source:  Shenker and Wroclawski, RFC 2215, 3.6 (TOKEN_BUCKET_TSPEC).
"""


class TokenBucket:
    """At most `burst` at once and `rate_per_s` in the long run; full at the start."""

    __slots__ = ("_burst", "_filled_s", "_level", "_rate_per_s")

    def __init__(self, rate_per_s: float, burst: float, now_s: float) -> None:
        if rate_per_s <= 0 or burst <= 0:
            raise ValueError(f"a rate of {rate_per_s}/s and a burst of {burst} let nothing pass")
        self._rate_per_s = rate_per_s
        self._burst = burst
        self._level = burst
        self._filled_s = now_s

    def available(self, now_s: float) -> float:
        """How much may be taken now."""
        passed_s = max(0.0, now_s - self._filled_s)
        return min(self._burst, self._level + passed_s * self._rate_per_s)

    def take(self, amount: float, now_s: float) -> bool:
        """Take `amount` if all of it is there."""
        self._check(amount)
        level = self.available(now_s)
        if amount > level:
            return False
        self._level = level - amount
        self._filled_s = max(self._filled_s, now_s)
        return True

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until `amount` is there, if nobody takes anything meanwhile."""
        self._check(amount)
        return max(0.0, (amount - self.available(now_s)) / self._rate_per_s)

    def _check(self, amount: float) -> None:
        if not 0 <= amount <= self._burst:
            raise ValueError(f"{amount} will never be there: the bucket holds {self._burst}")
