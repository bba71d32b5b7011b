"""One run over slow lines between regions, or an island in each: bytes, idle time, tokens a second.

    python bench/islands.py [--models 1B 7B] [--fleets four eight mixed] [--regions 2 4 8]
                            [--mbit 20 60 200 1000] [--search-s 2] [--json FILE]
    python bench/islands.py --simulate [--mbit 200]

Nothing is trained. A region has one line, which its devices share, and a round trip of 100 ms to
the others; within it any two devices have 10 Gbit/s.

    one run   over all regions or some of them, by the best plan that is found: rows of regions,
              each a pipeline, and what the planner's search finds when a pair of devices is taken
              to have the line, or a sixteenth. Averaging is on the grid of whole numbers. Every
              plan is judged with the line as it is shared, by the largest flow within it.
    islands   an inner run in each region, of its share of the step's microbatches; after H steps
              an outer step, during which the islands wait (between) or go on (beside).

Both with one step of delay: averaging, filling and draining go on beside microbatches. `idle` is
the share of all devices' operations that is not used, of those too that a plan leaves out. `bytes`
are those that the busiest line sends for a token that is trained.

With --simulate the planner's times are set beside the simulator's for two regions of eight, one
device a stage, so that one pair of devices has the line: a step of one run, and of an island.
"""

import argparse
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from itertools import product
from operator import attrgetter

import numpy as np
from island_costs import (
    FLEETS,
    INNER_STEPS,
    LADDER,
    LAN_GBPS,
    LAN_RTT_S,
    MBIT_BYTES,
    MODELS,
    MODULES,
    OUTERS,
    RTT_S,
    TOKENS,
    IslandRound,
    Region,
    Rung,
    SizedModel,
    averaged_r,
    crossings_r,
    devices_of,
    outer_s,
    places_of,
    region_tflops,
    regions_of,
    shared_flow,
    shares_of,
    work_of,
)
from results import command_line, write_json

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.fleet import DeviceFleet
from p2pswarm.plan.network import DeviceNetwork, Ints, RegionNetwork
from p2pswarm.plan.pipeline_annealing import Draft, device_rate, parts_of
from p2pswarm.plan.pipeline_cost import needs_of
from p2pswarm.plan.pipeline_search import PlanEffort, search_pipelined
from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.sim.compute import BACKWARD_SHARE, Cost
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.loop import run as in_virtual_time
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

STAGES_A_REGION = 1, 2, 3, 4, 5, 6, 8
STAGES_TRIED = 2, 4, 6, 8, 12, 16, 24, 32
"""By the search."""
SHARED_BY = 1, 16
"""Pairs of devices among which the search takes a line to be divided."""
HALVINGS = 50
GAIN_ASKED = 2.0
TOLD_OUTERS, TOLD_STEPS = ("DiLoCo int8", "SparseLoCo"), 30
SIM_STEPS = 3
SMALL_WIDTH, SMALL_TOKENS = 128, 256
"""Of the tensors in memory in place of the model's."""
SIM_RUNG = Rung("int8", 0.0)


@dataclass(frozen=True, slots=True)
class RunCost:
    """One run with one plan."""

    rung: str
    stages: int
    regions: int
    """That have a device in use."""
    tokens_per_s: float
    undelayed_tokens_per_s: float
    bytes_per_token: float
    idle: float
    loss: float
    step_s: float
    undelayed_s: float


