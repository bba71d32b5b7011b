"""How a server notices that nothing comes from its coordinator any more.

The coordinator says something each half second on the stream of every member. When it does not, it
may be stopped, cut off or dead; the server does not end its session for that, because the
coordinator may go on, and its own voter may be the one that is cut off. It asks the other trainers
who leads, and meanwhile looks for trainers that it does not know: the one that leads by now may be
new.

Units:   seconds on the caller's clock.
Errors:  none.
"""

import math

from p2pswarm.run.messages.trainers import SILENCE_S

ASK_AGAIN_S = 0.5  # a takeover takes about one; a trainer that was asked in vain may lead by then


class CoordinatorWatch:
    """The stream of one server with a trainer, as far as it is silent."""

    def __init__(self) -> None:
        self.next_deadline_s: float | None = None
        """When to call `on_deadline`; None while there is no stream."""
        self._heard_s = math.inf
        self.silent = False
        """Whether the other trainers are being asked."""

    def heard(self, now_s: float) -> None:
        """The stream was opened, or something came."""
        self.next_deadline_s, self._heard_s = now_s + SILENCE_S, now_s
        self.silent = False

    def unheard_s(self, now_s: float) -> float:
        """For how long nothing has come; 0 without a stream."""
        return max(0.0, now_s - self._heard_s)

    def ended(self) -> None:
        """The stream is over."""
        self.next_deadline_s, self._heard_s = None, math.inf
        self.silent = False

    def on_deadline(self, now_s: float) -> bool:
        """Whether it is time to ask the other trainers who leads."""
        if self.next_deadline_s is None or now_s < self.next_deadline_s:
            return False
        self.next_deadline_s = now_s + ASK_AGAIN_S
        self.silent = True
        return True
