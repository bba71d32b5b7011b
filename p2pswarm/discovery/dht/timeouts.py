"""TimeoutEstimator: how long to wait for a peer, learnt from the outcome of every call.

Each call has two times. At the *deadline* we stop waiting. At the *hedge*, long before,
nine of ten answers would have come, and another peer is asked as well. So a dead contact
costs one slow round trip, not a timeout. A lookup that waited for every answer would take
5 s instead of 250 ms.

Units:   seconds.
Errors:  none.
Source:  RFC 6298, section 2 (srtt, rttvar, gains 1/8 and 1/4); Dean and Barroso, "The Tail
         at Scale" (2013), for hedged requests.
"""

from collections import deque

from p2pswarm.base.estimates import RoundTrip, Window
from p2pswarm.discovery.dht.config import DhtConfig

PEERS_MAX = 4096  # peers whose round trips are remembered; the oldest is forgotten first
SAMPLES = 128  # first answers of peers, for the quantile below
OUTCOMES = 64  # recent calls, for the share of failures
OUTCOMES_LEAST = 16  # with fewer calls the share means nothing
HEDGE_QUANTILE = 0.9
HEDGE_FIRST_S = 0.25  # before the first sample: an intercontinental round trip
HEDGE_LEAST_S = 0.025  # a busy processor delays an answer this long; more requests delay it more
HEDGE_DEVIATIONS = 2.0  # mean deviations above the mean: about nine of ten normal round trips


class TimeoutEstimator:
    """Deadlines, hedges, and how many requests a lookup has under way."""

    def __init__(self, config: DhtConfig) -> None:
        self._config = config
        self._trips: dict[bytes, RoundTrip] = {}
        self._firsts = Window(SAMPLES)
        self._first_hedge_s = HEDGE_FIRST_S
        self._failures: deque[bool] = deque(maxlen=OUTCOMES)
        self._failed = 0

    def answered(self, raw: bytes, rtt_s: float | None) -> None:
        """Note that a peer answered after `rtt_s`, None if that was not a round trip."""
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
        """The share of recent calls that failed; 0 until OUTCOMES_LEAST are known."""
        count = len(self._failures)
        return self._failed / count if count >= OUTCOMES_LEAST else 0.0

    @property
    def alpha(self) -> int:
        """How many requests that are not late a lookup may have under way."""
        lossy = self.failure_share > self._config.lossy_share
        return self._config.alpha_lossy if lossy else self._config.alpha

    def expected_s(self, raw: bytes) -> float:
        """The peer's smoothed round trip; a slow one if the peer never answered us."""
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
