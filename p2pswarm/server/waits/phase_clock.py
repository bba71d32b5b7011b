"""PhaseClock: where the seconds of a server go, from one commit to the next.

Units:   seconds on the caller's clock.
"""

from enum import IntEnum

from p2pswarm.run.messages.field_limits import SECONDS_MAX, Work
from p2pswarm.run.messages.waits import StepSeconds


class ServerPhase(IntEnum):
    """The occupation of a server; where several fit, the first counts."""

    FORWARD = 0
    BACKWARD = 1
    COMMIT = 2
    AVERAGING = 3
    TRANSFER = 4
    WAITING = 5


class PhaseClock:
    """Cuts a server's time into phases that do not overlap.

    Computing, averaging and sending go on at once. A sum that is to be a step's time can count each
    moment once. So a moment belongs to the first phase of `ServerPhase` that fits: a transfer
    behind which something is computed costs nothing, and does not appear.
    """

    def __init__(self, now_s: float) -> None:
        self._since_s = now_s
        """Time up to which all is counted."""
        self._spent_s = [0.0] * len(ServerPhase)
        self._before_s = tuple(self._spent_s)
        """As it was at the last lap of the step before."""
        self._lap_s = tuple(self._spent_s)
        """As it was at the last lap."""
        self._step = -1
        self._depth = [0] * len(ServerPhase)
        """How many things of each phase are under way."""
        self._here = ServerPhase.WAITING
        """The first of these phases."""

    def on_begin(self, phase: ServerPhase, now_s: float) -> None:
        """Something of a phase begins."""
        self._count(now_s)
        self._depth[phase] += 1
        self._here = min(self._here, phase)

    def on_end(self, phase: ServerPhase, now_s: float) -> None:
        """Something of a phase that had begun is over."""
        self._count(now_s)
        self._depth[phase] -= 1
        if phase is self._here and not self._depth[phase]:
            under_way = (one for one in ServerPhase if self._depth[one])
            self._here = next(under_way, ServerPhase.WAITING)

    def lap(self, step: int, now_s: float) -> StepSeconds | None:
        """The time since the last lap of another step: an order may be carried out twice.

        None for an order of an earlier step, which comes late: its seconds were told.
        """
        self._count(now_s)
        if step < self._step:
            return None
        if step != self._step:
            self._step, self._before_s = step, self._lap_s
        self._lap_s = tuple(self._spent_s)
        pairs = zip(self._lap_s, self._before_s, strict=True)
        return StepSeconds(*(min(SECONDS_MAX, max(0.0, now - before)) for now, before in pairs))

    def _count(self, now_s: float) -> None:
        self._spent_s[self._here] += now_s - self._since_s
        self._since_s = now_s


def phase_of(work: Work) -> ServerPhase:
    """The phase in which a microbatch is computed."""
    return ServerPhase.BACKWARD if work is Work.BACKWARD else ServerPhase.FORWARD
