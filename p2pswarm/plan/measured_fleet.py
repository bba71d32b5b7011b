"""The fleet of a living swarm: what its servers have measured of themselves, as devices.

A server's rate of computing is the work of its stage's blocks over the time that they take it. Its
line is what its links carried while its stage averaged. Nobody measures the way between every two
servers: it counts as the way by the trainer, which is never shorter where distances add up.

Units:   seconds, bytes, floating point operations; rates of them per second.
Errors:  Unusable, one line, when nobody has measured a computing time.
Source:  docs/placement.md, "From a living swarm".
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
from p2pswarm.plan.fleet import BYTES_PER_GBIT, DeviceFleet
from p2pswarm.plan.network import DeviceNetwork, Floats

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
    """What the servers would be as devices of a plan; `flops_s`: the work of each present stage."""
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
    """How fast it computes; the last stage's forward, loss and backward are one call."""
    backward_s = 0.0 if last else one.measured.backward_s
    if one.measured.forward_s is None or backward_s is None:
        return None
    seconds = one.measured.forward_s + backward_s
    return work / seconds if SECONDS_LEAST <= seconds < np.inf else None


def _line(told: float | None) -> float | None:
    return min(max(told, LINK_LEAST_BYTES_PER_S), LINK_MOST_BYTES_PER_S) if told else None


def _memory(measured: Measured) -> float | None:
    """What it has for a stage: what is free, and what its present one takes."""
    if measured.free_bytes is None or measured.state_bytes is None:
        return None
    held = HELD_BYTES_PER_STATE_BYTE * measured.state_bytes
    return min(measured.free_bytes + held, MEMORY_MOST_BYTES)


def _filled(known: Sequence[float | None], otherwise: float) -> Floats:
    """Where a number is missing, the median of the others."""
    told = [each for each in known if each is not None]
    usual = statistics.median(told) if told else otherwise
    return np.array([usual if each is None else each for each in known], dtype=np.float64)
