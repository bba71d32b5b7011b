"""How long a gradient takes to come back: what a server tells of the road beyond it.

A server may be fast and its road onward slow, or the servers beyond it overloaded. Then it takes
microbatch after microbatch whose gradients do not return. So it measures the time from the end of a
forward until its gradient is here, and tells it with each receipt. The oldest that is still on its
way counts too, because of a road that is shut nothing comes back that could be measured.

Units:   seconds on the caller's clock.
Errors:  none; what is not known is ignored.
"""

from collections.abc import Iterable

from p2pswarm.base.estimates import Ema
from p2pswarm.models.compute.base import Key

SMOOTHING = 0.2  # of the measured times: about the last ten


class GradientReturns:
    """The microbatches that one server has sent onward; as many as it holds inputs of."""

    def __init__(self) -> None:
        self._took_s = Ema(SMOOTHING)
        self._away: dict[Key, float] = {}
        """When each left; the oldest first."""

    def left(self, key: Key, now_s: float) -> None:
        """Its forward is computed here."""
        self._away[key] = now_s

    def came(self, key: Key, now_s: float) -> None:
        """Its gradient is here."""
        left_s = self._away.pop(key, None)
        if left_s is not None:
            self._took_s.add(max(0.0, now_s - left_s))

    def drop(self, keys: Iterable[Key] | None) -> None:
        """Their gradients will not come; None: none will."""
        for key in tuple(self._away) if keys is None else keys:
            self._away.pop(key, None)

    def usual_s(self, now_s: float) -> float:
        """How long a gradient takes at present; 0 while nothing is known."""
        oldest_s = next(iter(self._away.values()), now_s)
        return max(self._took_s.value or 0.0, now_s - oldest_s, 0.0)
