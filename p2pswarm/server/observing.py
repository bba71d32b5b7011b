"""How long an observer waits for the pieces of a reduction that is decided.

A newcomer takes part in the reductions of its stage as an observer: it is sent the result when the
members have it, and nobody waits for it. A member that does not reach it gives its pieces up, and
tells nobody. So an observer that knows of the decision, and to which nothing comes, need not wait:
it misses that step, and fetches the weights. A piece that is on its way may take as long as its
link needs.

Units:   seconds on the caller's clock.
Errors:  none.
"""

from collections import Counter

SILENT_S = 5.0  # members send as soon as they have all, which is before the decision
STEPS_KEPT = 64  # of which it is known when they were decided; an older one was long ago
LONG_AGO_S = 0.0


class ObserverPatience:
    """The reductions of one session, as an observer waits for them."""

    def __init__(self) -> None:
        self._under_way: Counter[int] = Counter()
        """The pieces of each step that are announced and have not come."""
        self._heard_s: dict[int, float] = {}
        """When a piece of a step was here last, of the last steps."""
        self._decided_s: dict[int, float] = {}
        """When a decision was heard of, of the last steps."""

    def piece_began(self, step: int) -> None:
        """A piece of a step is announced."""
        self._under_way[step] += 1

    def piece_ended(self, step: int, now_s: float, *, came: bool) -> None:
        """It has come, or will not: then anybody may have announced it, and it says nothing."""
        self._under_way[step] -= 1
        if not self._under_way[step]:
            del self._under_way[step]
        if came:
            _keep(self._heard_s, step, now_s)

    def decided(self, step: int, now_s: float) -> None:
        """The commit of a step has come: it and all before it are decided."""
        if step not in self._decided_s:
            _keep(self._decided_s, step, now_s)

    def give_up_s(self, step: int) -> float | None:
        """When to wait no longer for the pieces of a step; None while there is no reason to."""
        decided_s = [at_s for decided, at_s in self._decided_s.items() if decided >= step]
        if not decided_s or self._under_way[step]:
            return None
        return max(min(decided_s), self._heard_s.get(step, LONG_AGO_S)) + SILENT_S


def _keep(times_s: dict[int, float], step: int, now_s: float) -> None:
    times_s[step] = now_s
    if len(times_s) > STEPS_KEPT:
        del times_s[min(times_s)]
