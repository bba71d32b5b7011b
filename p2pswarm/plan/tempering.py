"""Plans that are annealed until the time is over, as many at once as there are threads.

Small networks by parallel tempering: several plans at temperatures of their own, which neighbours
change as chance allows, so that one that is stuck in the cold warms up again. Large ones have no
time for that: each thread cools one plan. The best are annealed again at the end.

Annealing is compiled and lets other threads run, so threads are processors here. A plan has random
numbers of its own, and what was found is noted in the order of the plans: which thread was first
changes nothing.

Units:   seconds of the clock; temperatures as shares of what a plan by chance costs.
Errors:  none.
Source:  Swendsen and Wang, Physical Review Letters 57, 1986 (replicas that change temperatures).
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Self

import numpy as np

from p2pswarm.plan.annealing import Cooling, Ints, Links, RandomState, anneal
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, Stages, cost_of, pipelines_of

Clock = Callable[[], float]

POOL = 3  # plans that are polished
POLISH_SHARE = 0.1  # of the time
MEANS, COLD_MEANS = 1.0, 0.1  # how much means count; see bench/LOG.md
PAIR_SHARE, OWN_SHARE = 0.4, 0.5
REPLICAS = 8
LADDER = 2e-3, 2e-2  # the temperatures, as shares of the cost of a plan by chance
WARM_SHARE, COLD_SHARE = 4e-3, 2e-4
TEMPERED_MOVES = 100_000  # for each device: with fewer, plans are cooled
SLICE_MOVES = 20_000  # between two exchanges


class Tempering:
    """Anneals plans of one network, and keeps the best; to be left with `with`."""

    def __init__(self, costs: LinkCosts, task: DtfmTask, seed: int, threads: int) -> None:
        self._costs = costs
        self._task = task
        self._links = Links(costs.data_s_nn, costs.pipeline_s_nn)
        self._chance = np.random.default_rng(seed)
        self._lucks: list[RandomState] = []
        """Of each plan that is annealed beside others."""
        self._threads = min(threads, REPLICAS)
        self._workers = ThreadPoolExecutor(self._threads, "anneal")
        self._pool: list[tuple[float, Stages]] = []
        self.moves = 0
        """How many moves were tried."""
        self._scale_s = cost_of(costs, _as_stages(self._by_chance())).seconds
        self._note(self._by_chance())
        self._note(self._by_speed())
        self._anneal([self._by_chance()], 1, [LADDER])  # compiles

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(self, *_: object) -> None:
        """Let the threads go."""
        self._workers.shutdown()

    @property
    def best(self) -> Stages:
        """The cheapest plan so far."""
        return self._pool[0][1]

    def run(self, known: Stages | None, ends_s: float, clock: Clock) -> None:
        """Anneal until `ends_s`; `known` is a plan that somebody else found."""
        if known is not None:
            self._note(np.array(known, dtype=np.int64))
        begun_s = clock()
        plans = [self._by_chance() for _ in range(self._threads)]
        self._anneal(plans, SLICE_MOVES, [(LADDER[1], LADDER[1])] * self._threads)
        each_s = max((clock() - begun_s) / SLICE_MOVES, 1e-9)  # of a move of each thread
        left_s = max(ends_s - clock(), 0.0)
        devices = self._task.stages * self._task.pipelines
        if self._threads * left_s / each_s < TEMPERED_MOVES * devices:
            moves = int((1 - POLISH_SHARE) * left_s / each_s)
            if moves > SLICE_MOVES:
                plans = [np.array(self.best, dtype=np.int64) for _ in plans]
                self._anneal(plans, moves, [(WARM_SHARE, COLD_SHARE)] * self._threads)
        else:
            self._temper(ends_s - POLISH_SHARE * left_s, clock)
        moves = max(SLICE_MOVES, int(POLISH_SHARE * left_s / each_s / POOL))
        turn = 0
        while clock() + moves * each_s < ends_s:
            turns = range(turn, turn + self._threads)
            again = [self._pool[each % len(self._pool)][1] for each in turns]
            plans = [np.array(pipelines_of(self._costs, one)) for one in again]
            self._anneal(plans, moves, [(LADDER[0], COLD_SHARE)] * self._threads)
            turn += self._threads

    def _temper(self, ends_s: float, clock: Clock) -> None:
        heats = np.geomspace(*LADDER, REPLICAS)
        ladder = [(heat, heat) for heat in heats]
        replicas = [self._by_chance() for _ in heats]
        replicas[0] = np.array(self.best, dtype=np.int64)
        first, now_s, round_s = 0, clock(), 0.0
        while now_s + round_s < ends_s:
            self._anneal(replicas, SLICE_MOVES, ladder)
            weighed_s = [self._weighed_s(device_sp) for device_sp in replicas]
            for cold in range(first, REPLICAS - 1, 2):
                warm = cold + 1
                gain_s = weighed_s[cold] - weighed_s[warm]
                odds = gain_s / self._scale_s * (1 / heats[cold] - 1 / heats[warm])
                if np.log(self._chance.random()) < odds:
                    replicas[cold], replicas[warm] = replicas[warm], replicas[cold]
            first = 1 - first
            last_s, now_s = now_s, clock()
            round_s = now_s - last_s

    def _weighed_s(self, device_sp: Ints) -> float:
        """What the annealing compares at a constant temperature."""
        groups_s = [self._costs.data_s_nn[np.ix_(row, row)].sum(axis=1).max() for row in device_sp]
        links_bp = self._costs.pipeline_s_nn[device_sp[:-1], device_sp[1:]]
        slowest_s = np.max(groups_s) + links_bp.max(axis=1).sum()
        return float(slowest_s + MEANS * (np.mean(groups_s) + links_bp.mean(axis=1).sum()))

    def _by_chance(self) -> Ints:
        order = self._chance.permutation(self._task.stages * self._task.pipelines)
        return order.reshape(self._task.stages, self._task.pipelines)

    def _by_speed(self) -> Ints:
        """Slow lines together, so that few boundaries have them."""
        nearest_nn = np.sort(self._costs.pipeline_s_nn, axis=1)  # the first is a device to itself
        order = np.argsort(-nearest_nn[:, min(self._task.pipelines, len(nearest_nn) - 1)])
        return order.reshape(self._task.stages, self._task.pipelines)

    def _anneal(
        self, plans: Sequence[Ints], moves: int, heats: Sequence[tuple[float, float]]
    ) -> None:
        """Anneal plans in place, from hot to cold each, and note the best on the way."""
        while len(self._lucks) < len(plans):
            self._lucks.append(self._chance.integers(1, 2**63, 1, dtype=np.uint64))

        def one(number: int) -> tuple[float, Ints]:
            hot, cold = heats[number]
            means = MEANS if hot == cold else COLD_MEANS
            heat_s = hot * self._scale_s, cold * self._scale_s
            cooling = Cooling(moves, *heat_s, PAIR_SHARE, OWN_SHARE, MEANS, means)
            best_sp = plans[number].copy()
            luck = self._lucks[number]
            return anneal(self._links, plans[number], best_sp, cooling, luck), best_sp

        for least_s, best_sp in self._workers.map(one, range(len(plans))):
            if len(self._pool) < POOL or least_s < self._pool[-1][0]:
                self._note(best_sp)
        self.moves += moves * len(plans)

    def _note(self, device_sp: Ints) -> None:
        stages = _as_stages(device_sp)
        seconds = cost_of(self._costs, stages).seconds
        self._pool.append((seconds, stages))
        self._pool = sorted(set(self._pool))[:POOL]


def _as_stages(device_sp: Ints) -> Stages:
    return tuple(tuple(map(int, row)) for row in device_sp)
