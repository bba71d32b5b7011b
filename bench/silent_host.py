"""What a server costs that dies without a word, and whether a bad network is mistaken for one.

    python bench/silent_host.py [--seeds N] [--hours H] [--json FILE]

Six servers train three stages on the simulated network. First a server loses its power at a random
moment: no kernel tells anybody. `waits_s` is by how much that makes the longest step longer than
one in which nothing happens: the silence until the server is missed, and its work, done again by
the other one of its stage. Then hours of a network that loses a message in fifty, in which each
minute a machine stands still for a second: nobody may be taken for dead. All is virtual time.
"""

import asyncio
import itertools
import random
import statistics

from results import command_line, write_json

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import MemberLost, RunBegun, StepDone

SERVERS, MICROBATCHES, STEPS = 6, 24, 8
AFTER_STEPS = 3.2  # by then servers know how long a microbatch takes
FORWARD_S = (0.02, 0.1, 0.5)
AWAY_S = 300.0
LOSS, PAUSE_S, PAUSE_EVERY_S = 0.02, 1.0, 60.0
HOUR_S = 3600.0
LONG_FORWARD_S, LONG_STEP_S = 6.0, 300.0  # about (measured): a day is some hundred steps


def config_of(seed: int, forward_s: float, steps: int, **changes: object) -> SwarmConfig:
    """Six servers and a trainer."""
    batch = BatchConfig(microbatches=MICROBATCHES, rows=1, evaluate_every=0)
    return SwarmConfig(
        seed=seed,
        run=small_run(steps=steps, batch=batch),
        servers=SERVERS,
        cost=Cost(forward_s=forward_s, state_bytes=1 << 14),
        **changes,  # type: ignore[arg-type]
    )


def played(config: SwarmConfig) -> tuple[list[float], int]:
    """How long each step took, and how many servers were taken for dead."""
    swarm = SimSwarm(config)
    ends_s: list[float] = []

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            ends_s.append(asyncio.get_running_loop().time())

    swarm.heard = heard
    ended = run(swarm.play(), config.seed).ended
    assert not ended.failed, ended.reason
    lost = sum(isinstance(report, MemberLost) for report in swarm.reports)
    return [b - a for a, b in itertools.pairwise(ends_s)], lost


def waits_s(seed: int, forward_s: float) -> tuple[float, float]:
    """An undisturbed step, and by how much the one with the death is longer."""
    calm, _ = played(config_of(seed, forward_s, STEPS))
    step_s = statistics.median(calm)
    chance = random.Random(f"silent {seed}")
    at_s = AFTER_STEPS * step_s + chance.uniform(0.0, step_s)
    seat = 1 + chance.randrange(SERVERS)  # the trainer has the first
    fault = Fault(FaultKind.KILL, at_s, AWAY_S, (seat,), silent=True)
    hurt, _ = played(config_of(seed, forward_s, STEPS, faults=FaultPlan(1, (fault,))))
    return step_s, max(hurt) - max(calm)


def false_alarms(seed: int, hours: float) -> dict[str, float]:
    """Hours in which nobody dies."""
    chance = random.Random(f"pauses {seed}")
    pauses = tuple(
        Fault(FaultKind.FREEZE, minute * PAUSE_EVERY_S, PAUSE_S, (chance.randrange(1 + SERVERS),))
        for minute in range(1, int(hours * HOUR_S / PAUSE_EVERY_S))
    )
    steps = max(1, round(hours * HOUR_S / LONG_STEP_S))
    world = WorldConfig(loss=LOSS, jitter=0.2)
    changes = {"faults": FaultPlan(1, pauses), "world": world, "patience_s": 4 * hours * HOUR_S}
    took_s, lost = played(config_of(seed, LONG_FORWARD_S, steps, **changes))
    return {"hours": round(sum(took_s) / HOUR_S, 2), "pauses": len(pauses), "lost": lost}


def main() -> None:
    """Play all, and print a line for each."""
    parser = command_line(__doc__)
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    parser.add_argument("--hours", type=float, default=24.0, metavar="H")
    options = parser.parse_args()
    if options.seeds < 1 or options.hours < 0:
        parser.error("at least one seed, and no negative hours")
    results: dict[str, object] = {"seeds": options.seeds}
    for forward_s in FORWARD_S:
        pairs = [waits_s(seed, forward_s) for seed in range(options.seeds)]
        step_s = statistics.median(step for step, _ in pairs)
        waits = sorted(wait for _, wait in pairs)
        median_s = statistics.median(waits)
        results[f"forward {forward_s} s"] = {
            "step_s": round(step_s, 2),
            "median_s": round(median_s, 2),
            "max_s": round(waits[-1], 2),
        }
        print(
            f"a step of {step_s:.1f} s waits {median_s:.1f} s, {waits[-1]:.1f} s at most",
            flush=True,
        )
    if options.hours:
        results["false_alarms"] = alarms = false_alarms(0, options.hours)
        print(
            f"{alarms['hours']} hours, {alarms['pauses']} pauses: {alarms['lost']} taken for dead"
        )
    write_json(options.json, results)


if __name__ == "__main__":
    main()
