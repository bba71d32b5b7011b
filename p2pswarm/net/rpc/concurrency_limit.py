"""ConcurrencyLimit: how many handlers may run at once: for a peer, for a network, and in all.

Ids are free, so a limit for each peer bounds nobody. One network may have as many handlers as are
free: alone it gets half of all, which is enough for a run behind one address, and each further one
that is greedy gets half of what the others leave.

Units:   counts of handlers.
Errors:  Busy where one more handler would exceed a limit.
Source:  Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches"
         (1998), with alpha 1.
"""

from dataclasses import dataclass
from typing import TypeVar

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import PeerId

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerLimits:
    """The most handlers that may run at once; calls and streams are counted separately."""

    per_peer: int = 256
    """Handlers for one peer: enough for a window of microbatches and its DHT calls."""
    total: int = 4096
    """Handlers for all peers: a task and its buffers take about 10 KiB."""


class ConcurrencyLimit:
    """How many handlers run, for each peer, for each network and in all."""

    def __init__(self, limits: HandlerLimits) -> None:
        self._limits = limits
        self._running: dict[bytes, int] = {}  # by the bytes of the id: they keep their hash
        self._networks: dict[str, int] = {}
        self.count = 0

    def enter(self, peer: PeerId, network: str = "") -> None:
        """Count a handler that starts for `peer`; raises Busy if a limit is reached.

        `network`: the one that the peer is in; empty if that does not count.
        """
        mine, near = self._running.get(peer.raw, 0), self._networks.get(network, 0)
        free = self._limits.total - self.count
        if mine >= self._limits.per_peer or not free or near > free:
            raise Busy(f"{mine} calls of yours and {self.count} in all are under way")
        self._running[peer.raw] = mine + 1
        if network:
            self._networks[network] = near + 1
        self.count += 1

    def leave(self, peer: PeerId, network: str = "") -> None:
        """Count a handler of `peer` that has ended."""
        self.count -= 1
        _take_one(self._running, peer.raw)
        if network:
            _take_one(self._networks, network)


def _take_one(counts: dict[K, int], key: K) -> None:
    left = counts[key] - 1
    if left:
        counts[key] = left
    else:
        del counts[key]