@dataclass(frozen=True, slots=True)
class IslandsCost:
    """Islands with one outer step."""

    outer: str
    inner_steps: int
    beside: bool
    tokens_per_s: float
    bytes_per_token: float
    idle: float
    loss: float


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Devices, and where they are."""

    regions: tuple[Region, ...]
    fleet: DeviceFleet
    line_mbit: float

    @property
    def region_n(self) -> Ints:
        """The region of each device."""
        return places_of(self.regions)

    @property
    def tflops(self) -> float:
        """Of all devices."""
        return sum(map(region_tflops, self.regions))


def places(regions: Sequence[Region], line_mbit: float) -> Places:
    """The devices of regions whose lines carry so much."""
    return Places(tuple(regions), devices_of(regions, line_mbit), line_mbit)


def run_cost(
    where: Places, model: SizedModel, rung: Rung, microbatches: int, draft: Draft
) -> RunCost | None:
    """What a plan brings; None if a device is too small for its stage, or nothing gets through."""
    load = work_of(model, rung, microbatches)
    needs, region_n = needs_of(where.fleet, load), where.region_n
    parts = parts_of(needs, draft)
    if parts.stages_sx[:, 3].sum() > 0:
        return None
    line = where.line_mbit * MBIT_BYTES
    groups = [np.flatnonzero(draft.stage_n == s).tolist() for s in range(len(draft.borders_s) - 1)]
    rates = {
        device: device_rate(needs, draft, device, stage)
        for stage, group in enumerate(groups)
        for device in group
    }
    pace, flows = shared_flow(groups, rates, region_n, line / load.boundary_bytes)
    if pace <= 0:
        return None
    values_s = np.add.reduceat(load.values_k, draft.borders_s[:-1])
    averaged = averaged_r(draft.stage_n, values_s, region_n)
    crossed = crossings_r(flows, region_n) / pace * microbatches * load.boundary_bytes
    averaging_s = max(
        float(parts.stages_sx[:, 2].max()),
        float(averaged.max()) / line + (2 * RTT_S if averaged.max() else 0.0),
    )
    fill_s = float(parts.stages_sx[:, 1].sum() + parts.boundaries_bx[:, 1].sum())
    undelayed_s = fill_s + (microbatches - 1) / pace + averaging_s
    step_s = max(microbatches / pace, averaging_s, float((averaged + crossed).max()) / line)
    tokens = microbatches * TOKENS
    used = np.unique(region_n[draft.stage_n >= 0])
    return RunCost(
        rung.name,
        len(values_s),
        len(used),
        tokens / step_s,
        tokens / undelayed_s,
        float((averaged + crossed).max()) / tokens,
        idle_share(where, model, tokens / step_s),
        rung.loss if len(used) > 1 else 0.0,
        step_s,
        undelayed_s,
    )


def idle_share(where: Places, model: SizedModel, tokens_per_s: float) -> float:
    """The share of what all devices could do that so many tokens a second leave."""
    return 1 - tokens_per_s / TOKENS * float(model.flops_k.sum()) / (where.tflops * 1e12)


def row_drafts(where: Places, model: SizedModel) -> Iterator[Draft]:
    """Plans in which regions stand in rows, each row a pipeline; the fastest regions first."""
    order = sorted(range(len(where.regions)), key=lambda each: -region_tflops(where.regions[each]))
    for used in sorted({1, 2, 4, 8, len(order)}):
        for rows in range(1, used + 1):
            if used <= len(order) and used % rows == 0:
                for stages in STAGES_A_REGION:
                    draft = row_draft(where, model, order[:used], rows, stages)
                    if draft is not None:
                        yield draft


def row_draft(
    where: Places, model: SizedModel, order: Sequence[int], rows: int, stages: int
) -> Draft | None:
    """Regions in rows, so many stages in each; None if the model cannot be cut so."""
    stage_n = np.full(len(where.fleet.names), -1, dtype=np.int64)
    region_n, count = where.region_n, len(order) // rows * stages
    for place, region in enumerate(order):
        devices = np.flatnonzero(region_n == region)
        if len(devices) < stages:
            return None
        loads = np.zeros(stages)
        for device in devices[np.argsort(-where.fleet.flops_n[devices], kind="stable")]:
            lightest = int(loads.argmin())
            loads[lightest] += where.fleet.flops_n[device]
            stage_n[device] = place // rows * stages + lightest
    held = work_of(model, LADDER[0], 1).held_bytes_per_value
    room_s = np.array([where.fleet.memory_bytes_n[stage_n == s].min() for s in range(count)])
    flops_s = np.array([where.fleet.flops_n[stage_n == s].sum() for s in range(count)])
    borders = cut_of(model, flops_s, (room_s - work_of(model, LADDER[0], 1).working_bytes) / held)
    return None if borders is None else Draft(stage_n, borders)


def cut_of(model: SizedModel, flops_s: np.ndarray, room_s: np.ndarray) -> Ints | None:
    """The borders with which the slowest stage is fastest; None if the stages have no room.

    `room_s`: the parameters that each stage holds.
    """
    if len(flops_s) > len(model.flops_k):
        return None
    low, high = 0.0, float(model.flops_k.sum() / flops_s.min())
    best = _filled(model, flops_s, room_s, high)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        found = _filled(model, flops_s, room_s, middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _filled(
    model: SizedModel, flops_s: np.ndarray, room_s: np.ndarray, seconds: float
) -> Ints | None:
    """Borders with which no stage takes longer than that; None if there are none."""
    blocks, at, borders = len(model.flops_k), 0, [0]
    for stage, (flops, room) in enumerate(zip(flops_s, room_s, strict=True)):
        begun, left = at, len(flops_s) - stage - 1
        while at < blocks - left:
            after = slice(begun, at + 1)
            if model.flops_k[after].sum() > seconds * flops or model.values_k[after].sum() > room:
                break
            at += 1
        if at == begun:
            return None
        borders.append(at)
    return np.array(borders, dtype=np.int64) if at == blocks else None


def searched_drafts(where: Places, model: SizedModel, rung: Rung, seconds: float) -> list[Draft]:
    """What the planner finds, if each pair of devices has the line or a part of it."""
    blocks, devices = len(model.flops_k), len(where.fleet.names)
    counts = [count for count in STAGES_TRIED if count <= min(blocks, devices)]
    found = []
    for parts in SHARED_BY if len(where.regions) > 1 else (1,):
        fleet = replace(where.fleet, network=_divided(where, parts))
        effort = PlanEffort(seconds, 0, time.process_time)
        load = work_of(model, rung, model.microbatches)
        try:
            plan = search_pipelined(fleet, [load], counts, effort)
        except Unusable:  # a model that fits nowhere; the rows say so, too
            return []
        stage_n = np.full(devices, -1, dtype=np.int64)
        for stage, group in enumerate(plan.stages):
            stage_n[list(group)] = stage
        found.append(Draft(stage_n, np.array(plan.borders, dtype=np.int64)))
    return found


def _divided(where: Places, parts: int) -> DeviceNetwork:
    region_n, network = where.region_n, where.fleet.network
    same_nn = region_n[:, None] == region_n[None, :]
    gbps_nn = np.where(same_nn, network.gbps_nn, network.gbps_nn / parts)
    return DeviceNetwork(network.latency_s_nn, gbps_nn)


def one_run(where: Places, model: SizedModel, search_s: float) -> list[RunCost]:
    """The fastest plan of each rung; none where the model fits nowhere."""
    drafts = list(row_drafts(where, model))
    for rung in (LADDER[-1], MODULES[-1]) if search_s else ():
        drafts += searched_drafts(where, model, rung, search_s)
    found = [
        _fastest(run_cost(where, model, rung, model.microbatches, each) for each in drafts)
        for rung in (*LADDER, *MODULES)
    ]
    return [cost for cost in found if cost is not None]


def _fastest(costs: Iterable[RunCost | None]) -> RunCost | None:
    known = [cost for cost in costs if cost is not None]
    return max(known, key=attrgetter("tokens_per_s"), default=None)


@lru_cache
def inner_run(
    region: Region, model: SizedModel, microbatches: int, search_s: float
) -> RunCost | None:
    """The best plan of an island; None if the model does not fit."""
    where = places((region,), LAN_GBPS * 1e3)
    drafts = list(row_drafts(where, model))
    drafts += searched_drafts(where, model, LADDER[0], search_s) if search_s else []
    return _fastest(run_cost(where, model, LADDER[0], microbatches, each) for each in drafts)


def islands(where: Places, model: SizedModel, search_s: float) -> list[IslandsCost]:
    """Every outer step; none where an island cannot hold the model."""
    count = len(where.regions)
    shares = shares_of(where.regions, model.microbatches)
    inner = [
        inner_run(region, model, share, search_s)
        for region, share in zip(where.regions, shares, strict=True)
    ]
    steps_s = [cost.step_s for cost in inner if cost is not None]
    if len(steps_s) < count:
        return []
    tokens = sum(shares) * TOKENS
    found = []
    for outer in OUTERS:
        nbytes = outer.sent_bytes(model.values, count)
        transfer_s = outer_s(nbytes, where.line_mbit, count)
        for steps in INNER_STEPS:
            for beside in (False, True):
                turn = IslandRound(max(steps_s), transfer_s, steps, beside)
                rate = steps * tokens / turn.seconds
                found.append(
                    IslandsCost(
                        outer.name,
                        steps,
                        beside,
                        rate,
                        nbytes / (steps * tokens),
                        idle_share(where, model, rate),
                        dict(model.islands_loss)[count],
                    )
                )
    return found


def equal_loss(model: SizedModel, cost: RunCost | IslandsCost) -> float:
    """The tokens a second, less those that make up for its loss."""
    return cost.tokens_per_s / model.more_tokens(cost.loss)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One row of the table."""

    model: str
    fleet: str
    regions: int
    mbit: float
    runs: list[RunCost]
    """The fastest plan of each rung."""
    islands: list[IslandsCost]
    gains: dict[str, float]
    """By outer step with H = 30, between rounds: tokens a second over the fastest one run's; and
    at equal loss, over the best one run's at equal loss."""

    def told(self) -> str:
        """The row."""
        name = f"{self.model} {self.fleet:5} {self.regions} x {self.mbit:4g}"
        if not self.runs:
            return f"{name}  no device holds a stage of it"
        codecs = max(self.runs[: len(LADDER)], key=attrgetter("tokens_per_s"))
        fastest = max(self.runs, key=attrgetter("tokens_per_s"))
        cells = [name, *(_cell(cost, _how(cost)) for cost in (codecs, fastest))]
        if not self.islands:
            return "  ".join([*cells, "an island cannot hold it"])
        cells += [_cell(usual(self.islands, outer), "") for outer in TOLD_OUTERS]
        return "  ".join([*cells, *(f"{gain:5.2f}" for gain in self.gains.values())])


