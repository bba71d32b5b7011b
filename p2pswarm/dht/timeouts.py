"""How long to wait for a peer: round trips and failures, learnt from every call.

Two times for each call. At the *deadline* we stop waiting. Long before, at the
*hedge*, when nine of ten answers would have come, another peer is asked as well:
a dead contact then costs one slow round trip, not a timeout. Waiting for all answers
is what makes lookups take 5 s instead of 250 ms.

Units:   seconds.
Source:  RFC 6298, section 2 (srtt, rttvar, gains 1/8 and 1/4); Dean and Barroso, "The Tail
         at Scale" (2013), for hedged requests.
"""

from collections import deque

from p2pswarm.dht.config import DhtConfig
from p2pswarm.flow.estimates import RoundTrip, Window

PEERS_MAX = 4096  # round trips remembered; the oldest goes first
SAMPLES = 128  # first answers, of which a high quantile is taken
OUTCOMES = 64  # calls of which the share of failures is taken
OUTCOMES_LEAST = 16  # before that the share means nothing
HEDGE_QUANTILE = 0.9
HEDGE_FIRST_S = 0.25  # before the first sample: an intercontinental round trip
HEDGE_LEAST_S = 0.025  # a busy processor may stall an answer that long; asking more stalls it more
HEDGE_DEVIATIONS = 2.0  # mean deviations above the mean: about nine of ten normal round trips


class TimeoutEstimator:
    """Deadlines, hedges and the width of a lookup."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._trips: dict[bytes, RoundTrip] = {}
        self._firsts = Window(SAMPLES)
        self._first_hedge_s = HEDGE_FIRST_S
        self._failures: deque[bool] = deque(maxlen=OUTCOMES)
        self._failed = 0

    def answered(self, raw: bytes, rtt_s: float | None) -> None:
        """Note that a peer answered after `rtt_s`; None if that was no plain round trip."""
        self._note(failed=False)
        if rtt_s is None:
            return
        trip = self._trips.get(raw)
        if trip is None:
            config = self._config
            trip = RoundTrip(
                config.deadline_dial_s, config.deadline_least_s, config.deadline_dial_s
            )
            self._trips[raw] = trip
            if len(self._trips) > PEERS_MAX:
                del self._trips[next(iter(self._trips))]
            self._firsts.add(rtt_s)
            self._first_hedge_s = self._firsts.quantile(HEDGE_QUANTILE) or 0.0
        trip.sample(rtt_s)

    def failed(self) -> None:
        """Note that a call was not answered in time, or its link failed."""
        self._note(failed=True)

    def _note(self, *, failed: bool) -> None:
        if len(self._failures) == OUTCOMES:
            self._failed -= self._failures[0]
        self._failures.append(failed)
        self._failed += failed

    @property
    def failure_share(self) -> float:
        """Of the recent calls; 0 until enough are known."""
        count = len(self._failures)
        return self._failed / count if count >= OUTCOMES_LEAST else 0.0

    @property
    def alpha(self) -> int:
        """How many prompt requests a lookup may have under way now."""
        lossy = self.failure_share > self._config.lossy_share
        return self._config.alpha_lossy if lossy else self._config.alpha

    def expected_s(self, raw: bytes) -> float:
        """The peer's smoothed round trip; that of a slow peer if it never answered us."""
        trip = self._trips.get(raw)
        return self._first_hedge_s if trip is None or trip.srtt_s is None else trip.srtt_s

    def deadline_s(self, raw: bytes) -> float:
        """How long to wait for an answer."""
        trip = self._trips.get(raw)
        if trip is None:
            return self._config.deadline_dial_s
        return min(self._config.deadline_most_s, trip.deadline_s)

    def hedge_s(self, raw: bytes) -> float:
        """How long to wait before another peer is asked as well."""
        trip = self._trips.get(raw)
        if trip is None or trip.srtt_s is None:
            return max(HEDGE_LEAST_S, self._first_hedge_s)
        return max(HEDGE_LEAST_S, trip.srtt_s + HEDGE_DEVIATIONS * trip.rttvar_s)
