"""When to try again: exponential backoff with jitter.

Delays double up to a ceiling, and each is drawn at random from its upper half ("equal jitter"),
so that a thousand peers that lost the same server do not come back together.

Units:   seconds.
Errors:  ValueError when we are misused.
Source:  Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).
"""

from dataclasses import dataclass
from random import Random

DOUBLINGS_MAX = 32  # 2^32 times any delay is over any ceiling; keeps the power small


@dataclass(frozen=True, slots=True)
class Backoff:
    """The schedule of one kind of retry."""

    first_s: float
    """Upper end of the first delay."""
    most_s: float
    """Upper end of every delay."""
    tries_max: int
    """How many retries before giving up."""

    def __post_init__(self) -> None:
        if not 0 < self.first_s <= self.most_s or self.tries_max < 0:
            raise ValueError(f"{self} is no schedule")

    def delay_s(self, tried: int, rng: Random) -> float | None:
        """How long to wait after `tried` retries have failed; None to give up.

        At least half of the doubled value, so that a busy peer does get a pause.
        """
        if tried < 0:
            raise ValueError(f"{tried} retries")
        if tried >= self.tries_max:
            return None
        ceiling_s = min(self.most_s, self.first_s * 2 ** min(tried, DOUBLINGS_MAX))
        return rng.uniform(ceiling_s / 2, ceiling_s)
