"""Three estimates from measurements: a deadline of answers, a recent average, recent quantiles.

Units:   seconds for round trips; `Ema` and `Window` keep the unit of their samples.
Errors:  ValueError for impossible limits or samples.
Source:  RFC 6298 (round trips); Kingma and Ba, "Adam" (2015), section 3 (bias correction).
"""

import math
from bisect import bisect_left, insort
from collections import deque

ALPHA = 1 / 8  # RFC 6298, 2.3
BETA = 1 / 4  # RFC 6298, 2.3
K = 4  # deviations above the mean, RFC 6298, 2.2


class RoundTrip:
    """The smoothed round-trip time, its deviation, and the deadline that follows from both."""

    __slots__ = (
        "_deadline_max_s",
        "_deadline_min_s",
        "_initial_s",
        "rttvar_s",
        "srtt_s",
    )

    def __init__(
        self,
        initial_s: float = 1.0,
        deadline_min_s: float = 0.05,
        deadline_max_s: float = 60.0,
    ) -> None:
        """`initial_s`: the deadline before the first measurement."""
        if not 0 < deadline_min_s <= initial_s <= deadline_max_s:
            raise ValueError(f"{initial_s} s is not in {deadline_min_s}..{deadline_max_s} s")
        self._initial_s = initial_s
        self._deadline_min_s = deadline_min_s
        self._deadline_max_s = deadline_max_s
        self.srtt_s: float | None = None
        """None until the first sample."""
        self.rttvar_s = 0.0

    def sample(self, rtt_s: float) -> None:
        """Add a round trip of `rtt_s`, but none of a request that was sent twice (Karn)."""
        if not 0 <= rtt_s < math.inf:
            raise ValueError(f"a round trip of {rtt_s} s")
        if self.srtt_s is None:
            self.srtt_s = rtt_s
            self.rttvar_s = rtt_s / 2
            return
        self.rttvar_s += BETA * (abs(self.srtt_s - rtt_s) - self.rttvar_s)
        self.srtt_s += ALPHA * (rtt_s - self.srtt_s)

    @property
    def deadline_s(self) -> float:
        """Return how long to wait for an answer."""
        if self.srtt_s is None:
            return self._initial_s
        expected_s = max(self._deadline_min_s, self.srtt_s + K * self.rttvar_s)
        return min(self._deadline_max_s, expected_s)


class Ema:
    """An exponential moving average without bias towards zero at its start."""

    __slots__ = ("_sum", "_weight", "_weights")

    def __init__(self, weight: float) -> None:
        """`weight`: the share of the newest sample in the long run, in (0, 1]."""
        if not 0 < weight <= 1:
            raise ValueError(f"a weight lies in (0, 1], not {weight}")
        self._weight = weight
        self._sum = 0.0
        self._weights = 0.0

    def add(self, sample: float) -> None:
        """Add one measurement."""
        self._sum += self._weight * (sample - self._sum)
        self._weights += self._weight * (1 - self._weights)

    @property
    def value(self) -> float | None:
        """The average; None before the first sample."""
        # the sum starts at zero, so without the division the first averages would be too low
        return self._sum / self._weights if self._weights else None


class Window:
    """The last `size` samples, sorted, so that every quantile of them is exact.

    Sorted insertion into a few hundred floats costs less than a streaming estimate, and
    old samples are certainly forgotten.
    """

    __slots__ = ("_newest_last", "_size", "_sorted")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"a window holds 1 sample or more, not {size}")
        self._size = size
        self._newest_last: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, sample: float) -> None:
        """Add one measurement; a full window drops its oldest."""
        if not math.isfinite(sample):
            raise ValueError(f"a sample of {sample}")
        if len(self._newest_last) == self._size:
            oldest = self._newest_last.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._newest_last.append(sample)
        insort(self._sorted, sample)

    def quantile(self, share: float) -> float | None:
        """The value that `share` of the samples do not exceed; None without samples.

        Between two samples it is interpolated, as numpy does by default.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a share lies in 0..1, not {share}")
        if not self._sorted:
            return None
        position = share * (len(self._sorted) - 1)
        below = math.floor(position)
        above = math.ceil(position)
        low, high = self._sorted[below], self._sorted[above]
        return low + (high - low) * (position - below)
