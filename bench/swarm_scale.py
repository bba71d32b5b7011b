"""What a large simulated swarm costs: processor time a step.

    python bench/swarm_scale.py [--servers 1000] [--stages 10] [--microbatches 4000] [--steps 2]
                                [--seed 1] [--profile] [--json FILE]

Trainer, servers and routers are the real ones, in virtual time. The servers join before the first
step; what that costs is told apart. More servers than a step's record has room for are refused.
`step_processor_s` is the mean of the steps, from the decision of the one before to its own. It
grows with what else the machine does; what `--profile` counts, the function calls, does not.
"""

import argparse
import cProfile
import pstats
import sys
import time
from collections.abc import Sequence

from results import command_line, write_json

from p2pswarm.base.errors import Unusable
from p2pswarm.node.run.run_match import check_records
from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

STATE_BYTES = 4096
REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))


def config_of(options: argparse.Namespace) -> SwarmConfig:
    """The run and its machines: small tensors, because their bytes are only copied about."""
    return SwarmConfig(
        seed=options.seed,
        run=RunConfig(
            stages=options.stages,
            steps=options.steps,
            min_replicas=options.servers // options.stages,
            model=ModelConfig(d_model=16, layers=options.stages, heads=1, sequence_length=8),
            batch=BatchConfig(microbatches=options.microbatches, rows=1, evaluate_every=0),
        ),
        servers=options.servers,
        cost=Cost(forward_s=0.3, state_bytes=STATE_BYTES),
        regions=REGIONS,
        world=WorldConfig(bandwidth_bytes_per_s=25e6, links_max=1 << 12),
    )


async def play(
    config: SwarmConfig, profile: cProfile.Profile | None
) -> tuple[SwarmResult, list[float]]:
    """Train, and note the processor's clock when the run begins and at each step's end."""
    clock_s: list[float] = []

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun) and profile is not None:
            profile.enable()
        if isinstance(report, RunBegun | StepDone):
            clock_s.append(time.process_time())

    swarm = SimSwarm(config)
    swarm.heard = heard
    result = await swarm.play()
    if profile is not None:
        profile.disable()
    return result, clock_s


def main(arguments: Sequence[str] | None = None) -> int:
    """Play, print and write."""
    parser = command_line(__doc__)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--stages", type=int, default=10)
    parser.add_argument("--microbatches", type=int, default=4000)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--profile", action="store_true", help="what the steps' time goes to")
    options = parser.parse_args(arguments)
    config = config_of(options)
    try:
        check_records(config.run)  # else servers are declined, and the run never begins
    except Unusable as reason:
        print(f"swarm_scale: {reason}", file=sys.stderr)
        return 1
    began_s = time.process_time()
    profile = cProfile.Profile() if options.profile else None
    result, clock_s = run(play(config, profile), options.seed)
    if result.ended.failed:
        print(f"swarm_scale: {result.ended.reason}", file=sys.stderr)
        return 1
    row = {
        "servers": options.servers,
        "microbatches": options.microbatches,
        "join_processor_s": clock_s[0] - began_s,
        "step_processor_s": (clock_s[-1] - clock_s[0]) / (len(clock_s) - 1),
        "steps": result.steps,
        "busy": result.busy_share,
        "replayed": result.replayed,
    }
    print(", ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if profile is not None:
        pstats.Stats(profile).sort_stats("tottime").print_stats(45)
    write_json(options.json, row)
    return 0


if __name__ == "__main__":
    sys.exit(main())