def usual(found: Sequence[IslandsCost], outer: str) -> IslandsCost:
    """The islands with this outer step every 30 steps, for which they wait."""
    return next(
        each
        for each in found
        if (each.outer, each.inner_steps, each.beside) == (outer, TOLD_STEPS, False)
    )


def _how(cost: RunCost) -> str:
    return cost.rung if cost.regions > 1 else "one region"


def _cell(cost: RunCost | IslandsCost, rung: str) -> str:
    rate, nbytes = cost.tokens_per_s / 1e3, cost.bytes_per_token
    return f"{rate:6.1f} k {nbytes:5.0f} B {100 * cost.idle:3.0f} % {rung}"


def compared(model: SizedModel, fleet: str, count: int, mbit: float, search_s: float) -> Comparison:
    """One setting."""
    where = places(regions_of(fleet, count), mbit)
    runs, found = one_run(where, model, search_s), islands(where, model, search_s)
    gains = {}
    for outer in TOLD_OUTERS if runs and found else ():
        each = usual(found, outer)
        gains[outer] = each.tokens_per_s / max(run.tokens_per_s for run in runs)
        fair = max(equal_loss(model, run) for run in runs)
        gains[f"{outer}, equal loss"] = equal_loss(model, each) / fair
    return Comparison(model.name, fleet, count, mbit, runs, found, gains)


