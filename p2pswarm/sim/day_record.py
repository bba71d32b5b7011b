"""What came of a simulated day: steps, machines, and the share of what would have been possible.

Units:   seconds since the day began.
Errors:  none.
"""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step was committed."""

    at_s: float
    microbatches: int
    members: tuple[int, ...]
    """The servers of each stage that hold weights."""


@dataclass(frozen=True, slots=True)
class FleetSample:
    """The machines from this moment on."""

    at_s: float
    machines: int
    optimum: float
    """Microbatches a second at best."""


class DayRecord:
    """Told by the day as it passes; asked afterwards."""

    def __init__(self, stages: int, microbatches: int) -> None:
        """`microbatches`: of a step."""
        self.stages = stages
        self.steps: list[StepSample] = []
        self.fleets: list[FleetSample] = []
        self.waste: Counter[str] = Counter()
        self.taken = self.told = self.lost = 0
        self.runs_lost_s: list[float] = []
        """When a run had lost weights."""
        self.done_again = 0
        """Microbatches that were committed, and lost with the weights."""
        self.ended_s = 0.0
        self._microbatches = microbatches
        self._since_checkpoint = 0

    def fleet(self, at_s: float, machines: int, optimum: float) -> None:
        """The machines have changed."""
        self.fleets.append(FleetSample(at_s, machines, optimum))

    def step(self, sample: StepSample) -> None:
        """A step was committed."""
        self.steps.append(sample)
        self._since_checkpoint += 1

    def run_lost(self, at_s: float, checkpoint_steps: int | None) -> None:
        """A stage has lost its weights for good; the steps since the last checkpoint go with it."""
        self.runs_lost_s.append(at_s)
        lost = self._since_checkpoint
        if checkpoint_steps is not None:
            lost %= checkpoint_steps
        self.done_again += lost * self._microbatches
        self._since_checkpoint = 0

    def end(self, at_s: float) -> None:
        """The day is over."""
        self.ended_s = at_s

    def done(self, begin_s: float, end_s: float) -> float:
        """Microbatches committed between two times; a step counts evenly over its time."""
        total, before_s = 0.0, 0.0
        for step in self.steps:
            took_s = step.at_s - before_s
            inside_s = min(end_s, step.at_s) - max(begin_s, before_s)
            if took_s > 0 and inside_s > 0:
                total += step.microbatches * inside_s / took_s
            before_s = step.at_s
        return total

    def possible(self, begin_s: float, end_s: float) -> float:
        """Microbatches that the machines that were there could have done at best."""
        ends = [sample.at_s for sample in self.fleets[1:]] + [self.ended_s]
        return sum(
            sample.optimum * max(0.0, min(end_s, until_s) - max(begin_s, sample.at_s))
            for sample, until_s in zip(self.fleets, ends, strict=True)
        )

    def share(self, begin_s: float = 0.0, end_s: float | None = None) -> float:
        """What was done of what was possible; what was lost with weights does not count."""
        end_s = self.ended_s if end_s is None else end_s
        possible = self.possible(begin_s, end_s)
        whole = begin_s == 0.0 and end_s == self.ended_s
        done = self.done(begin_s, end_s) - (self.done_again if whole else 0)
        return done / possible if possible else 0.0

    @property
    def machines_mean(self) -> float:
        """How many machines were there on average."""
        ends = [sample.at_s for sample in self.fleets[1:]] + [self.ended_s]
        spans = zip(self.fleets, ends, strict=True)
        return sum(one.machines * (end_s - one.at_s) for one, end_s in spans) / self.ended_s

    @property
    def longest_stall_s(self) -> float:
        """The longest time without a commit."""
        times_s = [0.0, *(step.at_s for step in self.steps), self.ended_s]
        return max(b - a for a, b in pairwise(times_s))

    def series(self, every_s: float) -> list[tuple[float, float, float]]:
        """Hours, microbatches a second, and the optimum, in pieces of `every_s`."""
        count = max(1, round(self.ended_s / every_s))
        edges = [place * self.ended_s / count for place in range(count + 1)]
        return [
            (
                end_s / HOUR_S,
                self.done(begin_s, end_s) / (end_s - begin_s),
                self.possible(begin_s, end_s) / (end_s - begin_s),
            )
            for begin_s, end_s in pairwise(edges)
        ]
