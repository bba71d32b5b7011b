"""Limits of punching: attempts of others that we take part in, and pauses between our own.

Source:  docs/punching.md, the second table; arXiv 2510.27500 for the share of first attempts.
"""

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from p2pswarm.base.ids import PeerId
from p2pswarm.base.recent_items import RecentItems
from p2pswarm.net.os.addresses import network_of

WINDOW_S = 60.0
PEER_MAX = 10  # a path that was punched before is tried again every 8 s
KNOWN_MAX = 32  # at the host where we see the peer: each bulk connection is an attempt
NETWORK_MAX = 16
TOTAL_MAX = 240
TOGETHER_MAX = 64
DIALLED_MAX = 2048  # eight networks in each attempt


class PunchLimits:
    """The attempts of others in the last minute, by the asker and by the host that is dialled.

    A peer that is asked to punch dials where others say. What a third party may get of that is
    bounded by its own network, whoever asks: ids are free.

    At most TOTAL_MAX attempts and DIALLED_MAX networks are remembered.
    """

    def __init__(self) -> None:
        self._begun: deque[tuple[float, PeerId]] = deque()
        self._dialled: deque[tuple[float, str]] = deque()
        self._together = 0

    def begin(self, peer: PeerId, now_s: float, *, known: bool) -> bool:
        """Return whether to take part in an attempt; if so, call `on_end` afterwards.

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

    def dialable(self, hosts: Iterable[str], now_s: float) -> set[str]:
        """Those hosts that may be dialled in one attempt, ours or another's."""
        _drop_old(self._dialled, now_s)
        counts = Counter(network for _, network in self._dialled)
        allowed = {host for host in hosts if counts[network_of(host)] < NETWORK_MAX}
        networks = sorted({network_of(host) for host in allowed})
        if len(self._dialled) + len(networks) > DIALLED_MAX:
            return set()
        self._dialled.extend((now_s, network) for network in networks)
        return allowed

    def on_end(self) -> None:
        """Note that an attempt is over."""
        self._together -= 1


def _drop_old(noted: deque[tuple[float, PeerId]] | deque[tuple[float, str]], now_s: float) -> None:
    while noted and now_s - noted[0][0] >= WINDOW_S:
        noted.popleft()


PAUSES_S = (0.5, 2.0, 60.0, 300.0, 1800.0)
LASTED_S = 10.0  # a punched path that ends sooner counts as a failure
RETURNS_S = 5.0  # what worked is used again within 10 s of its return: an attempt takes 2.5 s
RETURNS_MAX = 40  # for 5 minutes
PEERS_MAX = 1024


@dataclass(slots=True)
class _Tried:
    failures: int = 0
    not_before_s: float = 0.0
    succeeded_s: float | None = None
    worked: bool = False
    """True if a path has lasted since the last failures that went on for long."""


class PunchBackOff:
    """The pause before the next attempt at each peer, from what came of those before.

    Nearly all attempts that succeed do so at first (97.6 % of libp2p's). Those that fail three
    times have a reason that time alone may change: another network, another router. What has
    worked, and broke, is tried again every few seconds for some minutes: a cable was pulled.

    PEERS_MAX peers are remembered; the one that was tried longest ago makes way.
    """

    def __init__(self) -> None:
        self._tried: RecentItems[Hashable, _Tried] = RecentItems(PEERS_MAX)

    def pause_s(self, peer: Hashable, now_s: float) -> float:
        """Return the time to wait until the next attempt; 0: none."""
        tried = self._tried.get(peer)
        return 0.0 if tried is None else max(0.0, tried.not_before_s - now_s)

    def begin(self, peer: Hashable, now_s: float) -> None:
        """Note that an attempt begins: what was punched before has ended."""
        tried = self._of(peer)
        if tried.succeeded_s is not None:
            lasted = now_s - tried.succeeded_s >= LASTED_S
            tried.failures = 0 if lasted else tried.failures + 1
            tried.worked = tried.worked or lasted
            tried.succeeded_s = None
        self._set_pause(tried, now_s)

    def on_success(self, peer: Hashable, now_s: float) -> None:
        """Note that a connection came up."""
        self._of(peer).succeeded_s = now_s

    def on_failure(self, peer: Hashable, now_s: float, *, hopeless: bool) -> None:
        """Note that an attempt has failed; `hopeless`: so will the next one."""
        tried = self._of(peer)
        tried.failures = len(PAUSES_S) if hopeless else tried.failures + 1
        tried.worked = tried.worked and not hopeless and tried.failures < RETURNS_MAX
        self._set_pause(tried, now_s)

    def forget(self, peer: Hashable) -> None:
        """Note that failures of the past mean nothing any more."""
        self._tried.pop(peer, None)

    def _of(self, peer: Hashable) -> _Tried:
        tried = self._tried.get(peer) or _Tried()
        self._tried[peer] = tried
        return tried

    @staticmethod
    def _set_pause(tried: _Tried, now_s: float) -> None:
        at = min(tried.failures, len(PAUSES_S)) - 1
        pause_s = PAUSES_S[at] if at >= 0 else 0.0
        tried.not_before_s = now_s + (min(pause_s, RETURNS_S) if tried.worked else pause_s)
