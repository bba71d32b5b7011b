"""TimeLeft: when a run is done, and how sure that is, from the times of its steps.

The speed of a run on rented machines wanders: machines are taken for an hour, and come back. So the
next hour is guessed by the last half hour, and what lies further ahead by the whole history; how
far the truth may lie from that is learnt from how much the speed has varied over `SLOT_S`. Before
there is such a history, a run that has lost servers is held to be as fickle as a day of rented
machines is (`FICKLE`), and any other one to be steadier.

Units:   `at` in seconds on one clock, which may be any.
Source:  the mean of an Ornstein-Uhlenbeck process over the time to come; its relaxation time, and
         how many deviations are stated, are measured on simulated days (docs/figures.md).
"""

import math
from collections import deque
from dataclasses import dataclass

SLOT_S = 1_200.0
SLOTS_MAX = 1_008  # two weeks
RECENT_S = 1_800.0
RECENT_PARTS = 60  # of RECENT_S, in which steps are counted: a run may have thousands a minute
RELAX_S = 3_600.0  # after which a speed says little of the next
DEVIATIONS = 1.4  # the true end lies within the spread in 90 % of the hours of those days
FICKLE, STEADY = 0.3, 0.08
"""The deviation of the speed, as a share, that one relaxation time of history weighs up."""
LEAST_SPREAD = 0.02
LATEST = 4.0  # times the expected time: what is later is no statement
STEPS_LEAST = 3  # before there is anything to go by


@dataclass(frozen=True, slots=True)
class EndEstimate:
    """The time until a run is done."""

    left_s: float
    earliest_s: float
    latest_s: float

    @property
    def spread_s(self) -> float:
        """How far off the end may be, either way."""
        return max(self.latest_s - self.left_s, self.left_s - self.earliest_s)


class TimeLeft:
    """Told of each step; asked when people look."""

    def __init__(self) -> None:
        self._began: tuple[float, int] | None = None
        """Time and step from which the history is counted."""
        self._step = 0
        self._slots: deque[float] = deque(maxlen=SLOTS_MAX)
        """Steps in each slot that is over."""
        self._slot_ends: float = math.inf
        self._slot_step = 0
        """The step at which the present slot began."""
        self._recent: deque[tuple[float, int]] = deque()
        """Times and steps of the last half hour, a part apart."""
        self._fickle = False

    def begin(self, at: float, step: int) -> None:
        """Steps are done from now on; what is known of former ones stays."""
        if self._began is None:
            self._began, self._step = (at, step), step
            self._slot_ends, self._slot_step = at + SLOT_S, step
            self._recent.append((at, step))

    def on_step(self, at: float, step: int) -> None:
        """So many steps are done; fewer than before where the run has gone back."""
        if self._began is None:
            self.begin(at, step)
            return
        self._advance(at)
        self._step = step
        if at >= self._recent[-1][0] + RECENT_S / RECENT_PARTS:
            self._recent.append((at, step))

    def on_loss(self) -> None:
        """A server is lost: others may be, too."""
        self._fickle = True

    def estimate(self, at: float, steps: int) -> EndEstimate | None:
        """When all `steps` are done; None while nothing is known."""
        if self._began is None or not 0 <= self._step < steps:
            return None
        self._advance(at)
        began, first = self._began
        passed_s, done = at - began, self._step - first
        if passed_s <= 0 or done < STEPS_LEAST:
            return None
        usual = done / passed_s
        left = steps - self._step
        left_s, nearness = self._expected(left, usual, self._present(at, usual))
        spread = LEAST_SPREAD + DEVIATIONS * self._deviation(left_s, nearness, passed_s, usual)
        return EndEstimate(left_s, left_s / (1 + spread), left_s / max(1 - spread, 1 / LATEST))

    def _advance(self, at: float) -> None:
        """Close the slots that are over."""
        while at >= self._slot_ends:
            self._slots.append(self._step - self._slot_step)
            self._slot_step = self._step
            self._slot_ends += SLOT_S
            if at > self._slot_ends + SLOTS_MAX * SLOT_S:
                self._forget(at)
        while len(self._recent) > 1 and self._recent[1][0] <= at - RECENT_S:
            self._recent.popleft()

    def _forget(self, at: float) -> None:
        """Begin anew: the clock was set forward, as that of a machine which began in 1970."""
        self._began, self._slot_step = (at, self._step), self._step
        self._slot_ends = at + SLOT_S
        self._slots.clear()
        self._recent.clear()
        self._recent.append((at, self._step))

    def _present(self, at: float, usual: float) -> float:
        """Steps a second over the last half hour."""
        since, step = self._recent[0]
        return max(0.0, (self._step - step) / (at - since)) if at > since else usual

    @staticmethod
    def _expected(left: int, usual: float, present: float) -> tuple[float, float]:
        """The time for so many steps, and how much of it the present speed decides."""
        left_s = left / usual
        nearness = 1.0
        for _ in range(SETTLED_AFTER):
            nearness = _mean_memory(left_s)
            speed = usual + (present - usual) * nearness
            left_s = left / max(speed, usual / LATEST)
        return left_s, nearness

    def _deviation(self, left_s: float, nearness: float, passed_s: float, usual: float) -> float:
        """The deviation of the mean speed over the time to come, as a share."""
        looks = passed_s / (2 * RELAX_S)
        guess = FICKLE if self._fickle else STEADY
        variance = (guess**2 + self._variance(usual) * looks) / (1 + looks)
        ahead = min(1.0, 2 * RELAX_S / left_s * (1 - nearness)) * (1 - nearness**2 / 2)
        behind = min(1.0, 1 / looks) * (1 - nearness)
        return math.sqrt(variance * (ahead + behind))

    def _variance(self, usual: float) -> float:
        """Of the speed from slot to slot, as a share, without that of counting whole steps."""
        if not self._slots:
            return 0.0
        mean = usual * SLOT_S
        found = sum((steps / mean - 1) ** 2 for steps in self._slots) / len(self._slots)
        return max(0.0, found - 1 / (6 * mean**2))


SETTLED_AFTER = 6  # rounds, in which the time and the speed over it settle


def _mean_memory(left_s: float) -> float:
    """How much the present deviation is of the mean one over the time to come: 1 at once."""
    ahead = left_s / RELAX_S
    return (1 - math.exp(-ahead)) / ahead if ahead > 0 else 1.0
