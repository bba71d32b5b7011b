"""How long each server may take to do what it was asked: learned from what it did and did not do.

A limit that is the same for all and for ever would evict a slow server each time: it would come
back, and be evicted again. So a server that was too slow may take twice as long the next time, and
one that was slow but in time keeps twice its time. One that is quick again has the usual limit.

Units:   seconds; peers by their 32-byte id, so that a limit outlives an incarnation.
Errors:  none.
Source:  RFC 6298, section 5, as for attempts.
"""

from p2pswarm.run.messages.types import MEMBERS_MAX

BACKOFF = 2.0  # RFC 6298, 5.5
LEARNED = 2.0  # times what it took


class AnswerLimits:
    """The limits of one kind of order."""

    def __init__(self, usual_s: float, max_s: float, peers_max: int = MEMBERS_MAX) -> None:
        self._usual_s = usual_s
        self._max_s = max_s
        self._peers_max = peers_max
        self._limits_s: dict[bytes, float] = {}
        """Of the peers that have another one than is usual; who was slow last stands last."""

    def limit_s(self, peer: bytes) -> float:
        """How long a peer may take."""
        return self._limits_s.get(peer, self._usual_s)

    def on_answer(self, peer: bytes, seconds: float) -> None:
        """A peer has done it."""
        self._set(peer, LEARNED * seconds)

    def on_timeout(self, peer: bytes) -> None:
        """A peer has not done it in its time."""
        self._set(peer, BACKOFF * self.limit_s(peer))

    def _set(self, peer: bytes, limit_s: float) -> None:
        self._limits_s.pop(peer, None)
        if limit_s <= self._usual_s:
            return
        self._limits_s[peer] = min(self._max_s, limit_s)
        if len(self._limits_s) > self._peers_max:
            del self._limits_s[next(iter(self._limits_s))]
