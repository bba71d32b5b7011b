"""What crosses slow lines between regions, by arithmetic: models, rungs, regions, outer steps.

`islands.py` puts plans and times to it. A region's line is shared by its devices, both ways at
once; within a region links are fast.

Units:   seconds, bytes, Mbit/s for lines.
Shapes:  device (n), stage (s), region (r).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
from ortools.linear_solver import pywraplp

from p2pswarm.plan.codec_costs import GRID, WireCodec, codec_of
from p2pswarm.plan.fleet import DeviceFleet, WorkLoad
from p2pswarm.plan.network import DeviceNetwork, Floats, Ints

MBIT_BYTES = 1e6 / 8
LAN_GBPS, LAN_RTT_S = 10.0, 1e-3
RTT_S = 0.1
"""Between two regions."""
WORKING_BYTES = 2.0**30
TOKENS = 2048
"""Of a microbatch: one row."""
VOCABULARY = 32_768
FLOPS_A_WEIGHT = 6.0  # a multiplication and an addition; a backward is two forwards

CROSSING_PRICE = 1e-6  # so that of equal flows the one that crosses least is taken

SPARSE_SHARE = 64 / 4096
SPARSE_BITS = 2 + 12
"""SparseLoCo: two bits and an index within a chunk of 4,096 for each value sent."""


@dataclass(frozen=True, slots=True)
class SizedModel:
    """A GPT and the batch that it trains with."""

    name: str
    width: int
    layers: int
    microbatches: int
    """Of a step, over all regions."""
    loss_slope: float
    """By how much a part more tokens lowers the loss, as a part of it, at 20 tokens a parameter
    (arXiv 2203.15556, its third fit)."""
    islands_loss: tuple[tuple[int, float], ...]
    """The per cent of loss by which K islands are worse, H = 30 (arXiv 2503.09799, tables 4 and
    5): of 1.3B for 1B; of 10B, and for eight of 2.4B, for 7B."""

    @property
    def values_k(self) -> Floats:
        """The parameters of each block: embedding, layers, head."""
        end = float(VOCABULARY * self.width)
        return np.array([end, *[12.0 * self.width**2] * self.layers, end])

    @property
    def values(self) -> float:
        """All parameters."""
        return float(self.values_k.sum())

    @property
    def flops_k(self) -> Floats:
        """Operations of each block for a microbatch; an embedding is a look-up."""
        layer = 12.0 * self.width**2 + 2.0 * self.width * TOKENS
        products = np.array([self.width, *[layer] * self.layers, VOCABULARY * self.width])
        return products * FLOPS_A_WEIGHT * TOKENS

    @property
    def step_tokens(self) -> int:
        """Tokens of a step."""
        return self.microbatches * TOKENS

    def more_tokens(self, loss: float) -> float:
        """How many times the tokens make up for so many per cent of loss."""
        return math.exp(loss / 100 / self.loss_slope)


MODELS = (
    SizedModel("1B", 2048, 18, 256, 0.056, ((1, 0.0), (2, 0.2), (4, 0.5), (8, 1.3))),
    SizedModel("7B", 4096, 32, 512, 0.040, ((1, 0.0), (2, -0.2), (4, 0.3), (8, 1.1))),
)


@dataclass(frozen=True, slots=True)
class Rung:
    """What crosses a boundary: a codec, and modules that narrow the rows."""

    codec: str
    loss: float
    """Per cent by which it is worse; of modules at some 1B as published (docs/islands.md)."""
    narrower: int = 1
    """So many times fewer values than d_model cross."""

    @property
    def name(self) -> str:
        """As a table has it."""
        return self.codec if self.narrower == 1 else f"d/{self.narrower} {self.codec}"

    @property
    def wire(self) -> WireCodec:
        """The codec as the device makes it: devices this fast encode as fast as they send."""
        found = codec_of(self.codec)
        return WireCodec(found.name, found.bytes_per_value, float("inf"))

    def boundary_bytes(self, model: SizedModel) -> float:
        """The bytes of a microbatch over a boundary, one way, the mean of both."""
        return TOKENS * model.width / self.narrower * self.wire.bytes_per_value


LADDER = (
    Rung("bf16", 0.0),
    Rung("int8/dither4", 0.2),
    Rung("dither6/dither3", 2.0),
    Rung("dither4/dither3", 2.5),
)
MODULES = (Rung("int8/dither4", 1.7, 4), Rung("int8/dither4", 2.6, 8))


def work_of(model: SizedModel, rung: Rung, microbatches: int) -> WorkLoad:
    """What the planner takes; averaging is on a grid of whole numbers."""
    return WorkLoad(
        microbatches=microbatches,
        flops_k=model.flops_k,
        values_k=model.values_k,
        boundary_values=TOKENS * model.width / rung.narrower,
        codec=rung.wire,
        averaging_bytes_per_value=GRID.bytes_per_value,
        working_bytes=WORKING_BYTES,
    )


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """Some devices that are alike."""

    name: str
    tflops: float
    """As reached in training."""
    memory_gib: float


FAST, SLOW = DeviceKind("fast", 80.0, 48.0), DeviceKind("slow", 40.0, 24.0)
Region = tuple[DeviceKind, ...]
FLEETS: Mapping[str, tuple[Region, ...]] = {
    "four": ((SLOW,) * 4,),
    "eight": ((SLOW,) * 8,),
    "mixed": ((SLOW,) * 8, (FAST,) * 4 + (SLOW,) * 4, (FAST,) * 4, (FAST,) * 4 + (SLOW,) * 2),
}
"""The regions of a fleet, in turn."""


def regions_of(fleet: str, count: int) -> tuple[Region, ...]:
    """So many regions."""
    kinds = FLEETS[fleet]
    return tuple(kinds[number % len(kinds)] for number in range(count))


def region_tflops(region: Region) -> float:
    """What its devices can do together."""
    return sum(kind.tflops for kind in region)


def devices_of(regions: Sequence[Region], line_mbit: float) -> DeviceFleet:
    """All devices as the planner takes them; any two of two regions have the whole line."""
    kinds = [kind for region in regions for kind in region]
    region_n = places_of(regions)
    same_nn = region_n[:, None] == region_n[None, :]
    gbps_nn = np.where(same_nn, LAN_GBPS, line_mbit / 1e3)
    latency_s_nn = np.where(same_nn, LAN_RTT_S, RTT_S) / 2
    names = tuple(f"{place}-{number}" for number, place in enumerate(region_n))
    return DeviceFleet(
        names,
        tuple(kind.name for kind in kinds),
        np.array([kind.tflops for kind in kinds]) * 1e12,
        np.array([kind.memory_gib for kind in kinds]) * 2.0**30,
        np.full(len(kinds), LAN_GBPS * 1e3 * MBIT_BYTES),
        DeviceNetwork.read(latency_s_nn.tolist(), gbps_nn.tolist()),
        connections=1,
    )


def places_of(regions: Sequence[Region]) -> Ints:
    """The region of each device."""
    return np.repeat(np.arange(len(regions)), [len(region) for region in regions])


def crossings_r(flows: Mapping[tuple[int, int], float], region_n: Ints) -> Floats:
    """The microbatches a second that cross each region's line, of those over each link.

    A crossing sends an activation one way and its gradient the other: one of each way for a line.
    """
    crossing_r = np.zeros(int(region_n.max()) + 1)
    for (one, other), rate in flows.items():
        if region_n[one] != region_n[other]:
            crossing_r[[region_n[one], region_n[other]]] += rate
    return crossing_r


def shared_flow(
    groups: Sequence[Sequence[int]],
    rates: Mapping[int, float],
    region_n: Ints,
    line_rate: float,
) -> tuple[float, dict[tuple[int, int], float]]:
    """The microbatches a second that get through all stages, and over which links.

    `groups`: the devices of each stage; `rates`: the microbatches a second that each can do;
    `line_rate`: the crossings a second that a region's line carries.
    """
    if len(groups) == 1:
        return sum(rates.values()), {}
    solver = pywraplp.Solver.CreateSolver("GLOP")
    flows = {
        link: solver.NumVar(0.0, solver.infinity(), "")
        for befores, afters in pairwise(groups)
        for link in product(befores, afters)
    }
    into = {device: [] for device in rates}
    out = {device: [] for device in rates}
    lines = {int(region): [] for region in region_n}
    for (one, other), flow in flows.items():
        out[one].append(flow)
        into[other].append(flow)
        if region_n[one] != region_n[other]:
            lines[int(region_n[one])].append(flow)
            lines[int(region_n[other])].append(flow)
    for device, rate in rates.items():
        solver.Add(sum(into[device] or out[device]) <= rate)
        if into[device] and out[device]:
            solver.Add(sum(into[device]) == sum(out[device]))
    for crossing in filter(None, lines.values()):
        solver.Add(sum(crossing) <= line_rate)
    crossed = sum(flow for crossing in lines.values() for flow in crossing)
    pace = sum(flow for device in groups[0] for flow in out[device])
    solver.Maximize(pace - CROSSING_PRICE * crossed)
    if solver.Solve() != solver.OPTIMAL:
        return 0.0, {}
    found = {link: flow.solution_value() for link, flow in flows.items()}
    return sum(rate for (one, _), rate in found.items() if one in groups[0]), found


def averaged_r(stage_n: Ints, values_s: Floats, region_n: Ints) -> Floats:
    """The bytes that each region's line sends, and receives, when stages average on the grid.

    Each of a stage's n members sends every other one 2/n of the stage's sum.
    """
    sent_r = np.zeros(int(region_n.max()) + 1)
    for stage, values in enumerate(values_s):
        here = np.bincount(region_n[stage_n == stage], minlength=len(sent_r))
        members = int(here.sum())
        if members > 1:
            sent_r += here * (members - here) * 2.0 / members * values * GRID.bytes_per_value
    return sent_r


@dataclass(frozen=True, slots=True)
class OuterStep:
    """What islands exchange after their inner steps."""

    name: str
    bytes_per_value: float
    """Of all values; of SparseLoCo the mean of those that are sent and those that are not."""
    sparse: bool = False

    def sent_bytes(self, values: float, islands: int) -> float:
        """What the line of an island sends, and receives.

        Dense values are reduced in parts and gathered: 2 (K - 1) / K of them. Sparse ones of
        several islands lie in different places, so every island gets all of the others'.
        """
        if self.sparse:
            return (islands - 1) * values * self.bytes_per_value
        return 2 * (islands - 1) / islands * values * self.bytes_per_value


OUTERS = (
    OuterStep("DiLoCo float32", 4.0),
    OuterStep("DiLoCo bf16", 2.0),
    OuterStep("DiLoCo int8", codec_of("int8").bytes_per_value),
    OuterStep("SparseLoCo", SPARSE_SHARE * SPARSE_BITS / 8, sparse=True),
)
INNER_STEPS = 10, 30, 100


@dataclass(frozen=True, slots=True)
class IslandRound:
    """H inner steps and an outer one."""

    inner_s: float
    """Of the slowest island's step."""
    outer_s: float
    steps: int
    beside: bool
    """The transfer goes on beside the next round's inner steps."""

    @property
    def seconds(self) -> float:
        """Of a round."""
        inner_s = self.steps * self.inner_s
        return max(inner_s, self.outer_s) if self.beside else inner_s + self.outer_s


def outer_s(nbytes: float, line_mbit: float, islands: int) -> float:
    """How long the lines carry an outer step; nothing with one island."""
    if islands == 1:
        return 0.0
    return nbytes / (line_mbit * MBIT_BYTES) + RTT_S


def shares_of(regions: Sequence[Region], microbatches: int) -> list[int]:
    """The microbatches of each island's step, by what its devices can do; one at least."""
    whole = sum(map(region_tflops, regions))
    return [max(1, round(microbatches * region_tflops(each) / whole)) for each in regions]
