"""What no plan can cost less by DT-FM's cost, whatever the network is.

Three facts hold for each level t, and for the boundaries of a plan that cost at most t:

1. They join the stages to runs. A run of two stages or more has a link of at most t for each of its
   devices, and two for each device that is not in the run's first or last stage. So the numbers of
   devices with such links say how many such boundaries there can be.
2. Call the parts into which the links of at most t join the devices islands. A pipeline does not
   leave its island within a run, so a run of L stages has as many devices of an island in each of
   its stages: at most the island's size / L. And the size is a sum of the lengths of runs.
3. So a device in a run of L stages exchanges with size / L devices of each island at most. What its
   cheapest such partners cost is at most what the plan's groups cost.

For groups of a given cost the third says which lengths can be, the lengths say how many boundaries
of at most t there are, and the levels say what all of them cost. The least sum is the bound.

Units:   seconds.
Shapes:  device (n), rank (k).
Errors:  none.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from p2pswarm.plan.compiled import compiled
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts
from p2pswarm.plan.network import Floats, Ints

ISLANDS_MAX = 64  # sets of islands that are looked at: each costs some hundredths of a second
ROUNDING = 1e-9  # relative: sums of the same links in two orders
RUNS_MAX = 16  # stages whose runs are enumerated: 231 ways; with more the second fact is left out


class _Spell(NamedTuple):
    """Levels between which islands are looked upon as the same; those of the last are largest."""

    from_s: float
    island_n: Ints


def least_cost_s(costs: LinkCosts, task: DtfmTask) -> float:
    """A bound of the cost of every plan."""
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
        most_l = np.minimum.accumulate(allowed_l[::-1])[
            ::-1
        ]  # as many as at a higher level at most
        # At the last level all are one island, with two links each: every boundary may be there.
        first = np.searchsorted(most_l, range(1, task.stages))
        least_s = min(least_s, groups_s + float(levels[first].sum()))
    return least_s


def _near_most(nearest_kn: Floats, task: DtfmTask, level_s: float) -> int:
    """How many boundaries there can be of a level at most, by the first fact."""
    once, twice = (
        int(np.searchsorted(row, level_s, "right")) // task.pipelines for row in nearest_kn
    )
    runs = range(1, task.stages)
    return max(0, *(min(once - count, twice + count, task.stages - count) for count in runs))


def _allowed(near: int, need_m: Sequence[float], groups_s: float) -> int:
    """How many such boundaries there can be, if groups cost so much at most."""
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
    """Which links, from the cheapest on, join what was apart (Kruskal)."""
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
        partners_n = _partners_s(
            costs.data_s_nn, order_nk, island_n, sizes // length, task.pipelines
        )
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
    """Whether each size but 0 is a sum of the parts, each as often as one likes."""
    reached = [True] + [False] * max(sizes)
    for size in range(1, len(reached)):
        reached[size] = any(reached[size - part] for part in set(parts) if part <= size)
    return all(reached[size] for size in sizes)
