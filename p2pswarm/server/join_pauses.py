"""JoinPauses: how long a server that is out of the run waits before it asks a trainer again.

Not at all where it loses nothing by asking at once: another trainer has not been asked yet, or the
session was a good one and another trainer may lead by now. Else a little, and twice as long each
time, so that a trainer which throws it out again and again is not hammered. A trainer that has been
gone for long is looked for seldom, and for ever.

Units:   seconds on the caller's clock.
Errors:  none.
"""

REJOIN_FIRST_S, REJOIN_MAX_S = 0.25, 2.0
ELECTION_S = 5.0  # after a coordinator of several is lost, another leads by then: ask often
SEEK_S = 10.0  # between two tries once the trainer has been gone for `rejoin_s`
KNOCK_FIRST_S = 1.0  # a first try may have gone into a cut that is over by then; round the world 3x
KNOCK_S = 2.0  # to dial a trainer while there is another one to ask
DIAL_S = 5.0  # as long as a dial may take by itself
STEADY_S = 10.0  # a session this long was a good one: the pauses start small again


class JoinPauses:
    """The tries of one server, and when it was in the run."""

    def __init__(self, rejoin_s: float, now_s: float) -> None:
        """`rejoin_s`: how long to look for a trainer quickly."""
        self._rejoin_s = rejoin_s
        self._pause_s = REJOIN_FIRST_S
        self.tried_s = now_s
        """When a trainer was asked last."""
        self._seen_s = now_s
        self._knock_s = DIAL_S
        """How long the next try may take to reach a trainer."""

    def tries(self, now_s: float) -> None:
        """A trainer is asked."""
        self.tried_s = now_s

    def in_run(self, now_s: float) -> None:
        """The server was in the run until now."""
        self._seen_s, self._knock_s = now_s, KNOCK_FIRST_S

    def knock_s(self, *, others: bool) -> float | None:
        """How long the next try may take to reach a trainer; None: as long as a dial takes.

        Whoever was just in the run tries anew soon: the kernel asks less and less often, and what
        it is in the run for waits. `others`: there are other trainers to ask.
        """
        knock_s, self._knock_s = self._knock_s, min(2 * self._knock_s, DIAL_S)
        if others:
            return min(knock_s, KNOCK_S)
        return knock_s if knock_s < DIAL_S else None

    def gone_s(self, now_s: float) -> float:
        """How long it has been out of the run."""
        return now_s - self._seen_s

    def gone(self, now_s: float) -> bool:
        """Whether that is so long that the trainer is looked for less often."""
        return self.gone_s(now_s) >= self._rejoin_s

    def steady(self, now_s: float) -> bool:
        """Whether the session that ends now was a good one."""
        return now_s - self.tried_s > STEADY_S

    def next_s(self, now_s: float, *, met: bool, several: bool, elsewhere: bool) -> float:
        """How long to wait after a try, or a session, that has failed; 0: ask at once.

        `met`: it was a session. `several`: more than one trainer is known. `elsewhere`: it is known
        whom to ask next, and that one was not asked yet.
        """
        steady = self.steady(now_s)
        if steady:
            self._pause_s = REJOIN_FIRST_S
        if elsewhere or (met and several and steady):
            return 0.0
        if self.gone(now_s):
            return SEEK_S
        if several and not met and self.gone_s(now_s) < ELECTION_S:
            return REJOIN_FIRST_S
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, REJOIN_MAX_S)
        return pause_s
