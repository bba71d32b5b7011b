"""The cheapest plan by DT-FM's cost: a search, a lower bound, and a proof for alike devices.

Where few classes of alike devices are, an exact solver proves the cheapest plan. What it does not
prove in its share of the time is annealed (`annealing.py`). The best plan at any time is an answer;
its bound says how good it is at least.

Shapes:  device (n), rank (k).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from p2pswarm.base.errors import Unusable
from p2pswarm.kernels.jit import compiled
from p2pswarm.plan.annealing import Clock, Tempering
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, Stages, best_order, cost_of, pipelines_of
from p2pswarm.plan.network import Floats, Ints, alike

ISLANDS_MAX = 64  # sets of islands that are looked at: each costs some hundredths of a second
ROUNDING = 1e-9  # relative: sums of the same links in two orders
RUNS_MAX = 16  # stages whose runs are enumerated: 231 ways; with more the second fact is left out


class _Spell(NamedTuple):
    """Levels between which islands are looked upon as the same; those of the last are largest."""

    from_s: float
    island_n: Ints


def least_cost_s(costs: LinkCosts, task: DtfmTask) -> float:
    """A bound of the cost of every plan, whatever the network is.

    Three facts hold for each level t, and for the boundaries of a plan that cost at most t:

    1. They join the stages to runs. A run of two stages or more has a link of at most t for each of
       its devices, and two for each device that is not in the run's first or last stage. So the
       numbers of devices with such links say how many such boundaries there can be.
    2. Call the parts into which the links of at most t join the devices islands. A pipeline does
       not leave its island within a run, so a run of L stages has as many devices of an island in
       each of its stages: at most the island's size / L. And the size is a sum of the lengths of
       runs.
    3. So a device in a run of L stages exchanges with size / L devices of each island at most. The
       cost of its cheapest such partners is at most that of the plan's groups.

    For groups of a given cost the third gives the lengths that can be, these give the number of
    boundaries of at most t, and the levels their cost. The least sum is the bound.
    """
    n = len(costs.data_s_nn)
    apart_nn = np.where(np.eye(n, dtype=bool), np.inf, 0.0)
    order_nk = np.argsort(costs.data_s_nn + apart_nn, axis=1, kind="stable")[:, : n - 1]
    cheapest_nk = np.take_along_axis(costs.data_s_nn, order_nk, axis=1)
    data_s = float(cheapest_nk[:, : task.pipelines - 1].sum(axis=1).max())
    if task.stages == 1:
        return data_s
    nearest_kn = np.sort(np.sort(costs.pipeline_s_nn + apart_nn, axis=1)[:, :2].T, axis=1)
    spells = _spells(costs.pipeline_s_nn) if task.stages <= RUNS_MAX else []
    levels = np.unique([*nearest_kn.ravel(), *(spell.from_s for spell in spells)])
    levels = levels[np.isfinite(levels)]
    near_l = [_near_most(nearest_kn, task, level) for level in levels]
    need_pm = [_groups_s(costs, order_nk, task, spell.island_n, data_s) for spell in spells]
    spell_l = np.searchsorted([spell.from_s for spell in spells], levels, "right") - 1
    least_s = float("inf")
    for groups_s in sorted({data_s, *(each for row in need_pm for each in row)} - {np.inf}):
        allowed_l = [
            _allowed(near, need_pm[spell] if spell >= 0 else [], groups_s)
            for near, spell in zip(near_l, spell_l, strict=True)
        ]
        # As many as at a higher level at most.
        most_l = np.minimum.accumulate(allowed_l[::-1])[::-1]
        # At the last level all are one island, with two links each: every boundary may be there.
        first = np.searchsorted(most_l, range(1, task.stages))
        least_s = min(least_s, groups_s + float(levels[first].sum()))
    return least_s


def _near_most(nearest_kn: Floats, task: DtfmTask, level_s: float) -> int:
    """Return how many boundaries there can be of a level at most, by the first fact."""
    once, twice = (
        int(np.searchsorted(row, level_s, "right")) // task.pipelines for row in nearest_kn
    )
    runs = range(1, task.stages)
    return max(0, *(min(once - count, twice + count, task.stages - count) for count in runs))


def _allowed(near: int, need_m: Sequence[float], groups_s: float) -> int:
    """Return how many such boundaries there can be, if groups cost so much at most."""
    while near > 0 and need_m and need_m[near] > groups_s * (1 + ROUNDING):
        near -= 1
    return near


def _spells(pipeline_s_nn: Floats) -> list[_Spell]:
    """The islands at rising levels."""
    before, after = np.triu_indices(len(pipeline_s_nn), 1)
    order = np.argsort(pipeline_s_nn[before, after], kind="stable")
    joins = _joins(len(pipeline_s_nn), before[order], after[order])
    pairs = [(int(before[order[join]]), int(after[order[join]])) for join in joins]
    levels = [float(pipeline_s_nn[pair]) for pair in pairs]
    last = [at for at, level in enumerate(levels) if levels[at + 1 : at + 2] != [level]]
    ends = {last[round(at)] for at in np.linspace(0, len(last) - 1, min(ISLANDS_MAX, len(last)))}
    spells, island_n, from_s = list[_Spell](), np.arange(len(pipeline_s_nn)), levels[0]
    for at, (one, other) in enumerate(pairs):
        island_n = np.where(island_n == island_n[other], island_n[one], island_n)
        if at in ends:
            spells.append(_Spell(from_s, island_n))
            from_s = levels[at + 1] if at + 1 < len(levels) else np.inf
    return spells


@compiled
def _joins(devices: int, before: Ints, after: Ints) -> Ints:
    """Return which links, from the cheapest on, join what was apart (Kruskal)."""
    above = np.arange(devices)
    joins = np.zeros(devices - 1, np.int64)
    count = 0
    for link in range(len(before)):
        one, other = before[link], after[link]
        while above[one] != one:
            one = above[one]
        while above[other] != other:
            other = above[other]
        if one != other:
            above[other] = one
            joins[count] = link
            count += 1
    return joins


def _groups_s(
    costs: LinkCosts, order_nk: Ints, task: DtfmTask, island_n: Ints, data_s: float
) -> list[float]:
    """What groups cost at least if so many boundaries are within islands: none, one, to all."""
    sizes = np.bincount(island_n, minlength=len(island_n))
    sorted_s: dict[int, Floats] = {}
    for length in range(1, task.stages + 1):
        most_i = sizes // length
        partners_n = _partners_s(costs.data_s_nn, order_nk, island_n, most_i, task.pipelines)
        sorted_s[length] = np.sort(partners_n)
    need_m = [data_s] + [np.inf] * (task.stages - 1)
    for runs in _partitions(task.stages, task.stages):
        boundaries = task.stages - len(runs)
        if _is_sum(runs, set(sizes.tolist())):
            ranks = [stages * task.pipelines - 1 for stages in accumulate(runs)]
            least_s = max(sorted_s[run][rank] for run, rank in zip(runs, ranks, strict=True))
            need_m[boundaries] = min(need_m[boundaries], max(data_s, float(least_s)))
    return need_m


@compiled
def _partners_s(
    data_s_nn: Floats, order_nk: Ints, island_n: Ints, most_i: Ints, pipelines: int
) -> Floats:
    """For each device its cheapest partners, if a group has at most so many of each island."""
    least_n = np.full(len(island_n), np.inf)
    for device in range(len(island_n)):
        left_i = most_i.copy()
        left_i[island_n[device]] -= 1
        if left_i[island_n[device]] < 0:
            continue
        total, partners = 0.0, 0
        for other in order_nk[device]:
            if partners == pipelines - 1:
                break
            if left_i[island_n[other]] > 0:
                left_i[island_n[other]] -= 1
                total += data_s_nn[device, other]
                partners += 1
        if partners == pipelines - 1:
            least_n[device] = total
    return least_n


def _partitions(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """The ways to write a number as a sum of falling numbers."""
    if number == 0:
        yield ()
    for first in range(min(number, most), 0, -1):
        for rest in _partitions(number - first, first):
            yield first, *rest


def _is_sum(parts: Sequence[int], sizes: set[int]) -> bool:
    """Return whether each size but 0 is a sum of the parts, each as often as one likes."""
    reached = [True] + [False] * max(sizes)
    for size in range(1, len(reached)):
        reached[size] = any(reached[size - part] for part in set(parts) if part <= size)
    return all(reached[size] for size in sizes)


TICK_S = 1e-6  # the solver counts whole ones
WEIGHT_MAX = 2**40  # sums of these and of counts stay far within the solver's 64 bits


@dataclass(frozen=True, slots=True)
class Exact:
    """What the solver found."""

    stages: Stages | None
    bound_s: float
    """No plan costs less."""
    proven: bool
    """True if the stages are the cheapest there are."""


def solve(
    costs: LinkCosts, task: DtfmTask, classes: Sequence[Sequence[int]], limit_s: float
) -> Exact:
    """Search for at most `limit_s`. Repeats from the same numbers if it ends before that.

    `classes`: the devices that are alike, all of them.
    """
    return _Model(costs, task, classes).solve(limit_s)


class _Model:
    """The variables and rules of CP-SAT, for one network and task. Suffixes: stage, class.

    Devices that can change places are a class, so a plan is how many of each class every stage has.
    The stages are named by their place in the pipeline, so no order is to be found. The pairing of
    two stages is a flow between their classes that uses no link over the boundary's level.
    """

    def __init__(self, costs: LinkCosts, task: DtfmTask, classes: Sequence[Sequence[int]]) -> None:
        self._task = task
        self._classes = classes
        self._data_cc = _between(self._classes, costs.data_s_nn)
        self._pipeline_cc = _between(self._classes, costs.pipeline_s_nn)
        self._model = cp_model.CpModel()
        self._counts_sc = self._counts()
        self._levels = sorted({ticks for row in self._pipeline_cc for ticks in row})
        """What a boundary may cost, in ticks."""
        slowest = self._slowest()
        pairs = pairwise(self._counts_sc)
        over = [each for before, after in pairs for each in self._over(before, after)]
        steps = [higher - lower for lower, higher in pairwise(self._levels)] * (task.stages - 1)
        self._break_symmetries()
        self._model.minimize(cp_model.LinearExpr.weighted_sum([slowest, *over], [1, *steps]))

    def solve(self, limit_s: float) -> Exact:
        """Run the solver."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = limit_s
        solver.parameters.num_workers = 1  # with more it does not repeat
        status = solver.solve(self._model)
        least_ticks = solver.best_objective_bound + self._levels[0] * (self._task.stages - 1)
        # Each of the summed costs was rounded, by half a tick at most.
        rounded_ticks = self._task.pipelines + self._task.stages
        bound_s = max(0.0, (least_ticks - rounded_ticks) * TICK_S)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return Exact(None, bound_s, proven=False)
        counts_sc = [[solver.value(count) for count in row] for row in self._counts_sc]
        return Exact(self._expanded(counts_sc), bound_s, status == cp_model.OPTIMAL)

    def _counts(self) -> list[list[cp_model.IntVar]]:
        """Return how many of each class are in each stage."""
        task = self._task
        most_c = [min(len(members), task.pipelines) for members in self._classes]
        counts_sc = [
            [self._model.new_int_var(0, most, "") for most in most_c] for _ in range(task.stages)
        ]
        for row in counts_sc:
            self._model.add(cp_model.LinearExpr.sum(row) == task.pipelines)
        for column, members in zip(zip(*counts_sc, strict=True), self._classes, strict=True):
            self._model.add(cp_model.LinearExpr.sum(column) == len(members))
        return counts_sc

    def _slowest(self) -> cp_model.IntVar:
        """The cost of the slowest device in any group, in ticks."""
        most = self._task.pipelines * max(map(max, self._data_cc))
        slowest = self._model.new_int_var(0, most, "data")
        for row in self._counts_sc:
            for kind, count in enumerate(row):
                present = self._model.new_bool_var("")
                self._model.add(count == 0).only_enforce_if(~present)
                self._model.add(count >= 1).only_enforce_if(present)
                others = cp_model.LinearExpr.weighted_sum(row, self._data_cc[kind])
                itself = self._data_cc[kind][kind]
                self._model.add(slowest >= others - itself).only_enforce_if(present)
        return slowest

    def _over(
        self, before: Sequence[cp_model.IntVar], after: Sequence[cp_model.IntVar]
    ) -> list[cp_model.IntVar]:
        """Return whether one boundary is at each level but the first, or over it.

        A pairing of the two stages that uses no link over its level must exist.
        """
        over = [self._model.new_bool_var("") for _ in self._levels[1:]]
        for lower, higher in pairwise(over):
            self._model.add_implication(higher, lower)
        rank = {ticks: place for place, ticks in enumerate(self._levels)}
        flow_cc = [
            [
                self._model.new_int_var(0, min(len(one), len(other), self._task.pipelines), "")
                for other in self._classes
            ]
            for one in self._classes
        ]
        for a, row in enumerate(flow_cc):
            self._model.add(cp_model.LinearExpr.sum(row) == before[a])
            self._model.add(cp_model.LinearExpr.sum([each[a] for each in flow_cc]) == after[a])
            for b, flow in enumerate(row):
                if place := rank[self._pipeline_cc[a][b]]:
                    self._model.add(flow == 0).only_enforce_if(~over[place - 1])
        return over

    def _break_symmetries(self) -> None:
        """Of plans that differ in names only, keep one: whole classes, and the two directions."""
        base = self._task.pipelines + 1
        weights = [min(base**place, WEIGHT_MAX // base) for place in range(self._task.stages)]
        groups = _alike_classes(self._classes, self._data_cc, self._pipeline_cc)
        for group in groups:
            sums = [
                cp_model.LinearExpr.weighted_sum([row[kind] for row in self._counts_sc], weights)
                for kind in group
            ]
            for one, other in pairwise(sums):
                self._model.add(one >= other)
        # A sum over a whole group stays as it is when its classes change places.
        last = self._task.stages - 1
        counts = [row[kind] for kind in groups[0] for row in self._counts_sc]
        leans = [2 * place - last for _ in groups[0] for place in range(last + 1)]
        self._model.add(cp_model.LinearExpr.weighted_sum(counts, leans) <= 0)

    def _expanded(self, counts_sc: list[list[int]]) -> Stages:
        """Devices in the place of counts."""
        left = [iter(members) for members in self._classes]
        return tuple(
            tuple(next(left[kind]) for kind, count in enumerate(row) for _ in range(count))
            for row in counts_sc
        )


def _between(classes: Sequence[Sequence[int]], cost_s_nn: Floats) -> list[list[int]]:
    """The ticks between a member of one class and another member of each."""
    firsts = np.array([members[0] for members in classes])
    lasts = np.array([members[-1] for members in classes])
    ticks_cc = np.rint(cost_s_nn[np.ix_(firsts, lasts)] / TICK_S).astype(np.int64)
    return [[int(ticks) for ticks in row] for row in ticks_cc]


def _alike_classes(
    classes: Sequence[Sequence[int]], *ticks_xcc: Sequence[Sequence[int]]
) -> list[list[int]]:
    """Classes of one size that can change places as a whole."""
    sized = [np.array(ticks_cc, dtype=np.float64) for ticks_cc in ticks_xcc]
    groups: list[list[int]] = []
    for together in alike(sized):
        kinds: dict[tuple[int, ...], list[int]] = {}
        for kind in together:
            itself = (len(classes[kind]), *(ticks_cc[kind][kind] for ticks_cc in ticks_xcc))
            kinds.setdefault(itself, []).append(kind)
        groups.extend(kinds.values())
    return groups


CLASSES_MAX = 12  # with more the solver's model is larger than what it proves in a minute
EXACT_SHARE = 0.6  # of the time, for a proof


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


@dataclass(frozen=True, slots=True)
class SearchBudget:
    """What a search may take."""

    limit_s: float
    seed: int
    clock: Clock
    threads: int = 1
    """So many plans are annealed at a time."""


def search(costs: LinkCosts, task: DtfmTask, effort: SearchBudget) -> Plan:
    """Search until the time is over, or a plan is proven.

    The first search on a machine compiles for some seconds more.
    """
    limit_s, clock = effort.limit_s, effort.clock
    if not limit_s > 0:
        raise Unusable(f"a search of {limit_s:g} s finds nothing: give it a second at least")
    begun_s = clock()
    found, bound_s = None, least_cost_s(costs, task)
    classes = alike((costs.data_s_nn, costs.pipeline_s_nn), CLASSES_MAX)
    if len(classes) <= CLASSES_MAX:
        solved = solve(costs, task, classes, EXACT_SHARE * limit_s)
        found, bound_s = solved.stages, max(bound_s, solved.bound_s)
        if solved.proven and found is not None:
            return _plan(costs, found, bound_s, 0, proven=True)
    left_s = limit_s - (clock() - begun_s)
    with Tempering(costs, task, effort.seed, effort.threads) as annealing:
        annealing.run(found, clock() + left_s, clock)
        return _plan(costs, annealing.best, bound_s, annealing.moves, proven=False)


def _plan(costs: LinkCosts, stages: Stages, bound_s: float, moves: int, *, proven: bool) -> Plan:
    ordered = pipelines_of(costs, best_order(costs, stages))
    seconds = cost_of(costs, ordered).seconds
    return Plan(ordered, seconds, seconds if proven else min(bound_s, seconds), proven, moves)
