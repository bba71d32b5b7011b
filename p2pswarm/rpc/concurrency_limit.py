"""How many handlers may run at once, for each peer and in all.

Errors:  Busy where there is no room for one more.
"""

from p2pswarm.errors import (
    Busy,
)
from p2pswarm.ids import PeerId


class ConcurrencyLimit:
    """How many handlers run, for each peer and in all."""

    def __init__(self, per_peer: int, total: int) -> None:
        self._per_peer = per_peer
        self._total = total
        self._running: dict[PeerId, int] = {}
        self.count = 0

    def enter(self, peer: PeerId) -> None:
        """Count one more in; raises Busy where there is no room."""
        mine = self._running.get(peer, 0)
        if mine >= self._per_peer or self.count >= self._total:
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
