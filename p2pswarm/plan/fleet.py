"""DeviceFleet and WorkLoad: unequal devices and what a training step asks of them.

Shapes:  device (n), block of the model (k).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.arrangement import (
    HELD_BYTES_PER_STATE_BYTE,
    LINK_ASSUMED_BYTES_PER_S,
    LINK_LEAST_BYTES_PER_S,
)
from p2pswarm.plan.capacity import Measured
from p2pswarm.plan.codec_costs import WireCodec
from p2pswarm.plan.network import DeviceNetwork, Floats

BYTES_PER_GBIT = 1e9 / 8
STATE_BYTES_PER_VALUE = 20.0
"""Weight, two moments, the gradient's sum and its average, float32 each."""
CONNECTIONS_MAX = 16  # as `network.bulk_connections` allows


@dataclass(frozen=True, slots=True, eq=False)
class DeviceFleet:
    """The devices."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    """What each is one of, for people; devices of one kind are alike but for their place."""
    flops_n: Floats
    memory_bytes_n: Floats
    access_bytes_n: Floats
    """What a device's own line carries, each way."""
    network: DeviceNetwork
    """Of one connection."""
    connections: int
    """The most of a link."""
    uplinks: frozenset[int] = frozenset()
    """The devices whose line is slower up than down, and counts as it is up."""
    prices_n: tuple[float, ...] = ()
    """What each costs an hour; empty: not known."""

    @property
    def links_bytes_nn(self) -> Floats:
        """Return what each link carries with as many connections as there may be."""
        rates_nn = self.connections * self.network.gbps_nn * BYTES_PER_GBIT
        lines_nn = np.minimum(self.access_bytes_n[:, None], self.access_bytes_n[None, :])
        return np.minimum(rates_nn, lines_nn)

    def with_one_more(self, like: int) -> "DeviceFleet":
        """The same devices, and another one like one of them, beside it."""
        pick = [*range(len(self.names)), like]
        latency_s_nn = self.network.latency_s_nn[np.ix_(pick, pick)]
        gbps_nn = self.network.gbps_nn[np.ix_(pick, pick)]
        itself = np.arange(len(self.names)) == like
        beside = np.argmin(np.where(itself, np.inf, latency_s_nn[like, :-1]))
        latency_s_nn[like, -1] = latency_s_nn[-1, like] = latency_s_nn[like, beside]
        gbps_nn[like, -1] = gbps_nn[-1, like] = gbps_nn[like, beside]
        return DeviceFleet(
            (*self.names, f"{self.names[like]}+1"),
            (*self.kinds, self.kinds[like]),
            self.flops_n[pick],
            self.memory_bytes_n[pick],
            self.access_bytes_n[pick],
            DeviceNetwork(latency_s_nn, gbps_nn),
            self.connections,
            self.uplinks | ({len(self.names)} if like in self.uplinks else frozenset()),
            (*self.prices_n, self.prices_n[like]) if self.prices_n else (),
        )


@dataclass(frozen=True, slots=True, eq=False)
class WorkLoad:
    """What a step is made of."""

    microbatches: int
    flops_k: Floats
    """Of each block for a microbatch, forward and backward."""
    values_k: Floats
    """Parameters of each block."""
    boundary_values: float
    """Of a microbatch between two stages, one way."""
    codec: WireCodec
    """Of activations and their gradients."""
    averaging_bytes_per_value: float | Floats = 4.0
    """Of a sum within a stage for each parameter: of all blocks, or of each."""
    held_bytes_per_value: float = STATE_BYTES_PER_VALUE
    """Memory of a server for each parameter: its state, and what a step makes of it."""
    working_bytes: float = 0.0
    """Memory of a server beside its state: graphs of microbatches in flight."""
    averaging_overlaps: bool = False
    tied_values: float = 0.0
    """Of the tensor that the first and the last block have in common: where one stage has both, it
    is there once."""

    def whole_values(self, stages: int) -> float:
        """The parameters of all stages together."""
        return float(self.values_k.sum()) - (self.tied_values if stages == 1 else 0.0)

    @property
    def averaging_bytes_k(self) -> Floats:
        """Of the sum of each block."""
        return self.values_k * self.averaging_bytes_per_value

    @property
    def boundary_bytes(self) -> float:
        """Return what crosses between two stages for a microbatch, one way."""
        return self.boundary_values * self.codec.bytes_per_value

    def with_averaging(self, work_s: float, averaging_s: float) -> float:
        """The time of a step whose microbatches take `work_s`."""
        return max(work_s, averaging_s) if self.averaging_overlaps else work_s + averaging_s

    def check(self, fleet: DeviceFleet, stages: int) -> None:
        """Return whether a plan of so many stages can be; Unusable says what to change."""
        blocks = len(self.flops_k)
        if stages > blocks:
            raise Unusable(
                f"{stages} stages of a model of {blocks} blocks: choose {blocks} or fewer, or a "
                "model with more layers"
            )
        if stages > len(fleet.names):
            raise Unusable(
                f"{stages} stages need {stages} devices, and there are {len(fleet.names)}: choose "
                "fewer stages, or name more devices"
            )
        if self.fitting(fleet, stages) < stages:
            largest = float(np.sort(fleet.memory_bytes_n)[-stages])
            state_gib = self.held_bytes_per_value * self.whole_values(stages) / 2**30
            raise Unusable(
                f"no cut into {stages} stages fits the devices' memory: the model's state is "
                f"{state_gib:.3g} GiB and the device number {stages} by memory has "
                f"{largest / 2**30:.3g} GiB: more stages or devices with more memory are needed"
            )

    def fitting(self, fleet: DeviceFleet, stages: int) -> int:
        """Return how many stages of a cut can have a device of their own that holds them, at most.

        Each of the largest devices in turn takes as many blocks as it holds; if these are all the
        blocks, every stage can have one. No order of the devices takes fewer in a bad way: the
        answer may be too large for awkward blocks, never too small.
        """
        room = np.sort(fleet.memory_bytes_n)[::-1][:stages] - self.working_bytes
        if room.sum() < self.held_bytes_per_value * self.whole_values(stages):
            return 0
        smallest = self.held_bytes_per_value * float(self.values_k.min())
        return int((room >= smallest).sum())


