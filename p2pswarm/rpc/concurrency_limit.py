"""ConcurrencyLimit: how many handlers may run at once, for each peer and in all.

Units:   counts of handlers.
Errors:  Busy where one more handler would exceed a limit.
"""

from dataclasses import dataclass

from p2pswarm.errors import Busy
from p2pswarm.ids import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLimits:
    """The most handlers that may run at once; calls and streams are counted separately."""

    per_peer: int = 256
    """Handlers for one peer: enough for a window of microbatches and its DHT calls."""
    total: int = 4096
    """Handlers for all peers: a task and its buffers take about 10 KiB."""


class ConcurrencyLimit:
    """How many handlers run, for each peer and in all."""

    def __init__(self, limits: HandlerLimits) -> None:
        self._limits = limits
        self._running: dict[PeerId, int] = {}
        self.count = 0

    def enter(self, peer: PeerId) -> None:
        """Count a handler that starts for `peer`; raises Busy if a limit is reached."""
        mine = self._running.get(peer, 0)
        if mine >= self._limits.per_peer or self.count >= self._limits.total:
            raise Busy(f"{mine} calls of yours and {self.count} in all are under way")
        self._running[peer] = mine + 1
        self.count += 1

    def leave(self, peer: PeerId) -> None:
        """Count a handler of `peer` that has ended."""
        mine = self._running[peer] - 1
        self.count -= 1
        if mine:
            self._running[peer] = mine
        else:
            del self._running[peer]
