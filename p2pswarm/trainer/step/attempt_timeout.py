"""How long an attempt of a microbatch may take: what the last ones took, and what was not enough.

An attempt may take four times the 95th percentile of those that finished, and twice the slowest of
them. Those that finish cannot teach that all have become slow, because all are given up before. So
an attempt that was late teaches too: the next may take twice as long as it was given, until one
finishes. A run is slowed by that and never stopped, until its servers need an hour for an attempt.

What is under way when others turn out late gets more time as well, but at most twice what it was
launched with. Else each of a window of attempts that are all lost would wait for the one before,
and double the time once more: sixteen of them would take 2^16 times as long.

Units:   seconds.
Errors:  none.
Source:  RFC 6298, section 5: a timer that expires is doubled until there is a new measurement.
"""

from p2pswarm.base.estimates import Window

TIMEOUT_FIRST_S = 120.0  # nothing is measured yet, and first passes are slow
TIMEOUT_MIN_S = 10.0  # below this a pause of the garbage collector or the kernel would count
USUAL_FACTOR = 4.0  # times the 95th percentile: one healthy attempt in thousands is fenced
USUAL_MAX_S = 600.0  # what the percentile may ask for; only slower attempts ask for more
SLOWEST_FACTOR = 2.0  # times the slowest: one that is known to finish is let finish again
BACKOFF = 2.0  # RFC 6298, 5.5
BACKOFF_MAX_S = 3600.0  # as for an averaging: who needs longer cannot be told from who lost it
MEASURED = 64  # attempts remembered


class AttemptTimeout:
    """The time that an attempt may take; kept from step to step."""

    def __init__(self) -> None:
        self._took_s = Window(MEASURED)
        self.usual_s = TIMEOUT_FIRST_S
        """The time by those that finished."""
        self._backed_off_s = 0.0

    @property
    def timeout_s(self) -> float:
        """How long an attempt that is launched now may be under way."""
        return max(self.usual_s, self._backed_off_s)

    def extended_s(self, given_s: float) -> float:
        """How long an attempt may be under way by now that was launched with `given_s`."""
        return max(self.usual_s, min(self._backed_off_s, BACKOFF * given_s))

    def finished(self, took_s: float) -> None:
        """An attempt was counted by every stage."""
        self._took_s.add(took_s)
        most_s, slowest_s = self._took_s.quantile(0.95), self._took_s.quantile(1.0)
        assert most_s is not None, "there is a sample now"
        assert slowest_s is not None, "there is a sample now"
        most_s = min(USUAL_MAX_S, USUAL_FACTOR * most_s)
        self.usual_s = max(TIMEOUT_MIN_S, most_s, SLOWEST_FACTOR * slowest_s)
        self._backed_off_s = 0.0

    def late(self, given_s: float) -> float:
        """An attempt did not finish in the time that it was given; what its next one is given.

        Many attempts that were given the same time, and are late together, teach the same.
        """
        next_s = min(BACKOFF_MAX_S, BACKOFF * given_s)
        self._backed_off_s = max(self._backed_off_s, next_s)
        return next_s