RTT_ASSUMED_S = 0.1  # of a server without a link to the trainer: another continent, one way there
SECONDS_LEAST = 1e-5  # of a microbatch: who tells less has not computed
LINK_MOST_BYTES_PER_S = 1.25e10  # 100 Gbit/s: who says more measured its own memory, or lies
MEMORY_MOST_BYTES = 2.0**50  # who says more lies


@dataclass(frozen=True, slots=True)
class MeasuredServer:
    """One server of a living swarm."""

    name: str
    stage: int
    """Where it serves, so that its times are of this stage's blocks."""
    measured: Measured
    rtt_s: float | None
    """Between it and the trainer; None if nobody knows."""


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredFleet:
    """The devices, and how much of them is a guess."""

    fleet: DeviceFleet
    rates_guessed: int
    """Devices whose rate of computing is the median of the others'."""
    lines_guessed: int
    """Devices whose line is the median of the others', or 100 Mbit/s if nobody has measured."""
    memories_guessed: int
    """Devices that can hold anything, as far as is known."""


def measured_fleet(servers: Sequence[MeasuredServer], flops_s: Sequence[float]) -> MeasuredFleet:
    """The servers of a living swarm as devices; `flops_s`: the work of each present stage.

    A server's rate of computing is the work of its stage's blocks over the time that they take it.
    Its line is what its links carried while its stage averaged. Nobody measures the way between
    every two servers: it counts as the way by the trainer, which is never shorter where distances
    add up. Unusable when nobody has measured a computing time.

    Source: docs/placement.md, "From a living swarm".
    """
    last = len(flops_s) - 1
    rates = [_flops(one, flops_s[one.stage], last=one.stage == last) for one in servers]
    if all(rate is None for rate in rates):
        raise Unusable(
            f"none of the {len(servers)} servers has measured how long it computes: ask again "
            "after the next step, or describe the devices in a file (p2pswarm plan --example)"
        )
    lines = [_line(one.measured.link_bytes_per_s) for one in servers]
    memories = [_memory(one.measured) for one in servers]
    flops_n, line_n = _filled(rates, 0.0), _filled(lines, LINK_ASSUMED_BYTES_PER_S)
    away_n = np.array([RTT_ASSUMED_S if one.rtt_s is None else one.rtt_s for one in servers]) / 2
    latency_s_nn = away_n[:, None] + away_n[None, :]
    gbps_nn = np.minimum(line_n[:, None], line_n[None, :]) / BYTES_PER_GBIT
    names = tuple(one.name for one in servers)
    fleet = DeviceFleet(
        names,
        tuple(_kind(flops) for flops in flops_n),
        flops_n,
        np.array([np.inf if memory is None else memory for memory in memories]),
        line_n,
        DeviceNetwork.read(latency_s_nn.tolist(), gbps_nn.tolist()),
        connections=1,
    )
    guessed = (sum(each is None for each in known) for known in (rates, lines, memories))
    return MeasuredFleet(fleet, *guessed)


def _kind(flops: float) -> str:
    """Servers within a factor of 1.5 of each other or so are of one kind."""
    return f"of {2.0 ** round(math.log2(flops)) / 1e12:.2g} TFLOP/s"


def _flops(one: MeasuredServer, work: float, *, last: bool) -> float | None:
    """Return how fast it computes; the last stage's forward, loss and backward are one call."""
    backward_s = 0.0 if last else one.measured.backward_s
    if one.measured.forward_s is None or backward_s is None:
        return None
    seconds = one.measured.forward_s + backward_s
    return work / seconds if SECONDS_LEAST <= seconds < np.inf else None


def _line(told: float | None) -> float | None:
    return min(max(told, LINK_LEAST_BYTES_PER_S), LINK_MOST_BYTES_PER_S) if told else None


def _memory(measured: Measured) -> float | None:
    """Return what it has for a stage: what is free, and what its present one takes."""
    if measured.free_bytes is None or measured.state_bytes is None:
        return None
    held = HELD_BYTES_PER_STATE_BYTE * measured.state_bytes
    return min(measured.free_bytes + held, MEMORY_MOST_BYTES)


def _filled(known: Sequence[float | None], otherwise: float) -> Floats:
    """Return where a number is missing, the median of the others."""
    told = [each for each in known if each is not None]
    usual = statistics.median(told) if told else otherwise
    return np.array([usual if each is None else each for each in known], dtype=np.float64)
