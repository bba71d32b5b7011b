"""What the simulator foretells beside what real processes take: the time of a step.

    python bench/simulator_truth.py [--settings NAME ...] [--servers 24] [--steps 3] [--json FILE]

A trainer, a bootstrap node and 24 servers, every one a process through the real command line and on
a host of its own in the WAN lab (tests/wanlab), in four regions of the shipped network `aws`: four
stages, each with servers in every region. The servers emulate computing (docs/simulation.md):
they rest for as long as their blocks would take, and everything else is real: sockets, kernels' TCP
over the lab's links, encryption, averaging, digests, commits. The same settings are played by the
simulator, and the mean times of the steps after the first are compared.

    equal    1 s a forward, links as measured between the regions
    unequal  0.5, 1 and 2 s a forward in each stage, links as measured
    narrow   0.5 s a forward, 10 Mbit/s between any two machines of two regions, 40 within

That each microbatch was counted once in each stage shows in the norm of every step's gradient,
which is computed here from the text: a gradient is a one at a place that its microbatch chooses.

26 processes need a quiet machine and 5 GB of memory; the simulator knows no time that a processor
is busy, so the real steps may only be longer. `--simulate` leaves the processes out.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace

from emulated_weights import RehearsalReference, configured
from results import command_line, write_json
from swarm_processes import Run, RunFailed, Site, events, swarm
from wan_lab import FRAME_OVERHEAD_BYTES, HOSTS_MAX, Lab, LabUnavailable, Link

from p2pswarm.models.blocks import stage_blocks
from p2pswarm.models.compute.flat_parameters import layout_of
from p2pswarm.plan.network import RegionNetwork, shipped_network
from p2pswarm.progress.events import Report, Stepped
from p2pswarm.settings.config import RunConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.loop import run as in_virtual_time
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

REGIONS = ("Oregon", "Virginia", "Tokyo", "Ireland")
STAGES = 4
NOT_SERVERS = 2  # the trainer's and the bootstrap node's hosts; both are in the first region
SERVERS_MAX = (HOSTS_MAX - NOT_SERVERS) // STAGES * STAGES
SEGMENT_BYTES, PACKET_BYTES = 1448, 1500 + FRAME_OVERHEAD_BYTES
PAYLOAD_SHARE = SEGMENT_BYTES / PACKET_BYTES  # of a link's bytes, without headers
STATE_TENSORS = 3
WARMUP_STEPS = 1
ERROR_MAX = 0.10
NORM_ERROR_MAX = 1e-9


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    name: str
    forward_s: tuple[float, ...]
    """What a forward takes on the servers of a stage, in turn."""
    gbps: tuple[float, float] | None = None
    """Rates within a region and between two; None: as they were measured."""

    @property
    def network(self) -> RegionNetwork:
        """The regions and their links."""
        network = shipped_network("aws").only(REGIONS)
        if self.gbps is None:
            return network
        within, between = self.gbps
        count = range(len(REGIONS))
        rates = tuple(tuple(within if a == b else between for b in count) for a in count)
        return replace(network, gbps=rates)


SETTINGS = (
    Setting("equal", (1.0,)),
    Setting("unequal", (0.5, 1.0, 2.0)),
    Setting("narrow", (0.5,), (0.04, 0.01)),
)


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """One server: the stage, the region and the time that it has."""

    stage: int
    region: int
    forward_s: float

    def settings(self) -> str:
        """As the server's TOML has it."""
        return (
            f'[serve]\nthreads = 1\ndevice = "emulated"\nstage = {self.stage}\n'
            f"emulated_forward_s = {self.forward_s}\n"
        )


