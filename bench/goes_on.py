"""How long a step waits in five scenes that a run has to go on through, in virtual time.

Standby: the coordinator falls silent about when its standby is started again, or its successor dies
soon after it leads. What is measured goes from the last fault to the end of the next step. Slow: in
one stage the server that came first is 100 times slower than the others, or one of two becomes so.
Newcomers: servers come each 0.3 to 1.2 s, and die 2 to 3 s later. Of these two scenes the longest
step is measured. Stopped coordinator, away trainer: see `voters_away.py`. A calm step is printed
beside each figure.

    python bench/goes_on.py [--scene NAME] [--seeds N] [--first SEED] [--json FILE]
"""

import asyncio
import logging
import math
import random
import statistics
from collections.abc import Callable, Iterator

from results import command_line, quantile, write_json
from voters_away import AwayTrainer, stopped_coordinator
from watched_run import PATIENCE_S, STAGES, Wait, WatchedRun

from p2pswarm.progress.events import Report
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.trainer.reports.leadership import Leads

AWAY_FROM_S, AWAY_S = 6.0, 3.0  # the standby's restart; some steps are done before it
SILENT_S = 2 * PATIENCE_S  # the coordinator does not come back
SILENCES = {"stopped": (FaultKind.FREEZE, False), "power lost": (FaultKind.KILL, True)}
OFFSETS_S = (-2.5, -1.0, -0.3, 0.0, 0.02, 0.06, 0.2, 0.6)
"""When the coordinator falls silent, from the moment at which the standby is there again."""
SUCCESSOR_S = (1.1, 1.15, 1.2, 1.3)
"""When the successor dies, from the moment in which it leads: other voters are decided by then."""

SLOWER = 0.01
SLOW_STEPS = 4
MATES_AFTER_S = (1.0, 0.05, 0.05)  # until then the slow server is given all the work of its stage

FOR_EVER_S = 120.0  # a step that does not come in this time does not come

COME_S, LIVE_S = (0.3, 1.2), (2.0, 3.0)
CALM_S, CHURN_STEPS = 10.0, 20


async def standby_again(seed: int, silence: str, offset_s: float) -> Wait:
    """The coordinator falls silent about when the standby is there again."""
    kind, silent = SILENCES[silence]
    back_s = AWAY_FROM_S + AWAY_S
    faults = (
        Fault(FaultKind.RESTART, AWAY_FROM_S, AWAY_S, (1,)),
        Fault(kind, back_s + offset_s, SILENT_S, (0,), silent),
    )
    watched = WatchedRun(seed, 0.02, trainers=2, faults=FaultPlan(2, faults))
    from_s = back_s + max(0.0, offset_s)
    await watched.watch(lambda: bool(watched.ends_after(from_s)))
    later = watched.ends_after(from_s)
    took_s = later[0] - watched.begun_s - from_s if later else PATIENCE_S
    calm_s = statistics.median(watched.steps_s[: len(watched.ends_s) - len(later)])
    return Wait(f"{silence}, {offset_s:+.2f} s", took_s, calm_s)


async def successor_dies(seed: int, after_s: float) -> Wait:
    """Of three trainers the coordinator is stopped, and its successor loses its power soon after.

    A server votes instead of the first by then, and the third has to find that server.
    """
    stop = Fault(FaultKind.FREEZE, AWAY_FROM_S, SILENT_S, (0,))
    watched = WatchedRun(seed, 0.02, trainers=3, faults=FaultPlan(3, (stop,)))
    swarm, heard, killed_s = watched.swarm, watched.swarm.heard, math.inf

    def lose_power() -> None:
        nonlocal killed_s
        (seat,) = (n for n, one in enumerate(swarm.trainers.seats) if one.leads and n)
        kill = Fault(FaultKind.KILL, 0.0, SILENT_S, (seat,), silent=True)
        if swarm.faults.let_happen(kill):
            killed_s = asyncio.get_running_loop().time() - watched.begun_s

    def hear(report: Report) -> None:
        heard(report)
        if isinstance(report, Leads) and report.term == 2:
            asyncio.get_running_loop().call_later(after_s, lose_power, context=WORLD)

    swarm.heard = hear
    await watched.watch(lambda: bool(watched.ends_after(killed_s)))
    later = watched.ends_after(killed_s)
    took_s = later[0] - watched.begun_s - killed_s if later else PATIENCE_S
    calm_s = statistics.median(watched.steps_s[: len(watched.ends_s) - len(later)])
    return Wait(f"successor dies after {after_s:.2f} s", took_s, calm_s)


async def slow_server(seed: int, stage: int | None) -> Wait:
    """The first server of one stage is slow; None: none is, for a calm step."""
    first = [SimDevice(speed=SLOWER if one == stage else 1.0, stage=one) for one in range(STAGES)]
    mates = [SimDevice(stage=one) for one in range(STAGES)]
    devices = (*first, *mates)
    watched = WatchedRun(seed, 0.05, servers=STAGES, devices=devices, latecomers_s=MATES_AFTER_S)
    await watched.watch(lambda: len(watched.ends_s) == SLOW_STEPS)
    took_s = max(watched.steps_s) if len(watched.ends_s) == SLOW_STEPS else PATIENCE_S
    return Wait(f"stage {stage}", took_s, max(watched.steps_s, default=PATIENCE_S))


