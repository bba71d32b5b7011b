"""StepPace: how long the steps of a run usually take, and from when on one stands still."""

import statistics
from collections import deque

STEPS_TIMED = 50  # the last ones: a run that has other servers has another pace
STALL_STEPS = 3.0  # a step that takes so many times the usual stands still


class StepPace:
    """The time that each of the last steps took."""

    def __init__(self, least_s: float) -> None:
        """`least_s`: no step that takes less stands still for whoever asks."""
        self._least_s = least_s
        self._took_s: deque[float] = deque(maxlen=STEPS_TIMED)

    def add(self, took_s: float) -> None:
        """A step is done."""
        self._took_s.append(took_s)

    @property
    def usual_s(self) -> float | None:
        """How long a step usually takes; None before one was measured."""
        return statistics.median(self._took_s) if self._took_s else None

    @property
    def stall_s(self) -> float | None:
        """How long a step may take before it stands still; None before one was measured."""
        usual_s = self.usual_s
        return None if usual_s is None else max(STALL_STEPS * usual_s, self._least_s)