def servers_of(setting: Setting, count: int) -> list[ServerPlace]:
    """The servers: stages in turn, and in each stage regions and times in turn."""
    return [
        ServerPlace(
            number % STAGES,
            (number // STAGES + number) % len(REGIONS),
            setting.forward_s[number // STAGES % len(setting.forward_s)],
        )
        for number in range(count)
    ]


def described(setting: Setting, options: argparse.Namespace) -> Run:
    """The run of a setting."""
    return Run(
        name=f"truth {setting.name}",
        steps=WARMUP_STEPS + options.steps,
        stages=STAGES,
        min_replicas=options.servers // STAGES,
        d_model=options.d_model,
        layers=STAGES - 2,
        sequence_length=options.sequence_length,
        rows=1,
        microbatches=options.microbatches,
        emulated=True,
    )


def simulated_s(setting: Setting, run: RunConfig, count: int) -> list[float]:
    """The time of each step, as the simulator has it."""
    sizes = [
        layout_of(run, stage_blocks(run, stage)).length * (4 if run.model.dtype == "float32" else 8)
        for stage in range(run.stages)
    ]
    mean = statistics.fmean(sizes)
    network = setting.network
    carried = tuple(tuple(rate * PAYLOAD_SHARE for rate in row) for row in network.gbps)
    config = SwarmConfig(
        run=run,
        servers=count,
        devices=tuple(
            SimDevice(speed=1 / one.forward_s, place=one.region, stage=one.stage)
            for one in servers_of(setting, count)
        ),
        trainer_place=0,
        cost=Cost(
            forward_s=1.0,
            state_bytes=round(STATE_TENSORS * mean),
            gradient_bytes=round(mean),
        ),
        world=WorldConfig(network=replace(network, gbps=carried)),
    )
    played = SimSwarm(config)
    ends_s: list[float] = []
    begun_s: list[float] = []

    def heard(report: Report) -> None:
        now_s = played.trainers.seats[0].rpc.clock.time()
        if isinstance(report, RunBegun):
            begun_s.append(now_s)
        elif isinstance(report, StepDone):
            ends_s.append(now_s)

    played.heard = heard
    in_virtual_time(played.play(), config.seed)
    return [end - begin for begin, end in zip([begun_s[0], *ends_s], ends_s, strict=False)]


@contextmanager
def open_lab(setting: Setting, servers: list[ServerPlace]) -> Iterator[Site]:
    """Every process on a host of its own, with the links of its region."""
    network = setting.network
    regions = [0] * NOT_SERVERS + [one.region for one in servers]
    with Lab(len(regions), Link()) as lab:
        for source, a in enumerate(regions):
            for to, b in enumerate(regions):
                if source != to:
                    link = Link(
                        rate_bits_per_s=network.gbps[a][b] * 1e9, delay_s=network.rtt_s[a][b] / 2
                    )
                    lab.set_link(link, source, to)
        yield Site("wan", lab.address, lab.enter)


def real_s(
    setting: Setting, run: Run, options: argparse.Namespace
) -> tuple[list[float], list[float]]:
    """The time of each step of real processes, and the norm of each step's gradient."""
    servers = servers_of(setting, options.servers)
    with open_lab(setting, servers) as site:
        texts = [one.settings() for one in servers]
        with swarm(site, run, texts, options.patience_s) as nodes:
            found = []
            for event in events(nodes.lines("trainer")):
                if isinstance(event, Stepped):
                    found.append(event)
                    print(f"  {setting.name}: step {event.step}, {event.seconds:.1f} s", flush=True)
                    if len(found) == run.steps:
                        break
    if len(found) < run.steps:
        raise RunFailed(f"{setting.name} ended after {len(found)} of {run.steps} steps")
    ends_s = [event.seconds for event in found]
    times_s = [end - begin for begin, end in zip([0.0, *ends_s], ends_s, strict=False)]
    return times_s, [event.gradient_norm for event in found]


def compare(setting: Setting, options: argparse.Namespace) -> dict[str, object]:
    """One line of the table."""
    run = described(setting, options)
    config = configured(run)
    begun_s = time.process_time()
    foretold = simulated_s(setting, config.run, options.servers)
    row: dict[str, object] = {
        **asdict(setting),
        "servers": options.servers,
        "simulated_s": round(statistics.fmean(foretold[WARMUP_STEPS:]), 3),
        "simulated_steps_s": [round(each, 3) for each in foretold],
        "simulator_processor_s": round(time.process_time() - begun_s, 1),
    }
    if options.simulate:
        return row
    took, gradient_norms = real_s(setting, run, options)
    mean_s = statistics.fmean(took[WARMUP_STEPS:])
    expected = list(RehearsalReference(config).norms())
    off = max(abs(a / b - 1) for a, b in zip(gradient_norms, expected, strict=True))
    return row | {
        "real_s": round(mean_s, 3),
        "real_steps_s": [round(each, 3) for each in took],
        "error": round(statistics.fmean(foretold[WARMUP_STEPS:]) / mean_s - 1, 4),
        "counted_once": off <= NORM_ERROR_MAX,
    }


def main() -> int:
    """Compare, print, write."""
    options = _options()
    rows = []
    for setting in SETTINGS:
        if setting.name in options.settings:
            try:
                rows.append(compare(setting, options))
            except LabUnavailable as reason:
                print(reason, file=sys.stderr)
                return 2
            except RunFailed as error:
                print(f"error: {error}", file=sys.stderr)
                return 1
            print("  ".join(f"{name} {value}" for name, value in rows[-1].items()), flush=True)
    write_json(options.json, rows)
    if options.simulate:
        return 0
    right = all(row["counted_once"] and abs(float(str(row["error"]))) <= ERROR_MAX for row in rows)
    return int(not right)


def _options() -> argparse.Namespace:
    parser = command_line(__doc__)
    names = [setting.name for setting in SETTINGS]
    parser.add_argument("--settings", nargs="+", choices=names, default=names)
    parser.add_argument("--servers", type=int, default=24, help="a multiple of 4; default: 24")
    parser.add_argument("--steps", type=int, default=3, help="measured, after one of warm-up")
    parser.add_argument("--microbatches", type=int, default=48, help="a step")
    parser.add_argument("--d-model", type=int, default=256)
    parser.add_argument("--sequence-length", type=int, default=1024)
    parser.add_argument("--patience-s", type=float, default=900.0, help="for one run")
    parser.add_argument("--simulate", action="store_true", help="foretell, and start no process")
    options = parser.parse_args()
    if options.servers % STAGES or not STAGES <= options.servers <= SERVERS_MAX:
        parser.error(f"--servers is a multiple of {STAGES}, at most {SERVERS_MAX}")
    return options


if __name__ == "__main__":
    sys.exit(main())