async def slow_from_then(seed: int, stage: int) -> Wait:
    """One of two servers of a stage becomes slow in the midst, for good."""
    devices = tuple(SimDevice(stage=one) for one in range(STAGES)) * 2
    crawl = Fault(FaultKind.CRAWL, AWAY_FROM_S, SILENT_S, (1 + stage,))
    watched = WatchedRun(seed, 0.05, devices=devices, faults=FaultPlan(1, (crawl,)))
    await watched.watch(lambda: len(watched.ends_after(AWAY_FROM_S)) == SLOW_STEPS)
    after = len(watched.ends_after(AWAY_FROM_S))
    took_s = max(watched.steps_s[-after:]) if after == SLOW_STEPS else PATIENCE_S
    calm_s = statistics.median(watched.steps_s[: len(watched.steps_s) - after])
    return Wait(f"stage {stage}, from then on", took_s, calm_s)


async def newcomers(seed: int, *, silent: bool) -> Wait:
    """Servers come and die; `silent`: they lose their power."""
    watched = WatchedRun(seed, 0.03)
    rng = random.Random(f"newcomers {seed}")
    swarm, loop = watched.swarm, asyncio.get_running_loop()

    async def churn() -> None:
        await asyncio.sleep(CALM_S)
        while True:
            machine = swarm.join()
            loop.call_later(
                rng.uniform(*LIVE_S), lambda one=machine: swarm.kill(one, silent=silent)
            )
            await asyncio.sleep(rng.uniform(*COME_S))

    await watched.watch(lambda: len(watched.ends_after(CALM_S)) == CHURN_STEPS, churn())
    churned = len(watched.ends_after(CALM_S))
    took_s = max(watched.steps_s[-churned:]) if churned == CHURN_STEPS else PATIENCE_S
    calm_s = statistics.median(watched.steps_s[:-churned])
    return Wait("power lost" if silent else "killed", took_s, calm_s)


def standby_waits(seed: int) -> Iterator[Wait]:
    """Every way of this scene."""
    for silence in SILENCES:
        for offset_s in OFFSETS_S:
            yield run(standby_again(seed, silence, offset_s), seed)
    for after_s in SUCCESSOR_S:
        yield run(successor_dies(seed, after_s), seed)


def slow_waits(seed: int) -> Iterator[Wait]:
    """A slow server in each stage."""
    calm_s = run(slow_server(seed, None), seed).seconds
    for stage in range(STAGES):
        slow = run(slow_server(seed, stage), seed)
        yield Wait(slow.way, slow.seconds, calm_s)
        yield run(slow_from_then(seed, stage), seed)


def newcomers_waits(seed: int) -> Iterator[Wait]:
    """Both ways in which they die."""
    for silent in (False, True):
        yield run(newcomers(seed, silent=silent), seed)


def stopped_coordinator_waits(seed: int) -> Iterator[Wait]:
    """One way, drawn."""
    yield run(stopped_coordinator(seed), seed)


def away_trainer_waits(seed: int) -> Iterator[Wait]:
    """One way, drawn."""
    yield run(AwayTrainer(seed).play(), seed)


SCENES: dict[str, Callable[[int], Iterator[Wait]]] = {
    "standby": standby_waits,
    "slow": slow_waits,
    "newcomers": newcomers_waits,
    "stopped-coordinator": stopped_coordinator_waits,
    "away-trainer": away_trainer_waits,
}


def _figures(waits: list[tuple[int, Wait]]) -> dict[str, float]:
    seconds = [one.seconds for _, one in waits]
    longest_seed, longest = max(waits, key=lambda one: one[1].seconds)
    return {
        "ways": len(waits),
        "for_ever": sum(one >= FOR_EVER_S for one in seconds),
        "median_s": round(statistics.median(seconds), 2),
        "p95_s": round(quantile(seconds, 0.95), 2),
        "max_s": round(longest.seconds, 2),
        "max_seed": longest_seed,
        "calm_s": round(statistics.median(one.calm_s for _, one in waits), 2),
    }


def main() -> None:
    """Play the scenes, and print each way and the figures of each scene."""
    parser = command_line(__doc__)
    parser.add_argument("--scene", choices=SCENES, action="append", help="all by default")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    parser.add_argument("--first", type=int, default=1, metavar="SEED", help="the first seed")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1 is needed")
    logging.getLogger("p2pswarm").addHandler(logging.NullHandler())
    figures = {}
    for name in options.scene or SCENES:
        waits: list[tuple[int, Wait]] = []
        for seed in range(options.first, options.first + options.seeds):
            for one in SCENES[name](seed):
                took = f"{one.seconds:.2f} s ({one.calm_s:.2f})"
                print(f"{name}, seed {seed}, {one.way}: {took}", flush=True)
                waits.append((seed, one))
        figures[name] = _figures(waits)
        print(f"{name}: {figures[name]}", flush=True)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
