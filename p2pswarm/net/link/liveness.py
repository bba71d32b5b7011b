"""Liveness: pings, what their answers prove, and what silence means.

Records come in order, so the answer to a ping proves that the peer has every record that was
sealed before the ping. No other acknowledgement exists: calls cost nothing more than before.

Silent periods are counted, not seconds: a stall of our own loop is not the peer's. A link in use
is watched more closely (`path_watch.py`).

Units:   `now_s` seconds on the caller's monotonic clock.
Errors:  BadFrame if a peer that speaks answers no ping.
Source:  docs/paths.md; RFC 6298 for the round trip.
"""

import struct
from collections import deque
from enum import Enum, auto

from p2pswarm.base.errors import BadFrame
from p2pswarm.base.estimates import RoundTrip
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.link.path_watch import PathWatch, PathWatchNews, answer_s

PINGS_MAX = 1024  # unanswered: an hour and a half of idle ones, or 512 MiB without a word
_PING = struct.Struct(">d")


class LinkSilence(Enum):
    """What the silence of a peer means."""

    NONE = auto()
    ASK = auto()
    """The peer is to be pinged."""
    DOUBT = auto()
    """A path in use may be dead: another one should be tried; the peer was pinged already."""
    PATH = auto()
    """The path may be dead: another one should be tried, and the peer is to be pinged."""
    LINK = auto()
    """The link is over."""


class Liveness:
    """When one side of a link pings, and what it has heard."""

    __slots__ = ("_config", "_pings", "_round_trip", "heard", "ping_at_s", "silent_s", "watch")

    def __init__(self, config: TransportConfig) -> None:
        self._config = config
        self._pings: deque[tuple[bytes, int]] = deque()
        self._round_trip = RoundTrip()
        self.heard = True
        """Set it when anything came."""
        self.silent_s = 0.0
        self.ping_at_s: float | None = None
        """When a period is over."""
        self.watch = PathWatch()
        """What looks closer at a link in use."""

    @property
    def rtt_s(self) -> float:
        """The smoothed round trip; 0 before the first ping has come back."""
        return self._round_trip.srtt_s or 0.0

    @property
    def repair_s(self) -> float:
        """How long TCP may need to repair three losses in a row on this path."""
        return answer_s(self.rtt_s, self._round_trip.rttvar_s)

    def ping(self, upto: int, now_s: float) -> bytes:
        """The payload of a new ping; its answer proves that the records before `upto` came."""
        if len(self._pings) >= PINGS_MAX:
            raise BadFrame(f"{PINGS_MAX} pings were not answered")
        payload = _PING.pack(now_s)
        self._pings.append((payload, upto))
        self.ping_at_s = now_s + self._config.idle_ping_s
        return payload

    def ponged(self, payload: bytes, now_s: float) -> int:
        """The number of the first record that this answer says nothing of; 0 if it is no answer."""
        if not self._pings or self._pings[0][0] != payload:
            return 0
        upto = self._pings.popleft()[1]
        sample_s = now_s - _PING.unpack(payload)[0]
        if 0.0 <= sample_s <= self._config.dead_after_s:  # else a path was lost in between
            self._round_trip.sample(sample_s)
        return upto

    def doubts(self, records: int) -> bool:
        """Whether the path may be dead, and nothing came since; `records`: how many came so far."""
        silent = self.silent_s >= self._config.path_silent_s and not self.heard
        return silent or self.watch.doubts(records)

    def on_time(self, records: int, now_s: float, *, in_use: bool) -> LinkSilence:
        """Do what is due now, if anything; `records`: how many came so far."""
        if self.ping_at_s is not None and now_s >= self.ping_at_s:
            return self._on_period()
        if self.watch.at_s is None or now_s < self.watch.at_s:
            return LinkSilence.NONE
        match self.watch.tick(records, self.repair_s, now_s, in_use=in_use):
            case PathWatchNews.ASK:
                return LinkSilence.ASK
            case PathWatchNews.DOUBT:
                return LinkSilence.DOUBT
        return LinkSilence.NONE

    def _on_period(self) -> LinkSilence:
        """Count a period without a word, if it was one."""
        self.silent_s = 0.0 if self.heard else self.silent_s + self._config.idle_ping_s
        self.heard = False
        if self.silent_s >= self._config.dead_after_s:
            return LinkSilence.LINK
        return LinkSilence.PATH if self.silent_s >= self._config.path_silent_s else LinkSilence.ASK
