"""PunchLimits: how many attempts of others we take part in, by who asks and by who is dialled.

A peer that is asked to punch dials where others say. What a third party may get of that is bounded
by its own network, whoever asks: ids are free.

Units:   seconds on the caller's monotonic clock.
Shapes:  at most TOTAL_MAX attempts are remembered, with CANDIDATES_MAX networks each.
Errors:  none.
Source:  docs/punching.md, the second table.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from p2pswarm.ids import PeerId
from p2pswarm.net.address_groups import network_of

WINDOW_S = 60.0
PEER_MAX = 10  # a path that was punched before is tried again every 8 s
KNOWN_MAX = 32  # at the host where we see the peer: each bulk connection is an attempt
NETWORK_MAX = 16
TOTAL_MAX = 240
TOGETHER_MAX = 64


@dataclass(frozen=True, slots=True)
class _Begun:
    at_s: float
    peer: PeerId
    networks: tuple[str, ...]


class PunchLimits:
    """The attempts of the last minute."""

    def __init__(self) -> None:
        self._begun: deque[_Begun] = deque()
        self._together = 0

    def begin(self, peer: PeerId, now_s: float, *, known: bool) -> bool:
        """Whether to take part in an attempt; if so, call `ended` afterwards.

        `known`: the link with the peer shows where it is, and it is dialled there.
        """
        while self._begun and now_s - self._begun[0].at_s >= WINDOW_S:
            self._begun.popleft()
        of_peer = sum(1 for each in self._begun if each.peer == peer)
        most = KNOWN_MAX if known else PEER_MAX
        if of_peer >= most or len(self._begun) >= TOTAL_MAX or self._together >= TOGETHER_MAX:
            return False
        self._begun.append(_Begun(now_s, peer, ()))
        self._together += 1
        return True

    def dialling(self, peer: PeerId, hosts: Iterable[str]) -> set[str]:
        """Those hosts that may be dialled in the newest attempt of this peer."""
        counts: dict[str, int] = {}
        for each in self._begun:
            for network in each.networks:
                counts[network] = counts.get(network, 0) + 1
        allowed = {host for host in hosts if counts.get(network_of(host), 0) < NETWORK_MAX}
        networks = tuple(sorted({network_of(host) for host in allowed}))
        for at in range(len(self._begun) - 1, -1, -1):
            if self._begun[at].peer == peer:
                old = self._begun[at]
                merged = tuple(sorted({*old.networks, *networks}))
                self._begun[at] = _Begun(old.at_s, peer, merged)
                break
        return allowed

    def ended(self) -> None:
        """Note that an attempt is over."""
        self._together -= 1
