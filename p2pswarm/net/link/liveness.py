"""Liveness: pings, what their answers prove, and what silence means.

Errors:  BadFrame if a peer that speaks answers no ping.
Source:  docs/paths.md; RFC 6298 for the round trip.
"""

import struct
from collections import deque
from enum import Enum, auto

from p2pswarm.base.errors import BadFrame
from p2pswarm.base.estimates import RoundTrip
from p2pswarm.net.config import TransportConfig

TICK_S = 0.5  # between two looks: two pings in a second are the most that a link in use costs
REPAIRS = 1 + 2 + 4  # timers of TCP until a segment that was lost three times is sent once more
TIMER_S_MIN = 0.2  # Linux's least retransmission timeout beyond the round trip
ANSWER_S_MAX = 8.0  # a round trip is never believed to be so long that a dead path hides for more
LATE_S = 0.25  # a tick that comes so much later than it was due


class LinkSilence(Enum):
    """The meaning of a peer's silence."""

    NONE = auto()
    ASK = auto()
    """The peer is to be pinged."""
    DOUBT = auto()
    """A path in use may be dead: another one should be tried; the peer was pinged already."""
    PATH = auto()
    """The path may be dead: another one should be tried, and the peer is to be pinged."""
    LINK = auto()
    """The link is over."""


def answer_s(srtt_s: float, rttvar_s: float) -> float:
    """Return how long a ping may go unanswered although three transmissions of it were lost.

    The deviation of pings has such repairs in it already, as TCP's own has not.
    """
    repaired_s = REPAIRS * (srtt_s + TIMER_S_MIN)
    return min(max(repaired_s, srtt_s + 4 * rttvar_s), ANSWER_S_MAX)


class PathWatch:
    """The watch of one link, over one path after another.

    A firewall that begins to drop, a router that has forgotten a connection, a relay that swallows
    bytes: none of them says so. While streams are open or tensors are under way, the watch looks
    twice a second whether any record came. If none did, it has the peer asked (a PING); if nothing
    comes within the time in which TCP repairs three losses in a row, the path is doubted, and other
    ways are tried beside it. Any record lifts the doubt. On a link that is at rest nothing is
    watched.

    A tick that comes late proves nothing: our own process stood still, and what came meanwhile may
    not have been read yet.
    """

    def __init__(self) -> None:
        self.at_s: float | None = None
        """The time of `on_deadline`; None while nothing is under way."""
        self.doubted = False
        """True if the path is doubted; ask `doubts`, which knows what came since."""
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
        """Return whether the path is doubted and brought nothing since; `heard`: records so far."""
        return self.doubted and heard == self._heard

    def on_deadline(self, heard: int, timer_s: float, now_s: float, *, in_use: bool) -> LinkSilence:
        """Look at the path; changes `at_s`.

        `heard`: records so far. `timer_s`: what `answer_s` says. `in_use`: streams are open, or
        tensors are under way.
        """
        assert self.at_s is not None, "nothing is watched"
        late = now_s - self.at_s > LATE_S
        self.at_s = now_s + TICK_S
        if heard != self._heard or (self._asked_s is None and not in_use):
            self._heard, self._asked_s, self.doubted = heard, None, False
            if not in_use:
                self.at_s = None
            return LinkSilence.NONE
        if self._asked_s is None:
            self._asked_s, self._patience_s = now_s, timer_s
            self.at_s = now_s + min(TICK_S, timer_s)
            return LinkSilence.ASK
        if late:
            self._asked_s += TICK_S  # the answer may be waiting to be read
            return LinkSilence.NONE
        left_s = self._asked_s + self._patience_s - now_s
        if left_s > 0.0:
            self.at_s = now_s + min(TICK_S, left_s)
            return LinkSilence.NONE
        self.doubted = True
        self._patience_s = 2 * (now_s - self._asked_s)  # should the search for a way end, again
        return LinkSilence.DOUBT


PINGS_MAX = 1024  # unanswered: an hour and a half of idle ones, or 512 MiB without a word
_PING = struct.Struct(">d")


class Liveness:
    """The pings of one side of a link, and what their answers show.

    Records come in order, so the answer to a ping proves that the peer has every record that was
    sealed before the ping. No other acknowledgement exists: calls cost nothing more than before.

    Silent periods are counted, not seconds: a stall of our own loop is not the peer's. A link in
    use is watched more closely (`PathWatch`).
    """

    def __init__(self, config: TransportConfig) -> None:
        self._config = config
        self._pings: deque[tuple[bytes, int]] = deque()
        self._round_trip = RoundTrip()
        self.heard = True
        """Set it when anything came."""
        self.silent_s = 0.0
        self.ping_at_s: float | None = None
        """The end of a period."""
        self.watch = PathWatch()
        """A closer look at a link in use."""

    @property
    def rtt_s(self) -> float:
        """The smoothed round trip; 0 before the first ping has come back."""
        return self._round_trip.srtt_s or 0.0

    @property
    def repair_s(self) -> float:
        """Return how long TCP may need to repair three losses in a row on this path."""
        return answer_s(self.rtt_s, self._round_trip.rttvar_s)

    def ping(self, upto: int, now_s: float) -> bytes:
        """The payload of a new ping; its answer proves that the records before `upto` came."""
        if len(self._pings) >= PINGS_MAX:
            raise BadFrame(f"{PINGS_MAX} pings were not answered")
        payload = _PING.pack(now_s)
        self._pings.append((payload, upto))
        self.ping_at_s = now_s + self._config.idle_ping_s
        return payload

    def on_pong(self, payload: bytes, now_s: float) -> int:
        """The number of the first record that this answer says nothing of; 0 if it is no answer."""
        if not self._pings or self._pings[0][0] != payload:
            return 0
        upto = self._pings.popleft()[1]
        sample_s = now_s - _PING.unpack(payload)[0]
        if 0.0 <= sample_s <= self._config.dead_after_s:  # else a path was lost in between
            self._round_trip.sample(sample_s)
        return upto

    def doubts(self, records: int) -> bool:
        """Return whether the path may be dead and brought nothing since; `records`: all so far."""
        silent = self.silent_s >= self._config.path_silent_s and not self.heard
        return silent or self.watch.doubts(records)

    def on_deadline(self, records: int, now_s: float, *, in_use: bool) -> LinkSilence:
        """Do what is due now, if anything; `records`: how many came so far."""
        if self.ping_at_s is not None and now_s >= self.ping_at_s:
            return self._on_period()
        if self.watch.at_s is None or now_s < self.watch.at_s:
            return LinkSilence.NONE
        return self.watch.on_deadline(records, self.repair_s, now_s, in_use=in_use)

    def _on_period(self) -> LinkSilence:
        """Count a period without a word, if it was one."""
        self.silent_s = 0.0 if self.heard else self.silent_s + self._config.idle_ping_s
        self.heard = False
        if self.silent_s >= self._config.dead_after_s:
            return LinkSilence.LINK
        return LinkSilence.PATH if self.silent_s >= self._config.path_silent_s else LinkSilence.ASK
