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
SLOWEST_SHARE = 0.99  # of a rate: as good as all of it
AT_ONCE = 1e24  # operations a second: no microbatch takes any time
TERA = 1e12
MBIT_SHOWN = 1000  # beyond, in Gbit/s
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
    slowest: str
    """What of which device sets the pace, with its number."""
    computing_pace_s: float
    """As `pace_s`, if links and lines carried everything at once."""
    carrying_pace_s: float
    """As `pace_s`, if devices computed everything at once."""


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
        _slowest(fleet, needs, draft, parts.stages_sx[:, 0], pace),
        _computing_pace_s(needs, draft),
        _carrying_pace_s(needs, draft),
    )


def _computing_pace_s(needs: Needs, draft: Draft) -> float:
    """The time of a microbatch in the stage that computes longest; without devices for ever."""
    longest_s = 0.0
    for stage, (first, after) in enumerate(pairwise(draft.borders_s)):
        rate = needs.flops_n[draft.stage_n == stage].sum() / needs.flops_k[first:after].sum()
        longest_s = max(longest_s, float(1.0 / rate) if rate > 0 else float("inf"))
    return longest_s


def _carrying_pace_s(needs: Needs, draft: Draft) -> float:
    """The time of a microbatch where the most has to be carried; 0 with one stage."""
    if len(draft.borders_s) <= 2:  # noqa: PLR2004  one stage sends nothing
        return 0.0
    at_once = needs._replace(flops_n=np.full_like(needs.flops_n, AT_ONCE))
    pace, _ = _largest_flow(at_once, draft)
    return 1.0 / pace if pace > 0 else float("inf")


def _slowest(fleet: DeviceFleet, needs: Needs, draft: Draft, rates_s: Floats, pace: float) -> str:
    """The place that sets the pace: a device's line or processor, or a link."""
    stage = int(np.argmin(rates_s))
    if pace < SLOWEST_SHARE * rates_s[stage]:
        one, other = _narrowest(needs, draft)
        rate = needs.links_nn[one, other]
        return f"the link of {fleet.names[one]} and {fleet.names[other]}, {_rate_text(rate)}"
    group = [int(device) for device in np.flatnonzero(draft.stage_n == stage)]
    if not group:
        return f"stage {stage}, which has no device"
    device = min(group, key=lambda each: device_rate(needs, draft, each, stage))
    flops = needs.flops_k[draft.borders_s[stage] : draft.borders_s[stage + 1]].sum()
    rate, name = device_rate(needs, draft, device, stage), fleet.names[device]
    others = f", the slowest of {len(group)} in stage {stage}" if len(group) > 1 else ""
    if rate > SLOWEST_SHARE * needs.flops_n[device] / flops:
        return f"{name}'s computing, {needs.flops_n[device] / TERA:.3g} TFLOP/s{others}"
    sides = (1 if stage > 0 else 0) + (1 if stage < len(draft.borders_s) - 2 else 0)
    if rate < SLOWEST_SHARE * needs.access_n[device] / (needs.numbers[1] * sides):
        return f"the codec on {name}{others}"
    what = "uplink" if device in fleet.uplinks else "line"
    return f"{name}'s {what}, {_rate_text(needs.access_n[device])}{others}"


def _narrowest(needs: Needs, draft: Draft) -> tuple[int, int]:
    """The slowest link at the border whose links carry least together."""
    stages = len(draft.borders_s) - 1
    groups = [np.flatnonzero(draft.stage_n == stage) for stage in range(stages)]
    between = [needs.links_nn[np.ix_(one, other)] for one, other in pairwise(groups)]
    border = int(np.argmin([links.sum() for links in between]))
    row, column = np.unravel_index(np.argmin(between[border]), between[border].shape)
    return int(groups[border][row]), int(groups[border + 1][column])


def _rate_text(bytes_per_s: float) -> str:
    mbit = 8 * bytes_per_s / 1e6
    return f"{mbit:,.0f} Mbit/s" if mbit < MBIT_SHOWN else f"{mbit / 1000:.3g} Gbit/s"


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
    if pace < SLOWEST_SHARE * rates_s[stage]:
        return "links between stages: no stage's devices are busy all the time"
    first, after = draft.borders_s[stage], draft.borders_s[stage + 1]
    flops = load.flops_k[first:after].sum()
    group = np.flatnonzero(draft.stage_n == stage)
    computing = sum(fleet.flops_n[device] / flops for device in group)
    what = "computing" if rates_s[stage] > SLOWEST_SHARE * computing else "the lines of its devices"
    return f"{what} in stage {stage}"
