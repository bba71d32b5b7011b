"""DT-FM's cost of an iteration, to the letter: data parallel, then a serial pipeline.

All devices of one stage form a data-parallel group. A group's cost is that of its slowest device,
which exchanges its share with every other one in turn. Between two stages each pipeline takes one
link; the pairing is the one whose slowest link is fastest. The stages stand in the order that is
cheapest in all. Computing, memory and overlap are not in it.

Source:  Yuan et al., Decentralized Training of Foundation Models in Heterogeneous Environments,
         NeurIPS 2022, section 3. The authors' program pairs devices by a matching that may be worse
         than the cost it names; here the pairing is the one that has the cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.network import DeviceNetwork, Floats

LINK_S_MAX = 1e8  # three years: with more, sums in microseconds pass the solver's 64 bits
ORDERED_MAX = 12  # stages whose best order is looked for: 2^n * n^2 sums

Stages = tuple[tuple[int, ...], ...]
"""The devices of each stage, in the pipeline's order."""


@dataclass(frozen=True, slots=True)
class DtfmTask:
    """What is sent in an iteration."""

    stages: int
    pipelines: int
    """Devices in a stage."""
    gradient_gbit: float
    """Of one stage."""
    activation_gbit: float
    """Over one link between stages, of all microbatches, one way."""


@dataclass(frozen=True, slots=True, eq=False)
class LinkCosts:
    """What each link costs, for each of its two uses, in seconds and both directions."""

    data_s_nn: Floats
    pipeline_s_nn: Floats

    @classmethod
    def of(cls, network: DeviceNetwork, task: DtfmTask) -> "LinkCosts":
        """The costs in a network; Unusable if the task needs another number of devices."""
        if task.stages < 1 or task.pipelines < 1:
            raise Unusable("a plan has one stage and one pipeline at least")
        needed = task.stages * task.pipelines
        if needed != network.devices:
            raise Unusable(
                f"{task.stages} stages of {task.pipelines} devices are {needed} devices, and the "
                f"network has {network.devices}: choose stages * pipelines = {network.devices}"
            )
        for gbit, name in ((task.gradient_gbit, "gradient"), (task.activation_gbit, "activation")):
            if not 0 <= gbit < float("inf"):
                raise Unusable(f"{name}_gbit is {gbit:g}: give the size in Gbit")
        share_gbit = task.gradient_gbit / task.pipelines
        data_s_nn = 2 * (network.latency_s_nn + share_gbit / network.gbps_nn)
        pipeline_s_nn = 2 * (network.latency_s_nn + task.activation_gbit / network.gbps_nn)
        longest_s_nn = np.maximum(data_s_nn, pipeline_s_nn)
        one, other = np.unravel_index(int(longest_s_nn.argmax()), longest_s_nn.shape)
        if not longest_s_nn[one, other] <= LINK_S_MAX:
            raise Unusable(
                f"the link between devices {one} and {other} takes {longest_s_nn[one, other]:g} s: "
                f"give a latency and a rate with which it takes {LINK_S_MAX:g} s at most"
            )
        return cls(data_s_nn, pipeline_s_nn)


@dataclass(frozen=True, slots=True)
class DtfmCost:
    """The cost of a plan."""

    data_s: float
    """Of the slowest device of the slowest group."""
    pipeline_s: float

    @property
    def seconds(self) -> float:
        """The cost of an iteration."""
        return self.data_s + self.pipeline_s


def cost_of(costs: LinkCosts, stages: Stages) -> DtfmCost:
    """The cost of stages in this order."""
    data_s = max(float(costs.data_s_nn[np.ix_(each, each)].sum(axis=1).max()) for each in stages)
    boundaries_s = [boundary_s(costs, before, after) for before, after in pairwise(stages)]
    return DtfmCost(data_s, sum(boundaries_s))


def boundary_s(costs: LinkCosts, one: Sequence[int], other: Sequence[int]) -> float:
    """The slowest link of the best pairing of two stages."""
    cost_pp = costs.pipeline_s_nn[np.ix_(one, other)]
    levels = np.unique(cost_pp)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if pairing(cost_pp <= levels[middle]) is None:
            low = middle + 1
        else:
            high = middle
    return float(levels[low])


def pairing(allowed_pp: NDArray[np.bool_]) -> list[int] | None:
    """For each row a column of its own that it allows, by Kuhn's augmenting paths; else None."""
    taken: list[int | None] = [None] * allowed_pp.shape[1]

    def place(row: int, seen: set[int]) -> bool:
        for column in np.flatnonzero(allowed_pp[row]):
            if column in seen:
                continue
            seen.add(int(column))
            holder = taken[column]
            if holder is None or place(holder, seen):
                taken[column] = row
                return True
        return False

    if not all(place(row, set()) for row in range(len(allowed_pp))):
        return None
    columns = {row: column for column, row in enumerate(taken)}
    return [columns[row] for row in range(len(allowed_pp))]


def pipelines_of(costs: LinkCosts, stages: Stages) -> Stages:
    """The same stages, each in such an order that the devices at one place form a pipeline."""
    placed = [stages[0]]
    for following in stages[1:]:
        before = placed[-1]
        cost_pp = costs.pipeline_s_nn[np.ix_(before, following)]
        columns = pairing(cost_pp <= boundary_s(costs, before, following))
        if columns is None:
            raise AssertionError("the level was that of a pairing")
        placed.append(tuple(following[column] for column in columns))
    return tuple(placed)


def best_order(costs: LinkCosts, stages: Stages) -> Stages:
    """The stages in the cheapest order: exactly, up to ORDERED_MAX of them; else as they are.

    An open path through all, by dynamic programming over subsets (Held and Karp, 1962).
    """
    n = len(stages)
    if n > ORDERED_MAX:
        return stages
    cost_s = [[boundary_s(costs, a, b) if a is not b else 0.0 for b in stages] for a in stages]
    paths: dict[tuple[int, int], tuple[float, int]] = {(1 << i, i): (0.0, -1) for i in range(n)}
    for visited in range(1, 1 << n):
        for last in range(n):
            if (visited, last) not in paths:
                continue
            so_far_s = paths[visited, last][0]
            for following in range(n):
                key = (visited | 1 << following, following)
                via = so_far_s + cost_s[last][following]
                if not visited >> following & 1 and (key not in paths or via < paths[key][0]):
                    paths[key] = via, last
    everything = (1 << n) - 1
    last = min(range(n), key=lambda each: paths[everything, each][0])
    visited, order = everything, list[int]()
    while last >= 0:
        order.append(last)
        visited, last = visited & ~(1 << last), paths[visited, last][1]
    return tuple(stages[each] for each in order)
