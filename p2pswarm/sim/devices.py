"""The machines of a simulated run: how fast each is, where it is, and how its speed drifts.

Source:  Uhlenbeck and Ornstein, "On the Theory of the Brownian Motion" (1930), for the drift.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from p2pswarm.sim.compute import Processor
from p2pswarm.sim.network_conditions import Place

DRIFT_S = 600.0  # after so long a machine has mostly forgotten how fast it was


@dataclass(frozen=True, slots=True, kw_only=True)
class SimDevice:
    """One machine."""

    speed: float = 1.0
    """Relative to the machine that `Cost` is about."""
    drift: float = 0.0
    """The standard deviation of the logarithm of its speed: 0.1 is about ten percent."""
    place: Place | None = None
    """None: where the run's regions put it."""
    stage: int | None = None
    """The stage that it serves; None: the one that needs it most."""


class SpeedDrift:
    """A speed that wanders around its mean and returns to it."""

    def __init__(self, mean: float, drift: float, rng: random.Random) -> None:
        self._mean = mean
        self._drift = drift
        self._rng = rng
        self._off = rng.gauss(0.0, drift) if drift else 0.0
        """The logarithm of the speed over its mean."""
        self._at_s: float | None = None

    def at(self, now_s: float) -> float:
        """The speed at a time, which never goes back."""
        if self._drift and self._at_s is not None and now_s > self._at_s:
            kept = math.exp((self._at_s - now_s) / DRIFT_S)
            spread = self._drift * math.sqrt(1.0 - kept * kept)
            self._off = self._off * kept + self._rng.gauss(0.0, spread)
        self._at_s = now_s if self._at_s is None else max(now_s, self._at_s)
        return self._mean * math.exp(self._off)


class DriftingProcessor(Processor):
    """A processor whose speed is looked up anew for each work."""

    def __init__(self, drift: SpeedDrift, clock: Callable[[], float]) -> None:
        super().__init__(drift.at(clock()))
        self._speeds = drift
        self._clock = clock

    def spend(self, seconds: float) -> None:
        """Add to the time of the present work: seconds on a machine of speed 1."""
        self.speed = self._speeds.at(self._clock())
        super().spend(seconds)