def table(options: argparse.Namespace) -> list[Comparison]:
    """One row for each setting."""
    print(
        "model, devices, regions x Mbit/s; tokens/s, bytes/token and idle of one run with codecs "
        "alone, with modules too; of islands with "
        + " and ".join(TOLD_OUTERS)
        + f", H = {TOLD_STEPS}; over one run, and at equal loss, for each"
    )
    rows = []
    models = [each for each in MODELS if each.name in options.models]
    for model, fleet, count, mbit in product(models, options.fleets, options.regions, options.mbit):
        rows.append(compared(model, fleet, count, mbit, options.search_s))
        print(rows[-1].told(), flush=True)
    return rows


def summary(rows: Sequence[Comparison]) -> list[str]:
    """For each kind of islands, in how many settings it gains what is asked, and the most."""
    lines = []
    held = [row for row in rows if row.runs and row.islands]
    for number, kind in enumerate(held[0].islands if held else ()):
        gains = [
            row.islands[number].tokens_per_s / max(run.tokens_per_s for run in row.runs)
            for row in held
        ]
        enough = sum(gain >= GAIN_ASKED for gain in gains)
        lines.append(
            f"{kind.outer}, H = {kind.inner_steps}, {'beside' if kind.beside else 'between'}: "
            f"{enough} of {len(held)} settings gain {GAIN_ASKED:g}x; at most {max(gains):.2f}"
        )
    return lines


