"""The record of a simulated day, and how fast the fleet could have been at best.

Units:   virtual seconds since the day began; speeds relative to any machine; rates in the same
         unit, for a stage of share 1.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from p2pswarm.sim.traces import HOUR_S

EXCHANGES_MAX = 10_000  # far more than are ever made: a limit in place of a proof
GAIN_MIN = 1e-12  # relative: less is rounding


def best_rate(speeds: Sequence[float], shares: Sequence[float]) -> float:
    """The rate of the best arrangement that is found; 0 if a stage has to stay empty."""
    if len(speeds) < len(shares):
        return 0.0
    return min(_rates(best_arrangement(speeds, shares), speeds, shares))


def best_arrangement(speeds: Sequence[float], shares: Sequence[float]) -> list[int]:
    """The stage of each server: the better of two ways to begin, each followed by exchanges.

    A stage's rate is the speed of its servers over its share of a microbatch's work; the slowest
    stage is the run's. The arrangement is exact where all servers are alike, and close where they
    are not.

    Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969), for the longest first.
    """
    whole = sum(speeds) / sum(shares)
    found = [
        _arranged(speeds, shares, lambda speed, share: speed / share),
        _arranged(speeds, shares, lambda speed, share: speed - whole * share),
    ]
    return max(found, key=lambda stages: min(_rates(stages, speeds, shares)))


def _arranged(
    speeds: Sequence[float], shares: Sequence[float], served: Callable[[float, float], float]
) -> list[int]:
    """The fastest first, each where it is needed most; `served`: how well a stage is served."""
    stages = [0] * len(speeds)
    sums = [0.0] * len(shares)
    for server in sorted(range(len(speeds)), key=lambda one: (-speeds[one], one)):
        stage = min(
            range(len(shares)), key=lambda one: (served(sums[one], shares[one]), -shares[one], one)
        )
        stages[server] = stage
        sums[stage] += speeds[server]
    for _ in range(EXCHANGES_MAX):
        if not _exchange(stages, sums, speeds, shares):
            break
    return stages


def _exchange(
    stages: list[int], sums: list[float], speeds: Sequence[float], shares: Sequence[float]
) -> bool:
    """Give the slowest stage a server, or a faster one for one of its own; False if none helps."""
    weak = min(range(len(shares)), key=lambda one: (sums[one] / shares[one], one))
    best, found = sums[weak] / shares[weak], None
    ours = [server for server, stage in enumerate(stages) if stage == weak]
    for server, stage in enumerate(stages):
        for back in [None, *ours] if stage != weak else ():
            moved = speeds[server] - (speeds[back] if back is not None else 0.0)
            after = min((sums[weak] + moved) / shares[weak], (sums[stage] - moved) / shares[stage])
            if after > best * (1 + GAIN_MIN):
                best, found = after, (server, back, moved)
    if found is None:
        return False
    server, back, moved = found
    other = stages[server]
    sums[weak] += moved
    sums[other] -= moved
    stages[server] = weak
    if back is not None:
        stages[back] = other
    return True


def _rates(stages: Sequence[int], speeds: Sequence[float], shares: Sequence[float]) -> list[float]:
    sums = [0.0] * len(shares)
    for stage, speed in zip(stages, speeds, strict=True):
        sums[stage] += speed
    return [total / share for total, share in zip(sums, shares, strict=True)]


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

    def step(self, sample: StepSample) -> None:
        """A step was committed."""
        self.steps.append(sample)
        self._since_checkpoint += 1

    def on_run_loss(self, at_s: float, checkpoint_steps: int | None) -> None:
        """A stage has lost its weights for good; the steps since the last checkpoint go with it."""
        self.runs_lost_s.append(at_s)
        lost = self._since_checkpoint
        if checkpoint_steps is not None:
            lost %= checkpoint_steps
        self.done_again += lost * self._microbatches
        self._since_checkpoint = 0

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
        """Return the share of the possible that was done.

        What was lost with weights does not count.
        """
        end_s = self.ended_s if end_s is None else end_s
        possible = self.possible(begin_s, end_s)
        whole = begin_s == 0.0 and end_s == self.ended_s
        done = self.done(begin_s, end_s) - (self.done_again if whole else 0)
        return done / possible if possible else 0.0

    @property
    def machines_mean(self) -> float:
        """Return the number of machines that were there on average."""
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
