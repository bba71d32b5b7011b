"""The cheapest plan by DT-FM's cost, with proof, where many devices are alike.

Devices that can change places are a class, so a plan is how many of each class every stage has.
The stages are named by their place in the pipeline, so no order is to be found. The pairing of two
stages is a flow between their classes that uses no link over the boundary's level.

Units:   seconds; the solver counts whole ticks.
Errors:  none; a search that finds nothing in time returns no stages.
Source:  CP-SAT of OR-Tools; the cost is that of `dtfm.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, Stages
from p2pswarm.plan.network import Floats, alike

TICK_S = 1e-6
WEIGHT_MAX = 2**40  # sums of these and of counts stay far within the solver's 64 bits


@dataclass(frozen=True, slots=True)
class Exact:
    """What the solver found."""

    stages: Stages | None
    bound_s: float
    """No plan costs less."""
    proven: bool
    """Whether the stages are the cheapest there are."""


def solve(
    costs: LinkCosts, task: DtfmTask, classes: Sequence[Sequence[int]], limit_s: float
) -> Exact:
    """Search for at most `limit_s`. Repeats from the same numbers if it ends before that.

    `classes`: the devices that are alike, all of them.
    """
    return _Model(costs, task, classes).solve(limit_s)


class _Model:
    """The variables and rules, for one network and task. Suffixes: stage, class."""

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
        over = [
            each
            for before, after in pairwise(self._counts_sc)
            for each in self._over(before, after)
        ]
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
        """How many of each class are in each stage."""
        task = self._task
        counts_sc = [
            [
                self._model.new_int_var(0, min(len(members), task.pipelines), "")
                for members in self._classes
            ]
            for _ in range(task.stages)
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
        """Whether one boundary is at each level but the first, or over it.

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
