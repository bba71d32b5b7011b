"""PathWatch: whether what is sent on the present path of a link still reaches the peer.

A firewall that begins to drop, a router that has forgotten a connection, a relay that swallows
bytes: none of them says so. While streams are open or tensors are under way, the watch looks twice
a second whether any record came. If none did, it has the peer asked (a PING); if nothing comes
within the time in which TCP repairs three losses in a row, the path is doubted, and other ways are
tried beside it. Any record lifts the doubt. On a link that is at rest nothing is watched.

A tick that comes late proves nothing: our own process stood still, and what came meanwhile may not
have been read yet.

Units:   `now_s` seconds on the caller's monotonic clock; records are counted from 0.
Errors:  none.
Source:  docs/paths.md; RFC 6298 sections 2 and 5.5 for the retransmission timer.
"""

from enum import Enum, auto

TICK_S = 0.5  # between two looks: two pings in a second are the most that a link in use costs
REPAIRS = 1 + 2 + 4  # timers of TCP until a segment that was lost three times is sent once more
TIMER_S_MIN = 0.2  # Linux's least retransmission timeout beyond the round trip
ANSWER_S_MAX = 8.0  # a round trip is never believed to be so long that a dead path hides for more
LATE_S = 0.25  # a tick that comes so much later than it was due


class PathWatchNews(Enum):
    """What a look at the path showed."""

    NOTHING = auto()
    ASK = auto()
    """The peer is to be pinged."""
    DOUBT = auto()
    """The path may be dead: other ways should be tried."""


def answer_s(srtt_s: float, rttvar_s: float) -> float:
    """How long a ping may go unanswered although three transmissions of it were lost.

    The deviation of pings has such repairs in it already, as TCP's own has not.
    """
    repaired_s = REPAIRS * (srtt_s + TIMER_S_MIN)
    return min(max(repaired_s, srtt_s + 4 * rttvar_s), ANSWER_S_MAX)


class PathWatch:
    """The watch of one link, over one path after another."""

    __slots__ = ("_asked_s", "_heard", "_patience_s", "_since", "at_s", "doubted")

    def __init__(self) -> None:
        self.at_s: float | None = None
        """When `tick` is due; None while nothing is under way."""
        self.doubted = False
        """Whether the path is doubted; ask `doubts`, which knows what came since."""
        self._heard = 0  # records that had come at the last tick
        self._asked_s: float | None = None  # since when the peer has owed an answer
        self._patience_s = 0.0  # from the question to the next doubt

    def begin(self, heard: int, now_s: float) -> None:
        """Watch from now on, unless it is being done; changes `at_s`. `heard`: records so far."""
        if self.at_s is None:
            self._heard, self.at_s = heard, now_s + TICK_S

    def stop(self) -> None:
        """Forget what is known of the path: it is gone, or another carries the link."""
        self.at_s, self.doubted, self._asked_s = None, False, None

    def doubts(self, heard: int) -> bool:
        """Whether the path is doubted and no record has come since; `heard`: records so far."""
        return self.doubted and heard == self._heard

    def tick(self, heard: int, timer_s: float, now_s: float, *, in_use: bool) -> PathWatchNews:
        """Look at the path; changes `at_s`.

        `heard`: records so far. `timer_s`: what `answer_s` says. `in_use`: streams are open, or
        tensors are under way.
        """
        assert self.at_s is not None, "nothing is watched"
        late = now_s - self.at_s > LATE_S
        self.at_s = now_s + TICK_S
        if heard != self._heard:
            self._heard, self._asked_s, self.doubted = heard, None, False
            if not in_use:
                self.at_s = None
            return PathWatchNews.NOTHING
        if self._asked_s is None:
            if not in_use:
                self.at_s = None
                return PathWatchNews.NOTHING
            self._asked_s, self._patience_s = now_s, timer_s
            self.at_s = now_s + min(TICK_S, timer_s)
            return PathWatchNews.ASK
        if late:
            self._asked_s += TICK_S  # the answer may be waiting to be read
            return PathWatchNews.NOTHING
        left_s = self._asked_s + self._patience_s - now_s
        if left_s > 0.0:
            self.at_s = now_s + min(TICK_S, left_s)
            return PathWatchNews.NOTHING
        self.doubted = True
        self._patience_s = 2 * (now_s - self._asked_s)  # should the search for a way end, again
        return PathWatchNews.DOUBT
