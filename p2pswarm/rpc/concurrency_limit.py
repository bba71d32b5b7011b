"""ConcurrencyLimit: how many handlers may run at once, for each peer and in all.

Errors:  Busy where there is no room for one more.
"""

from dataclasses import dataclass

from p2pswarm.errors import Busy
from p2pswarm.ids import PeerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLimits:
    """How much peers may ask of us at once; calls and streams are counted apart."""

    per_peer: int = 256
    """Handlers at work for one peer: a window of microbatches and its share of the DHT."""
    total: int = 4096
    """The same for all peers: a task and its buffers are ~10 KiB."""


class ConcurrencyLimit:
    """How many handlers run, for each peer and in all."""

    def __init__(self, limits: HandlerLimits) -> None:
        self._limits = limits
        self._running: dict[PeerId, int] = {}
        self.count = 0

    def enter(self, peer: PeerId) -> None:
        """Count one more in; raises Busy where there is no room."""
        mine = self._running.get(peer, 0)
        if mine >= self._limits.per_peer or self.count >= self._limits.total:
            raise Busy(f"{mine} calls of yours and {self.count} in all are under way")
        self._running[peer] = mine + 1
        self.count += 1

    def leave(self, peer: PeerId) -> None:
        """One of `peer` is done."""
        mine = self._running[peer] - 1
        self.count -= 1
        if mine:
            self._running[peer] = mine
        else:
            del self._running[peer]
