"""A day with a trainer that is stopped for a minute every hour, in virtual time.

    python bench/frozen_trainer.py [--hours 24] [--trainers 1] [--seed 1] [--json FILE]

Six servers train three stages on the simulated network. Every hour the process of the trainer that
leads is stopped for a minute, as by SIGSTOP: all its links end meanwhile, and every server looks
for it, or goes to the trainer that takes over; the stopped one comes back as a standby. The run
must not end; each stop may cost the step in which it falls. A microbatch is made to take as long as
in a run of some seconds a step, and the number of steps is chosen so that the run lasts a day.
What is told is in virtual time, but for `seconds`, which the simulation took.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path

from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import Leads, MemberLost

HOUR_S, STOPPED_S = 3600.0, 60.0
MICROBATCHES = 16
FORWARD_S = 6.0  # a step then takes 200 s (measured), so that 430 of them are a day
STEP_S = 200.0


def day(hours: int, seed: int, trainers: int) -> SwarmConfig:
    """Six servers, and one trainer or two: the one that leads is stopped every hour."""
    stops = tuple(  # of two, the other one leads after a stop
        Fault(FaultKind.FREEZE, hour * HOUR_S, STOPPED_S, ((hour - 1) % trainers,))
        for hour in range(1, hours)
    )
    return SwarmConfig(
        seed=seed,
        trainers=trainers,
        run=small_run(
            steps=int(hours * HOUR_S / STEP_S),
            batch=BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0),
        ),
        cost=replace(Cost(), forward_s=FORWARD_S),
        faults=FaultPlan(trainers, stops),
        patience_s=3 * hours * HOUR_S,
    )


def play(hours: int, seed: int, trainers: int) -> dict[str, object]:
    """Play the day; what became of the run."""
    config, begun_s = day(hours, seed, trainers), time.process_time()

    async def main() -> dict[str, object]:
        swarm = SimSwarm(config)
        result = await swarm.play()
        losses = [one for one in swarm.reports if isinstance(one, MemberLost)]
        return {
            "hours": result.seconds / HOUR_S,
            "stops": len(swarm.faults.happened),
            "takeovers": sum(isinstance(one, Leads) for one in swarm.reports) - 1,
            "ended": int(result.ended.failed),
            "reason": result.ended.reason,
            "steps": result.steps,
            "incarnations_lost": len(losses),
            "microbatches_done_again": result.replayed,
            "useful": swarm.useful_share,
        }

    return run(main(), seed) | {"seconds": time.process_time() - begun_s}


def main() -> None:
    """Play a day and print what became of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--trainers", type=int, choices=(1, 2), default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = play(options.hours, options.seed, options.trainers)
    print("\n".join(f"{name}: {value}" for name, value in found.items()))
    if options.json is not None:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
