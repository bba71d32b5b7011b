"""The cheapest plan that can be found in a given time, and what no plan can cost less.

Where few classes of alike devices are, an exact solver proves the cheapest plan. What it does not
prove in its share of the time is annealed: from chance several times, then from the best again and
again. The best plan at any time is an answer; its bound says how good it is at least.

Units:   seconds, of the clock and of an iteration.
Errors:  Unusable for a time in which nothing can be found.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from p2pswarm.errors import Unusable
from p2pswarm.plan import exact
from p2pswarm.plan.annealing import Cooling, Layout, Links, RandomState, anneal
from p2pswarm.plan.dtfm import (
    DtfmTask,
    LinkCosts,
    Stages,
    best_order,
    cost_of,
    least_cost_s,
    pipelines_of,
)
from p2pswarm.plan.network import alike

Clock = Callable[[], float]

CLASSES_MAX = 12  # with more the solver's model is larger than what it proves in a minute
EXACT_SHARE = 0.6  # of the time, for a proof
STARTS_SHARE = 0.5  # of what is left, for plans from chance
STARTS = 6  # half of the seeds of an irregular network end 5 % over the best of six
POOL = 3  # plans that are annealed again
MEAN_SHARE = 0.5  # see bench/LOG.md: 0.2 and 1.0 find less
PAIR_SHARE = 0.25
HOT_SHARE, WARM_SHARE, COLD_SHARE = 0.03, 0.004, 2e-4  # temperatures, as shares of a cost by chance
SLICE_MOVES = 20_000  # of a trial that measures the machine's speed


@dataclass(frozen=True, slots=True)
class Plan:
    """What was found."""

    stages: Stages
    """The devices of each stage, those at one place being a pipeline."""
    seconds: float
    lower_bound_s: float
    proven: bool
    evaluations: int
    """Plans that were looked at by annealing; 0 if the solver's proof was enough."""


def search(costs: LinkCosts, task: DtfmTask, limit_s: float, seed: int, clock: Clock) -> Plan:
    """Search for `limit_s`, or until a plan is proven.

    The first search on a machine compiles for some seconds more.
    """
    if not limit_s > 0:
        raise Unusable(f"a search of {limit_s:g} s finds nothing: give it a second at least")
    begun_s = clock()
    found, bound_s = None, least_cost_s(costs, task)
    classes = alike((costs.data_s_nn, costs.pipeline_s_nn), CLASSES_MAX)
    if len(classes) <= CLASSES_MAX:
        solved = exact.solve(costs, task, classes, EXACT_SHARE * limit_s)
        found, bound_s = solved.stages, max(bound_s, solved.bound_s)
        if solved.proven and found is not None:
            return _plan(costs, found, bound_s, 0, proven=True)
    left_s = limit_s - (clock() - begun_s)
    annealing = _Annealing(costs, task, seed)
    annealing.run(found, clock() + left_s, clock)
    return _plan(costs, annealing.best, bound_s, annealing.moves, proven=False)


def _plan(costs: LinkCosts, stages: Stages, bound_s: float, moves: int, *, proven: bool) -> Plan:
    ordered = pipelines_of(costs, best_order(costs, stages))
    seconds = cost_of(costs, ordered).seconds
    return Plan(ordered, seconds, seconds if proven else min(bound_s, seconds), proven, moves)


class _Annealing:
    """Plans that are annealed until the time is over."""

    def __init__(self, costs: LinkCosts, task: DtfmTask, seed: int) -> None:
        self._costs = costs
        self._task = task
        self._links = Links(costs.data_s_nn, costs.pipeline_s_nn, MEAN_SHARE)
        self._chance = np.random.default_rng(seed)
        self._state: RandomState = self._chance.integers(1, 2**63, 1, dtype=np.uint64)
        self._pool: list[tuple[float, Stages]] = []
        self.moves = 0
        """How many moves were tried."""
        self._scale_s = cost_of(costs, self._by_chance()).seconds
        self._try(self._by_chance(), 1, HOT_SHARE)  # compiles

    @property
    def best(self) -> Stages:
        """The cheapest plan so far."""
        return self._pool[0][1]

    def run(self, known: Stages | None, ends_s: float, clock: Clock) -> None:
        """Anneal until `ends_s`; `known` is a plan that somebody else found."""
        if known is not None:
            self._note(known)
        begun_s = clock()
        self._try(self._by_chance(), SLICE_MOVES, HOT_SHARE)
        each_s = max((clock() - begun_s) / SLICE_MOVES, 1e-9)
        left_s = max(ends_s - clock(), 0.0)
        moves = math.ceil(STARTS_SHARE * left_s / STARTS / each_s) + SLICE_MOVES
        for _ in range(STARTS):
            if clock() + moves * each_s < ends_s:
                self._try(self._by_chance(), moves, HOT_SHARE)
        turn = 0
        while clock() + moves * each_s < ends_s:
            again = self._pool[turn % len(self._pool)][1]
            self._try(pipelines_of(self._costs, again), moves, WARM_SHARE)
            turn += 1

    def _by_chance(self) -> Stages:
        order = self._chance.permutation(self._task.stages * self._task.pipelines)
        rows = order.reshape(self._task.stages, self._task.pipelines)
        return tuple(tuple(map(int, row)) for row in rows)

    def _try(self, stages: Stages, moves: int, hot_share: float) -> None:
        """Anneal a plan, and note what comes of it."""
        layout, best = _layout(stages), _layout(stages)
        cooling = Cooling(moves, hot_share * self._scale_s, COLD_SHARE * self._scale_s, PAIR_SHARE)
        anneal(self._links, layout, best, cooling, self._state)
        self.moves += moves
        self._note(tuple(tuple(map(int, row)) for row in best.device_sp))

    def _note(self, stages: Stages) -> None:
        seconds = cost_of(self._costs, stages).seconds
        self._pool.append((seconds, stages))
        self._pool = sorted(set(self._pool))[:POOL]


def _layout(stages: Stages) -> Layout:
    """A layout that moves may change, paired as the places are."""
    device_sp = np.array(stages, dtype=np.int64)
    boundaries, width = len(stages) - 1, len(stages[0])
    next_bp = np.tile(np.arange(width, dtype=np.int64), (boundaries, 1))
    return Layout(device_sp, next_bp.reshape(boundaries, width))
