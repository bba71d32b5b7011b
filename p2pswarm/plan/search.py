"""The cheapest plan that can be found in a given time, and what no plan can cost less.

Where few classes of alike devices are, an exact solver proves the cheapest plan. What it does not
prove in its share of the time is annealed, at several temperatures at once. The best plan at any
time is an answer; its bound says how good it is at least.

Units:   seconds, of the clock and of an iteration.
Errors:  Unusable for a time in which nothing can be found.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from p2pswarm.errors import Unusable
from p2pswarm.plan import exact
from p2pswarm.plan.annealing import Cooling, Ints, Links, RandomState, anneal
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
POOL = 3  # plans that are polished
POLISH_SHARE = 0.1  # of the time
MEANS, COLD_MEANS = 1.0, 0.1  # how much means count; see bench/LOG.md
PAIR_SHARE, OWN_SHARE = 0.4, 0.5
REPLICAS = 8
LADDER = 2e-3, 2e-2  # the temperatures, as shares of the cost of a plan by chance
HOT_SHARE, COLD_SHARE = 0.03, 2e-4
TEMPERED_MOVES = 100_000  # for each device: with fewer, one plan is cooled
SLICE_MOVES = 20_000  # between two exchanges


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
    """Plans that are annealed until the time is over.

    Small networks by parallel tempering: several plans at temperatures of their own, which
    neighbours change as chance allows, so that one that is stuck in the cold warms up again. Large
    ones have no time for that: one plan is cooled.
    """

    def __init__(self, costs: LinkCosts, task: DtfmTask, seed: int) -> None:
        self._costs = costs
        self._task = task
        self._links = Links(costs.data_s_nn, costs.pipeline_s_nn)
        self._chance = np.random.default_rng(seed)
        self._luck: RandomState = self._chance.integers(1, 2**63, 1, dtype=np.uint64)
        self._pool: list[tuple[float, Stages]] = []
        self.moves = 0
        """How many moves were tried."""
        self._scale_s = cost_of(costs, _as_stages(self._by_chance())).seconds
        self._note(self._by_chance())
        self._try(self._by_chance(), 1, LADDER[0], LADDER[1])  # compiles

    @property
    def best(self) -> Stages:
        """The cheapest plan so far."""
        return self._pool[0][1]

    def run(self, known: Stages | None, ends_s: float, clock: Clock) -> None:
        """Anneal until `ends_s`; `known` is a plan that somebody else found."""
        if known is not None:
            self._note(np.array(known, dtype=np.int64))
        begun_s = clock()
        self._try(self._by_chance(), SLICE_MOVES, LADDER[1], LADDER[1])
        each_s = max((clock() - begun_s) / SLICE_MOVES, 1e-9)
        left_s = max(ends_s - clock(), 0.0)
        devices = self._task.stages * self._task.pipelines
        if left_s / each_s < TEMPERED_MOVES * devices:
            moves = int((1 - POLISH_SHARE) * left_s / each_s)
            if moves > SLICE_MOVES:
                self._try(self._by_chance(), moves, HOT_SHARE, COLD_SHARE)
        else:
            self._temper(ends_s - POLISH_SHARE * left_s, each_s, clock)
        moves = max(SLICE_MOVES, int(POLISH_SHARE * left_s / each_s / POOL))
        turn = 0
        while clock() + moves * each_s < ends_s:
            again = self._pool[turn % len(self._pool)][1]
            self._try(np.array(pipelines_of(self._costs, again)), moves, LADDER[0], COLD_SHARE)
            turn += 1

    def _temper(self, ends_s: float, each_s: float, clock: Clock) -> None:
        heats = np.geomspace(*LADDER, REPLICAS)
        replicas = [self._by_chance() for _ in heats]
        first = 0
        while clock() + REPLICAS * SLICE_MOVES * each_s < ends_s:
            for heat, device_sp in zip(heats, replicas, strict=True):
                self._try(device_sp, SLICE_MOVES, heat, heat)
            weighed_s = [self._weighed_s(device_sp) for device_sp in replicas]
            for cold in range(first, REPLICAS - 1, 2):
                warm = cold + 1
                gain_s = weighed_s[cold] - weighed_s[warm]
                odds = gain_s / self._scale_s * (1 / heats[cold] - 1 / heats[warm])
                if np.log(self._chance.random()) < odds:
                    replicas[cold], replicas[warm] = replicas[warm], replicas[cold]
            first = 1 - first

    def _weighed_s(self, device_sp: Ints) -> float:
        """What the annealing compares at a constant temperature."""
        groups_s = [self._costs.data_s_nn[np.ix_(row, row)].sum(axis=1).max() for row in device_sp]
        links_bp = self._costs.pipeline_s_nn[device_sp[:-1], device_sp[1:]]
        slowest_s = np.max(groups_s) + links_bp.max(axis=1).sum()
        return float(slowest_s + MEANS * (np.mean(groups_s) + links_bp.mean(axis=1).sum()))

    def _by_chance(self) -> Ints:
        order = self._chance.permutation(self._task.stages * self._task.pipelines)
        return order.reshape(self._task.stages, self._task.pipelines)

    def _try(self, device_sp: Ints, moves: int, hot: float, cold: float) -> None:
        """Anneal a plan in place, and note the best on the way."""
        best_sp = device_sp.copy()
        last_means = MEANS if hot == cold else COLD_MEANS
        heats_s = hot * self._scale_s, cold * self._scale_s
        cooling = Cooling(moves, *heats_s, PAIR_SHARE, OWN_SHARE, MEANS, last_means)
        least_s = anneal(self._links, device_sp, best_sp, cooling, self._luck)
        self.moves += moves
        if len(self._pool) < POOL or least_s < self._pool[-1][0]:
            self._note(best_sp)

    def _note(self, device_sp: Ints) -> None:
        stages = _as_stages(device_sp)
        seconds = cost_of(self._costs, stages).seconds
        self._pool.append((seconds, stages))
        self._pool = sorted(set(self._pool))[:POOL]


def _as_stages(device_sp: Ints) -> Stages:
    return tuple(tuple(map(int, row)) for row in device_sp)
