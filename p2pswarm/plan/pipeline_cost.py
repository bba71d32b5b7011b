"""What a training step takes when transfers, computing and all microbatches overlap.

A stage is as fast as its devices together, because each microbatch goes to whoever is free; a
boundary carries what the lines and links of both sides let through. The slowest of them sets the
pace; the first microbatch fills the pipeline and the last drains it; then every stage averages.

Units:   seconds, bytes; microbatches per second for rates.
Source:  docs/placement.md; the flow: Goldberg and Tarjan's push-relabel, as OR-Tools has it.
"""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ortools.graph.python import max_flow  # type: ignore[import-untyped]

from p2pswarm.plan.fleet import BYTES_PER_GBIT, DeviceFleet, WorkLoad
from p2pswarm.plan.network import Floats
from p2pswarm.plan.pipeline_annealing import Draft, Needs, device_rate, parts_of

FLOW_UNITS = 1e9  # of the pace, in whole numbers
USED_LEAST = 1e-3  # of a link's share of the pace: less needs no connection


@dataclass(frozen=True, slots=True, eq=False)
class StepCost:
    """What a step takes, and why."""

    pace_s: float
    """Between two microbatches, at the slowest place."""
    fill_s: float
    """The way of one microbatch there and back."""
    averaging_s: float
    seconds: float
    limit: str
    """What sets the pace, in words."""
    busy_s: tuple[float, ...]
    """The share of each stage's rate that is used."""
    flows: dict[tuple[int, int], float]
    """Microbatches a second over each link that is used."""


@dataclass(frozen=True, slots=True)
class PlannedEdge:
    """A link between devices of two neighbouring stages that a plan uses."""

    one: int
    """The device of the earlier stage."""
    other: int
    rate_per_s: float
    """Microbatches, there and back."""
    connections: int
    """As many as carry them."""


def needs_of(fleet: DeviceFleet, load: WorkLoad) -> Needs:
    """The numbers, as the annealing takes them."""
    each = max(load.boundary_values, 1.0)
    numbers = (
        load.microbatches,
        max(load.boundary_bytes, 1.0),
        load.codec.values_per_s / each,
        load.held_bytes_per_value,
        load.working_bytes,
        load.averaging_overlaps,
        load.tied_values,
    )
    return Needs(
        fleet.flops_n,
        fleet.memory_bytes_n,
        fleet.access_bytes_n,
        fleet.links_bytes_nn,
        fleet.network.latency_s_nn,
        load.flops_k,
        load.values_k,
        load.averaging_bytes_k,
        np.array(numbers, dtype=np.float64),
    )


def step_cost(fleet: DeviceFleet, load: WorkLoad, draft: Draft) -> StepCost:
    """The cost of a plan, its pace by the largest flow that all lines and links let through."""
    needs = needs_of(fleet, load)
    parts = parts_of(needs, draft)
    pace, flows = _largest_flow(needs, draft)
    fill_s = float(parts.stages_sx[:, 1].sum() + parts.boundaries_bx[:, 1].sum())
    averaging_s = float(parts.stages_sx[:, 2].max())
    pace_s = 1.0 / pace if pace > 0 else float("inf")
    work_s = fill_s + (load.microbatches - 1) * pace_s
    return StepCost(
        pace_s,
        fill_s,
        averaging_s,
        load.with_averaging(work_s, averaging_s),
        _limit(fleet, load, draft, parts.stages_sx[:, 0], pace),
        tuple(pace / rate if rate > 0 else 1.0 for rate in parts.stages_sx[:, 0]),
        flows,
    )


def connections_of(fleet: DeviceFleet, load: WorkLoad, cost: StepCost) -> list[int]:
    """The connections that each device needs for its links to carry what the plan sends."""
    needed = [1] * len(fleet.names)
    for edge in edges_of(fleet, load, cost):
        for device in (edge.one, edge.other):
            needed[device] = max(needed[device], edge.connections)
    return needed


def edges_of(fleet: DeviceFleet, load: WorkLoad, cost: StepCost) -> list[PlannedEdge]:
    """The links that a plan uses, with the connections that each needs, the busiest first."""
    edges = []
    for (one, other), rate in cost.flows.items():
        nbytes = rate * load.boundary_bytes
        single = fleet.network.gbps_nn[one, other] * BYTES_PER_GBIT
        count = min(fleet.connections, max(1, int(np.ceil(nbytes / single - USED_LEAST))))
        edges.append(PlannedEdge(one, other, rate, count))
    return sorted(edges, key=lambda edge: (-edge.rate_per_s, edge.one, edge.other))


def _largest_flow(needs: Needs, draft: Draft) -> tuple[float, dict[tuple[int, int], float]]:
    """The microbatches a second that get through all stages, and over which links."""
    stages = len(draft.borders_s) - 1
    members = [np.flatnonzero(draft.stage_n == stage) for stage in range(stages)]
    rates = {
        int(device): device_rate(needs, draft, int(device), stage)
        for stage, group in enumerate(members)
        for device in group
    }
    most = max((sum(rates[int(device)] for device in group) for group in members), default=0.0)
    if most <= 0:
        return 0.0, {}
    unit = FLOW_UNITS / most
    n = len(draft.stage_n)
    source, sink = 2 * n, 2 * n + 1
    flow = max_flow.SimpleMaxFlow()
    for device, rate in rates.items():
        flow.add_arc_with_capacity(device, n + device, int(rate * unit))
    for begins in members[0]:
        flow.add_arc_with_capacity(source, int(begins), int(FLOW_UNITS))
    for ends in members[-1]:
        flow.add_arc_with_capacity(n + int(ends), sink, int(FLOW_UNITS))
    arcs = {}
    for befores, afters in pairwise(members):
        for one in befores:
            for other in afters:
                link = min(needs.links_nn[one, other] / needs.numbers[1], most)
                arc = flow.add_arc_with_capacity(n + int(one), int(other), int(link * unit))
                arcs[int(one), int(other)] = arc
    if flow.solve(source, sink) != flow.OPTIMAL:
        return 0.0, {}
    pace = flow.optimal_flow() / unit
    used = {link: flow.flow(arc) / unit for link, arc in arcs.items()}
    return pace, {link: rate for link, rate in used.items() if rate > USED_LEAST * pace}


def _limit(fleet: DeviceFleet, load: WorkLoad, draft: Draft, rates_s: Floats, pace: float) -> str:
    """Return what sets the pace."""
    stage = int(np.argmin(rates_s))
    if pace < 0.99 * rates_s[stage]:
        return "links between stages: no stage's devices are busy all the time"
    first, after = draft.borders_s[stage], draft.borders_s[stage + 1]
    flops = load.flops_k[first:after].sum()
    group = np.flatnonzero(draft.stage_n == stage)
    computing = sum(fleet.flops_n[device] / flops for device in group)
    what = "computing" if rates_s[stage] > 0.99 * computing else "the lines of its devices"
    return f"{what} in stage {stage}"
