"""UploadShare: weights for newcomers leave the node's upload to training.

A queue of one link sends what is urgent first. But all links of a node share its way to the
internet, and there a newcomer's weights would slow down the gradients of another link. So while
anything urgent waits on any link, background transfers may send a share of the bytes and no more.
While nothing does, they have all.

    tokens += share / (1 - share) * urgent bytes + FLOOR_BYTES_PER_S * seconds

A chunk may be sent while there are tokens, and takes as many as it has bytes. Who is held back is
woken when urgent bytes have made tokens, or when the last urgent transfer is over. It also asks
again by itself, because something urgent may be stuck for as long as a slow peer likes.

Source:  a token bucket, as in tc-tbf(8); LEDBAT (RFC 6817) yields like this by measuring delay.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from p2pswarm.settings.node_config import STATE_SHARE

BACKGROUND = 2
"""The first priority number that yields: `Priority.STATE` in `net/rpc/base.py`."""
FLOOR_BYTES_PER_S = 256 * 1024.0
"""Something urgent may trickle to a slow peer all day: 1 GB then takes an hour."""
TOKENS_MAX = 1024 * 1024.0
"""One large chunk: what was not used before is no right to a burst."""

HELD_S = 1.0
"""After so long a link that is held back asks again."""

Wake = Callable[[], None]


class UploadShare:
    """The background transfers of all links of one node. With `lock`, threads may use it."""

    def __init__(self, lock: AbstractContextManager[object], share: float = STATE_SHARE) -> None:
        """`share`: of the bytes, for background transfers beside urgent ones; 1: all they want."""
        self._lock = lock
        self._each_byte = share / (1 - share) if share < 1 else None
        self._urgent: dict[object, None] = {}
        self._held: dict[Wake, None] = {}
        self._tokens = 0.0
        self._at_s = 0.0

    def begin(self, transfer: object) -> None:
        """An urgent transfer waits to be sent, or is being sent."""
        with self._lock:
            self._urgent[transfer] = None

    def end(self, transfer: object) -> list[Wake]:
        """A transfer is sent, or given up; returns the links to wake. Any number of times."""
        with self._lock:
            self._urgent.pop(transfer, None)
            return [] if self._urgent else self._released()

    def on_urgent_chunk(self, nbytes: int, now_s: float) -> list[Wake]:
        """An urgent chunk goes out; returns the links to wake."""
        with self._lock:
            self._refill(now_s, nbytes)
            return self._released() if self._tokens > 0 else []

    def may_send(self, nbytes: int, now_s: float, wake: Wake) -> bool:
        """Return whether a background chunk may go out; if not, `wake` is returned later."""
        with self._lock:
            self._refill(now_s, 0)
            if not self._urgent or self._each_byte is None:
                return True
            if self._tokens <= 0:
                self._held[wake] = None
                return False
            self._tokens -= nbytes
            return True

    def _refill(self, now_s: float, nbytes: int) -> None:
        dt_s, self._at_s = max(0.0, now_s - self._at_s), max(now_s, self._at_s)
        more = (self._each_byte or 0.0) * nbytes + FLOOR_BYTES_PER_S * dt_s
        self._tokens = min(self._tokens + more, TOKENS_MAX)

    def _released(self) -> list[Wake]:
        held, self._held = list(self._held), {}
        return held
