"""How much of their time the servers of a simulated run compute, and what they wait for.

    python bench/busy_share.py [--stages 4] [--replicas 4] [--microbatches 256] [--rtt 0.2]
                               [--forward 0.3] [--bytes-per-s 62.5e6] [--d-model 1024]
                               [--tokens 512] [--codec int8] [--seed 1] [--json FILE]

In virtual time, from one seed, so a figure does not depend on the machine that makes it. Trainer,
servers, routers and averaging are the real ones. All servers are equal, a backward takes twice a
forward's time, and every path has the same round trip. `busy` is the share of their time, from the
first launch to the end of the run, in which processors computed.

The time in which a server does not compute is told by its cause, as shares of the whole time:

    fill     from the decision of a step until the server computes first
    starved  between two microbatches
    drain    from the server's last microbatch until every stage has counted all
    commit   from then until the step is decided: averaging, digests, votes
    ends     before the first step, and after the last

No schedule without overlap of steps avoids what fills and drains the pipeline: `ideal` is the share
that is left with a perfect schedule and a commit that takes no time. With `--delay 1` steps
overlap, and only the first fills and the last drains: more `--steps` bring more.
"""

import argparse
import asyncio
import bisect
import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from results import command_line, write_json

from p2pswarm.base.ids import PeerId
from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig, RunConfig
from p2pswarm.sim.compute import BACKWARD_SHARE, Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

CAUSES = "fill", "starved", "drain", "commit", "ends"
STATE_BYTES = 1 << 20


@dataclass(slots=True)
class Timeline:
    """When processors computed, and when steps were counted and decided."""

    begun_s: float = 0.0
    spans_s: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """By machine: from when to when it computed, in order."""
    counted_s: dict[int, float] = field(default_factory=dict)
    """By step: when the last stage counted the last microbatch."""
    decided_s: list[float] = field(default_factory=list)

    def idle(self, ended_s: float) -> dict[str, float]:
        """The share of all time that went by for each cause."""
        lost_s: Counter[str] = Counter()
        for spans in self.spans_s.values():
            step_began_s = self.begun_s
            for step, decided_s in enumerate(self.decided_s):
                lost_s.update(self._idle_in_step(spans, step, step_began_s, decided_s))
                step_began_s = decided_s
            lost_s["ends"] += ended_s - step_began_s
        whole_s = len(self.spans_s) * (ended_s - self.begun_s)
        return {cause: lost_s[cause] / whole_s for cause in CAUSES}

    def _idle_in_step(
        self, spans: list[tuple[float, float]], step: int, began_s: float, decided_s: float
    ) -> dict[str, float]:
        counted_s = self.counted_s[step]
        low = bisect.bisect_left(spans, (began_s, 0.0))
        high = bisect.bisect_left(spans, (decided_s, 0.0))
        mine = spans[low:high]
        counted_s = max(counted_s, began_s)  # with a delay perhaps before the step's own time
        commit_s = decided_s - counted_s
        if not mine:
            return {"starved": counted_s - began_s, "commit": commit_s}
        between_s = sum(later[0] - one[1] for one, later in itertools.pairwise(mine))
        return {
            "fill": mine[0][0] - began_s,
            "starved": between_s,
            "drain": max(0.0, counted_s - mine[-1][1]),
            "commit": commit_s,
        }


def config_of(options: argparse.Namespace) -> SwarmConfig:
    """The run and its machines."""
    model = ModelConfig(
        d_model=options.d_model,
        layers=options.stages,
        heads=options.d_model // 64,
        sequence_length=options.tokens,
    )
    return SwarmConfig(
        seed=options.seed,
        run=RunConfig(
            stages=options.stages,
            steps=options.steps,
            min_replicas=options.replicas,
            model=model,
            batch=BatchConfig(
                microbatches=options.microbatches, rows=1, evaluate_every=0, window=options.window
            ),
            codecs=CodecConfig(activation=options.codec, gradient=options.codec),
            delay=options.delay,
        ),
        servers=options.stages * options.replicas,
        cost=Cost(forward_s=options.forward, state_bytes=STATE_BYTES),
        world=WorldConfig(
            rtt_median_s=options.rtt,
            rtt_least_s=options.rtt,
            bandwidth_bytes_per_s=options.bytes_per_s,
        ),
    )


async def play(config: SwarmConfig) -> tuple[SwarmResult, Timeline, Counter[str]]:
    """Train, and remember when processors worked."""
    timeline, shares = Timeline(), Counter[str]()
    loop = asyncio.get_running_loop()
    filled: Counter[int] = Counter()
    work = config.run.stages * config.run.batch.microbatches

    def counted(peer: PeerId, _stage: int, number: int) -> None:
        step = number // config.run.batch.microbatches
        filled[step] += 1
        shares[f"{step} {peer.short}"] += 1
        if filled[step] == work:
            timeline.counted_s[step] = loop.time()

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun):
            timeline.begun_s = loop.time()
            for number, machine in enumerate(swarm.machines):
                spans = timeline.spans_s.setdefault(number, [])
                machine.processor.worked = lambda a_s, b_s, to=spans: to.append((a_s, b_s))
        elif isinstance(report, StepDone):
            timeline.decided_s.append(loop.time())

    swarm = SimSwarm(config, counted)
    swarm.heard = heard
    return await swarm.play(), timeline, shares


def ideal_share(options: argparse.Namespace) -> float:
    """What is left when a step only fills and drains the pipeline."""
    pass_s = options.forward * (1 + BACKWARD_SHARE)
    work_s = options.microbatches / options.replicas * pass_s
    bytes_each = options.tokens * options.d_model * (1 if options.codec == "int8" else 4)
    hop_s = options.rtt / 2 + bytes_each / options.bytes_per_s
    return work_s / (work_s + (options.stages - 1) * (pass_s + 2 * hop_s) + options.rtt)


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print and write."""
    parser = command_line(__doc__)
    parser.add_argument("--stages", type=int, default=4)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--microbatches", type=int, default=256)
    parser.add_argument("--rtt", type=float, default=0.2, help="seconds, between any two machines")
    parser.add_argument("--forward", type=float, default=0.3, help="seconds a microbatch and stage")
    parser.add_argument("--bytes-per-s", type=float, default=62.5e6)
    parser.add_argument("--d-model", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--codec", default="int8")
    parser.add_argument("--window", type=int, default=0, help="0: as the trainer chooses")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--delay", type=int, default=0, help="steps; 1: steps overlap")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    began_s = time.process_time()
    result, timeline, shares = run(play(config_of(options)), options.seed)
    if result.ended.failed:
        print(f"busy_share: {result.ended.reason}", file=sys.stderr)
        return 1
    idle = timeline.idle(timeline.begun_s + result.seconds)
    uneven = max(shares.values()) * options.replicas / options.microbatches
    row = {
        "busy": result.busy_share,
        "steps": result.steps,
        "virtual_s": result.seconds,
        "idle": idle,
        "ideal": ideal_share(options),
        "most_over_mean": uneven,
        "replayed": result.replayed,
        "processor_s": time.process_time() - began_s,
    }
    print(f"busy {result.busy_share:.3f} of {row['ideal']:.3f}, {result.steps} steps, ", end="")
    print(f"{result.seconds:.1f} s; most over mean {uneven:.2f}; idle: ", end="")
    print(", ".join(f"{cause} {share:.3f}" for cause, share in idle.items()))
    write_json(options.json, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
