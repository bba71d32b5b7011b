"""DT-FM's genetic algorithm as it was published with its program, to compare with.

A population of partitions into stages; each child takes its second parent's stages and, at five
random devices, its first parent's; sizes are repaired; then a local search moves devices in a ring
of stages, by a gain of its own that prefers slow links within a stage: what is fast is for the
pipeline. A child that is better than a parent replaces the worse one.

The program's own seeds rebind functions and seed nothing; here chance is an argument. It takes the
truth value of the second parent's score where it means the score, so that a child has to beat the
larger of the first parent's score and 1: that is kept, because it is what was measured. A child
that replaces nobody is only remembered. What it costs is the cost of the best pairing: the
program names that cost, too, and returns another pairing.

Shapes:  device (n), stage.
Source:  Yuan et al., NeurIPS 2022; GCMA in DS3Lab/DT-FM, scheduler/heuristic_evolutionary_solver;
         Kang and Moon, A Hybrid Genetic Algorithm for Multiway Graph Partitioning, 2000.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, Stages, best_order, cost_of
from p2pswarm.plan.network import Floats, Ints

POPULATION = 100
TRIALS = 4_900
CROSSOVER_POINTS = 5


@dataclass(frozen=True, slots=True)
class Evolved:
    """The best plan, and how many were judged."""

    stages: Stages
    seconds: float
    evaluations: int


def evolve(
    costs: LinkCosts,
    task: DtfmTask,
    seed: int,
    *,
    population: int = POPULATION,
    trials: int = TRIALS,
    expired: Callable[[], bool] = lambda: False,
) -> Evolved:
    """Run the algorithm, until `trials` children are made or the time has `expired`."""
    chance = np.random.default_rng(seed)
    n = task.stages * task.pipelines
    label = np.repeat(np.arange(task.stages), task.pipelines)
    people = []
    best: tuple[float, Stages] | None = None

    def judged(stage_n: Ints) -> float:
        nonlocal best
        stages = best_order(costs, _stages(stage_n, task.stages))
        seconds = cost_of(costs, stages).seconds
        if best is None or seconds < best[0]:
            best = seconds, stages
        return seconds

    for _ in range(population):
        stage_n = np.empty(n, dtype=np.int64)
        stage_n[chance.permutation(n)] = label
        people.append((judged(stage_n), stage_n))
    made = 0
    while made < trials and not expired():
        one, other = chance.integers(0, population, 2)
        child = crossed(people[one][1], people[other][1], task, chance)
        child = in_rings(costs.pipeline_s_nn, child, task.stages)
        seconds = judged(child)
        made += 1
        worse = one if people[one][0] > people[other][0] else other
        if seconds < max(people[one][0], 1.0):
            people[worse] = seconds, child
    assert best is not None  # the population was judged
    return Evolved(best[1], best[0], population + made)


def crossed(one_n: Ints, other_n: Ints, task: DtfmTask, chance: np.random.Generator) -> Ints:
    """The second parent with some of the first one's stages, and every stage of its size."""
    child_n = other_n.copy()
    points = chance.choice(len(child_n), min(CROSSOVER_POINTS, len(child_n)), replace=False)
    child_n[points] = one_n[points]
    sizes = np.bincount(child_n, minlength=task.stages)
    for device in range(len(child_n)):
        if sizes[child_n[device]] > task.pipelines:
            small = int(np.argmax(sizes < task.pipelines))
            sizes[child_n[device]] -= 1
            sizes[small] += 1
            child_n[device] = small
    return child_n


def in_rings(cost_s_nn: Floats, stage_n: Ints, stages: int) -> Ints:
    """The local search: rings of moves between stages, as long as their sum of gains is best.

    Of each stage the device leaves that has the fastest link within it, for the stage to which its
    links are slowest in the mean; the last one of a ring closes it. A device moves once.
    """
    stage_n = stage_n.copy()
    locked = np.zeros(len(stage_n), dtype=bool)
    sums = [0.0]
    states = [stage_n.copy()]
    for _ in range(stages):
        ring = _ring(cost_s_nn, stage_n, stages, locked)
        if ring is None:
            break
        stage_n, gain = ring
        sums.append(sums[-1] + gain)
        states.append(stage_n.copy())
    return states[int(np.argmax(sums))]


def _ring(
    cost_s_nn: Floats, stage_n: Ints, stages: int, locked: np.ndarray
) -> tuple[Ints, float] | None:
    """One ring of moves: what it leads to, and its gain; None if nobody is free to begin it."""
    gains = _gains(cost_s_nn, stage_n, stages)
    moves = [_move(gains, stage_n, stage, locked) for stage in range(stages)]
    begins = max((move for move in moves if move is not None), default=None)
    if begins is None:
        return None
    home = int(stage_n[begins[1]])
    trail: list[tuple[int, int, float]] = []
    closings = []
    now_n = stage_n.copy()
    leaving: tuple[float, int, int] | None = begins
    while leaving is not None and len(trail) < len(stage_n):
        gain, device, target = leaving
        back = float(gains[device, home] - gains[device, now_n[device]]) if trail else -np.inf
        closings.append(sum(each[2] for each in trail) + back)
        trail.append((device, target, gain))
        locked[device] = True
        now_n[device] = target
        if target == home:
            break
        gains = _gains(cost_s_nn, now_n, stages)
        leaving = _move(gains, now_n, target, locked)
    closed = trail[-1][1] == home
    whole = sum(each[2] for each in trail) if closed else -np.inf
    best = int(np.argmax([*closings, whole]))
    now_n = stage_n.copy()
    if best == len(trail):
        for device, target, _ in trail:
            now_n[device] = target
        return now_n, float(whole)
    if best == 0:
        return now_n, 0.0
    for device, target, _ in trail[:best]:
        now_n[device] = target
    now_n[trail[best][0]] = home
    return now_n, float(closings[best])


def _gains(cost_s_nn: Floats, stage_n: Ints, stages: int) -> Floats:
    """Of each device and stage: its fastest link there at home, the mean of its links elsewhere."""
    apart_nn = np.where(np.eye(len(stage_n), dtype=bool), np.inf, cost_s_nn)
    gains = np.empty((len(stage_n), stages))
    for stage in range(stages):
        members = stage_n == stage
        if not members.any():
            gains[:, stage] = -np.inf
            continue
        gains[:, stage] = cost_s_nn[:, members].mean(axis=1)
        gains[members, stage] = apart_nn[np.ix_(members, members)].min(axis=1)
    return gains


def _move(
    gains: Floats, stage_n: Ints, stage: int, locked: np.ndarray
) -> tuple[float, int, int] | None:
    """The device that leaves a stage, what that gains, and where it goes."""
    free = np.flatnonzero((stage_n == stage) & ~locked)
    if not len(free):
        return None
    device = int(free[np.argmin(gains[free, stage])])
    elsewhere = gains[device].copy()
    elsewhere[stage] = -np.inf
    target = int(np.argmax(elsewhere))
    return float(elsewhere[target] - gains[device, stage]), device, target


def _stages(stage_n: Ints, stages: int) -> Stages:
    return tuple(tuple(map(int, np.flatnonzero(stage_n == each))) for each in range(stages))