def simulated_s(where: Places, model: SizedModel, microbatches: int, draft: Draft) -> float:
    """The mean time of the steps after the first, as the simulator has it."""
    borders = draft.borders_s
    flops_s = np.add.reduceat(model.flops_k, borders[:-1])
    values_s = np.add.reduceat(model.values_k, borders[:-1])
    stages, region_n = len(flops_s), where.region_n
    scale = TOKENS * model.width / SIM_RUNG.narrower / (SMALL_TOKENS * SMALL_WIDTH)
    run = RunConfig(
        stages=stages,
        steps=SIM_STEPS,
        min_replicas=1,
        model=ModelConfig(
            d_model=SMALL_WIDTH, layers=max(2, stages), heads=2, sequence_length=SMALL_TOKENS
        ),
        batch=BatchConfig(microbatches=microbatches, rows=1, evaluate_every=0),
        codecs=CodecConfig(activation=SIM_RUNG.codec, gradient=SIM_RUNG.codec),
    )
    count = len(where.regions)
    rtt_s = [[LAN_RTT_S if a == b else RTT_S for b in range(count)] for a in range(count)]
    gbps = [
        [LAN_GBPS if a == b else where.line_mbit / 1e3 for b in range(count)] for a in range(count)
    ]
    names = tuple(f"region {number}" for number in range(count))
    network = RegionNetwork(
        "islands", "as island_costs.py", names, tuple(map(tuple, rtt_s)), tuple(map(tuple, gbps))
    )
    load = work_of(model, SIM_RUNG, microbatches)
    mean = float(flops_s.mean())
    config = SwarmConfig(
        run=run,
        servers=len(region_n),
        devices=tuple(
            SimDevice(
                speed=float(where.fleet.flops_n[n]) / 1e12,
                place=int(region_n[n]),
                stage=int(draft.stage_n[n]),
            )
            for n in range(len(region_n))
        ),
        trainer_place=0,
        cost=Cost(
            forward_s=mean / (1 + BACKWARD_SHARE) / 1e12,
            gradient_bytes=round(float(load.averaging_bytes_k.sum()) / len(values_s) / scale),
            shares=tuple(float(flops) / mean for flops in flops_s),
        ),
        world=WorldConfig(network=network, bulk_scale=scale),
    )
    played, times_s = SimSwarm(config), []

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            times_s.append(played.trainers.seats[0].rpc.clock.time())

    played.heard = heard
    result = in_virtual_time(played.play(), config.seed)
    if result.ended.failed:
        raise RuntimeError(result.ended.reason)
    return (times_s[-1] - times_s[1]) / (len(times_s) - 2)


def simulate(options: argparse.Namespace) -> list[dict[str, object]]:
    """The planner's time of a step and the simulator's, for one run and for an island."""
    rows = []
    for model in (each for each in MODELS if each.name in options.models):
        for mbit in options.mbit:
            both = places(regions_of("eight", 2), mbit)
            alone = places(regions_of("eight", 1), mbit)
            for where, microbatches in (
                (both, model.microbatches),
                (alone, model.microbatches // 2),
            ):
                order = range(len(where.regions))
                draft = row_draft(where, model, order, 1, len(where.regions[0]))
                if draft is None:
                    raise RuntimeError(f"{model.name} has no cut of one device a stage")
                cost = run_cost(where, model, SIM_RUNG, microbatches, draft)
                if cost is None:
                    raise RuntimeError(f"{model.name} does not fit")
                played_s = simulated_s(where, model, microbatches, draft)
                name = "one run" if where is both else "an island"
                rows.append(
                    {
                        "model": model.name,
                        "what": name,
                        "mbit": mbit,
                        "planned_s": cost.undelayed_s,
                        "simulated_s": played_s,
                    }
                )
                print(
                    f"{model.name} {name}, {mbit:g} Mbit/s: planned {cost.undelayed_s:.1f} s a "
                    f"step, simulated {played_s:.1f} s",
                    flush=True,
                )
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Reckon, print and write."""
    parser = command_line(__doc__)
    names = [model.name for model in MODELS]
    parser.add_argument("--models", nargs="+", default=names, choices=names)
    parser.add_argument("--fleets", nargs="+", default=list(FLEETS), choices=list(FLEETS))
    parser.add_argument("--regions", type=int, nargs="+", default=[2, 4, 8], choices=[1, 2, 4, 8])
    parser.add_argument("--mbit", type=float, nargs="+", default=[20.0, 60.0, 200.0, 1000.0])
    parser.add_argument(
        "--search-s", type=float, default=2.0, help="of the planner, for each plan; 0: rows alone"
    )
    parser.add_argument("--simulate", action="store_true")
    options = parser.parse_args(arguments)
    if options.simulate:
        write_json(options.json, simulate(options))
        return 0
    rows = table(options)
    for line in summary(rows):
        print(line)
    write_json(options.json, [asdict(row) for row in rows])
    return 0


if __name__ == "__main__":
    sys.exit(main())
