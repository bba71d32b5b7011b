"""Servers that fail again and again: counted in a row, and given a pause that grows.

One failure proves nothing: a peer restarts, a link is dialled again. A server that fails several
times with no success between is the likeliest cause, and failing fast it looks fast to routers and
attracts work. It gets none for a while. The pause doubles with each relapse, and a server that
works well for long enough begins anew.

Units:   seconds on the caller's clock; peers by their 32-byte id.
Errors:  none.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from p2pswarm.run.messages.types import MEMBERS_MAX

IN_A_ROW = 3  # failures with no success between; then a server is avoided
SAME_TROUBLE_S = 0.5  # failures closer than this are one: a server has several microbatches in hand
PAUSE_FIRST_S = 10.0
PAUSE_MAX_S = 600.0
RECOVERED = 32  # successes in a row after which a former pause does not count any more


class Duty(Enum):
    """What a server may fail at; good work at one says nothing about the other."""

    MICROBATCHES = "to compute and hand on microbatches"
    AVERAGING = "to average its sum with the others of its stage"


@dataclass(slots=True)
class _History:
    """What one server did lately."""

    failures: dict[Duty, int] = field(default_factory=dict)
    """In a row."""
    failed_s: dict[Duty, float] = field(default_factory=dict)
    successes: int = 0
    pauses: int = 0
    until_s: float = float("-inf")


class FailingServers:
    """The failures of every server, whichever incarnation it is in."""

    def __init__(self, peers_max: int = MEMBERS_MAX) -> None:
        self._max = peers_max
        self._histories: dict[bytes, _History] = {}

    def failed(self, peer: bytes, duty: Duty, now_s: float) -> int:
        """A server may have caused a failure; returns how often it did in a row."""
        history = self._histories.setdefault(peer, _History())
        if len(self._histories) > self._max:
            del self._histories[next(iter(self._histories))]  # the one that we know the longest
        if now_s >= history.failed_s.get(duty, float("-inf")) + SAME_TROUBLE_S:
            history.failed_s[duty] = now_s
            history.failures[duty] = history.failures.get(duty, 0) + 1
        history.successes = 0
        return history.failures[duty]

    def worked(self, peer: bytes, duty: Duty) -> None:
        """A server has done what it is there for."""
        history = self._histories.get(peer)
        if history is None:
            return
        history.failures.pop(duty, None)
        history.failed_s.pop(duty, None)
        history.successes += 1
        if history.successes >= RECOVERED and not history.failures:
            del self._histories[peer]

    def forget(self, peers: Iterable[bytes]) -> None:
        """Drop the suspicion against peers: another one was at fault."""
        for peer in peers:
            if found := self._histories.get(peer):
                found.failures, found.failed_s = {}, {}

    def avoid(self, peer: bytes, now_s: float) -> float:
        """Give a server a pause, and return it."""
        history = self._histories.setdefault(peer, _History())
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0**history.pauses)
        if pause_s < PAUSE_MAX_S:
            history.pauses += 1
        history.until_s = now_s + pause_s
        self.forget((peer,))
        return pause_s

    def avoided(self, peer: bytes, now_s: float) -> bool:
        """Whether a server is to get no work now, if another can do it."""
        history = self._histories.get(peer)
        return history is not None and now_s < history.until_s

    def next_deadline_s(self, now_s: float) -> float | None:
        """When the next pause ends."""
        ends_s = (history.until_s for history in self._histories.values())
        return min((end_s for end_s in ends_s if end_s > now_s), default=None)
