"""Which averaging is under way at a member, and which pieces are ahead of their order.

One averaging is under way at a time; a newer order ends the older. A piece may come before the
order that it belongs to, because the other members may have had their orders earlier. Such a piece
waits. The number of waiting pieces is bounded.

Errors:  NotServing for an order or a piece of an averaging that is over; Busy while too many pieces
         wait.
"""

from p2pswarm.base.errors import Busy, NotServing
from p2pswarm.run.averaging.round import Round, RoundId

EARLY_MAX = 512  # pieces that wait for their order: twice what 64 members may send ahead
OBSERVED_MAX = 1024  # pieces under way to newcomers; a newcomer that falls behind joins again


class Turns:
    """The current averaging, the early pieces, and the pieces under way to newcomers."""

    def __init__(self, early_max: int = EARLY_MAX, observed_max: int = OBSERVED_MAX) -> None:
        self._early_max = early_max
        self._observed_max = observed_max
        self._current: Round | None = None
        self._newest = RoundId(-1, 0)
        self._early = 0
        self._observed = 0

    def begin(self, round_: Round) -> Round | None:
        """Begin the averaging of an order; returns the one that it ends, if any."""
        if round_.turn <= self._newest:
            raise NotServing(f"{round_.turn} comes after {self._newest}")
        ended, self._current = self._current, round_
        self._newest = round_.turn
        return ended

    def end(self, round_: Round) -> None:
        """An averaging is over, well or not."""
        if self._current is round_:
            self._current = None

    def find(self, turn: RoundId) -> Round | None:
        """The averaging that a piece belongs to; None while its order has not come."""
        if self._newest < turn:
            return None
        if self._current is None or self._current.turn != turn:
            raise NotServing(f"the averaging of {turn} is over")
        return self._current

    def wait_early(self) -> None:
        """A piece begins to wait for its order; Busy if too many do."""
        if self._early >= self._early_max:
            raise Busy("too many pieces wait for their order")
        self._early += 1

    def waited(self) -> None:
        """A piece has stopped waiting."""
        self._early -= 1

    def serve_observer(self) -> bool:
        """Return whether one more piece may be under way to newcomers; if so, it is counted."""
        if self._observed >= self._observed_max:
            return False
        self._observed += 1
        return True

    def served_observer(self) -> None:
        """A piece to a newcomer has arrived, or was given up."""
        self._observed -= 1
