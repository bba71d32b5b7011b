"""PunchLimits: how many attempts of others we take part in, by who asks and by who is dialled.

A peer that is asked to punch dials where others say. What a third party may get of that is bounded
by its own network, whoever asks: ids are free.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most TOTAL_MAX attempts and DIALLED_MAX networks of the last minute are remembered.
Errors:  none.
Source:  docs/punching.md, the second table.
"""

from collections import Counter, deque
from collections.abc import Iterable

from p2pswarm.base.ids import PeerId
from p2pswarm.net.os.addresses import network_of

WINDOW_S = 60.0
PEER_MAX = 10  # a path that was punched before is tried again every 8 s
KNOWN_MAX = 32  # at the host where we see the peer: each bulk connection is an attempt
NETWORK_MAX = 16
TOTAL_MAX = 240
TOGETHER_MAX = 64
DIALLED_MAX = 2048  # eight networks in each attempt


class PunchLimits:
    """The attempts of the last minute."""

    def __init__(self) -> None:
        self._begun: deque[tuple[float, PeerId]] = deque()
        self._dialled: deque[tuple[float, str]] = deque()
        self._together = 0

    def begin(self, peer: PeerId, now_s: float, *, known: bool) -> bool:
        """Whether to take part in an attempt; if so, call `ended` afterwards.

        `known`: the link with the peer shows where it is, and it is dialled there.
        """
        _drop_old(self._begun, now_s)
        of_peer = sum(1 for _, other in self._begun if other == peer)
        most = KNOWN_MAX if known else PEER_MAX
        if of_peer >= most or len(self._begun) >= TOTAL_MAX or self._together >= TOGETHER_MAX:
            return False
        self._begun.append((now_s, peer))
        self._together += 1
        return True

    def dialling(self, hosts: Iterable[str], now_s: float) -> set[str]:
        """Those hosts that may be dialled in one attempt, ours or another's."""
        _drop_old(self._dialled, now_s)
        counts = Counter(network for _, network in self._dialled)
        allowed = {host for host in hosts if counts[network_of(host)] < NETWORK_MAX}
        networks = sorted({network_of(host) for host in allowed})
        if len(self._dialled) + len(networks) > DIALLED_MAX:
            return set()
        self._dialled.extend((now_s, network) for network in networks)
        return allowed

    def ended(self) -> None:
        """Note that an attempt is over."""
        self._together -= 1


def _drop_old(noted: deque[tuple[float, PeerId]] | deque[tuple[float, str]], now_s: float) -> None:
    while noted and now_s - noted[0][0] >= WINDOW_S:
        noted.popleft()
