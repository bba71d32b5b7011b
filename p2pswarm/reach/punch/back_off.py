"""PunchBackOff: whether to try to punch a peer now, from what came of the attempts before.

Nearly all attempts that succeed do so at first (97.6 % of libp2p's). Those that fail three times
have a reason that time alone may change: another network, another router. What has worked, and
broke, is tried again every few seconds for some minutes: a cable was pulled.

Units:   seconds on the caller's monotonic clock.
Shapes:  PEERS_MAX peers; the one that was tried longest ago makes way.
Errors:  none.
Source:  docs/punching.md; arXiv 2510.27500 for the share of first attempts.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

PAUSES_S = (0.5, 2.0, 60.0, 300.0, 1800.0)
LASTED_S = 10.0  # a punched path that ends sooner counts as a failure
RETURNS_S = 5.0  # what worked is used again within 10 s of its return: an attempt takes 2.5 s
RETURNS_MAX = 40  # for 5 minutes
PEERS_MAX = 1024

K = TypeVar("K")


@dataclass(slots=True)
class _Tried:
    failures: int = 0
    not_before_s: float = 0.0
    succeeded_s: float | None = None
    worked: bool = False
    """Whether a path has lasted since the last failures that went on for long."""


class PunchBackOff(Generic[K]):
    """What came of the attempts at each peer."""

    def __init__(self) -> None:
        self._tried: dict[K, _Tried] = {}

    def pause_s(self, peer: K, now_s: float) -> float:
        """How long to wait until the next attempt; 0: none."""
        tried = self._tried.get(peer)
        return 0.0 if tried is None else max(0.0, tried.not_before_s - now_s)

    def begin(self, peer: K, now_s: float) -> None:
        """Note that an attempt begins: what was punched before has ended."""
        tried = self._of(peer)
        if tried.succeeded_s is not None:
            lasted = now_s - tried.succeeded_s >= LASTED_S
            tried.failures = 0 if lasted else tried.failures + 1
            tried.worked = tried.worked or lasted
            tried.succeeded_s = None
        self._set_pause(tried, now_s)

    def succeeded(self, peer: K, now_s: float) -> None:
        """Note that a connection came up."""
        self._of(peer).succeeded_s = now_s

    def failed(self, peer: K, now_s: float, *, hopeless: bool) -> None:
        """Note that an attempt has failed; `hopeless`: so will the next one."""
        tried = self._of(peer)
        tried.failures = len(PAUSES_S) if hopeless else tried.failures + 1
        tried.worked = tried.worked and not hopeless and tried.failures < RETURNS_MAX
        self._set_pause(tried, now_s)

    def forget(self, peer: K) -> None:
        """Note that failures of the past mean nothing any more."""
        self._tried.pop(peer, None)

    def _of(self, peer: K) -> _Tried:
        tried = self._tried.pop(peer, None) or _Tried()
        self._tried[peer] = tried
        if len(self._tried) > PEERS_MAX:
            del self._tried[next(iter(self._tried))]
        return tried

    @staticmethod
    def _set_pause(tried: _Tried, now_s: float) -> None:
        at = min(tried.failures, len(PAUSES_S)) - 1
        pause_s = PAUSES_S[at] if at >= 0 else 0.0
        tried.not_before_s = now_s + (min(pause_s, RETURNS_S) if tried.worked else pause_s)
