"""How long a step waits in three scenes that a run has to go on through, in virtual time.

Standby: the coordinator falls silent about when its standby is started again, or its successor dies
soon after it leads. What is measured goes from the last fault to the end of the next step. Slow: in
one stage the server that came first is 100 times slower than the others, or one of two becomes so.
Newcomers: servers come each 0.3 to 1.2 s, and die 2 to 3 s later. Of these two scenes the longest
step is measured. A calm step is printed beside each figure.

    python bench/goes_on.py [--scene NAME] [--seeds N] [--json FILE]
"""

import asyncio
import logging
import math
import random
import statistics
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from results import command_line, write_json

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.devices import SimDevice
from p2pswarm.sim.faults import Fault, FaultKind, FaultPlan
from p2pswarm.sim.link import WORLD
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.leadership import Leads
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

STAGES, STEPS_MOST = 3, 1000
REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))
PATIENCE_S = 300.0  # for one step

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

COME_S, LIVE_S = (0.3, 1.2), (2.0, 3.0)
CALM_S, CHURN_STEPS = 10.0, 20


@dataclass(frozen=True, slots=True)
class Wait:
    """How long one way of a scene took."""

    way: str
    seconds: float
    """`PATIENCE_S` if the step did not come."""
    calm_s: float
    """A step of the same swarm to which nothing happens."""


class WatchedRun:
    """A run, and when its steps were done."""

    def __init__(self, seed: int, forward_s: float, **changes: object) -> None:
        """Two servers a stage, unless `changes` say something else."""
        config = {
            "seed": seed,
            "run": small_run(
                stages=STAGES,
                steps=STEPS_MOST,
                min_replicas=1,
                model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=16, rows=1, evaluate_every=0),
            ),
            "servers": 2 * STAGES,
            "regions": REGIONS,
            "cost": Cost(forward_s=forward_s, state_bytes=1 << 20),
            "patience_s": 10 * PATIENCE_S,
        } | changes
        self.swarm = SimSwarm(SwarmConfig(**config))
        self.begun_s = 0.0
        """When the first step began, from which the faults count."""
        self.ends_s: list[float] = []
        """When each step was done."""
        self._news = asyncio.Event()
        self.swarm.heard = self._heard

    @property
    def steps_s(self) -> list[float]:
        """How long each step took."""
        begins_s = [self.begun_s, *self.ends_s]
        return [end - begin for begin, end in zip(begins_s, self.ends_s, strict=False)]

    def ends_after(self, at_s: float) -> list[float]:
        """When the steps were done that were not done at this time after the begin."""
        return [end_s for end_s in self.ends_s if end_s > self.begun_s + at_s]

    async def watch(
        self, is_enough: Callable[[], bool], *besides: Coroutine[Any, Any, None]
    ) -> None:
        """Play until it is enough, or a step has not come for `PATIENCE_S`, and `besides`."""
        playing = asyncio.create_task(self.swarm.play())
        others = [asyncio.create_task(one) for one in besides]
        while not is_enough():
            self._news.clear()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._news.wait()
            except TimeoutError:
                break  # what is measured is that it did not come
        for one in (*others, playing):
            one.cancel()
        for machine in self.swarm.machines:
            machine.rpc.suspension.release()
        self.swarm.trainers.release()
        await asyncio.wait((playing,))

    def _heard(self, report: Report) -> None:
        now_s = asyncio.get_running_loop().time()
        if isinstance(report, RunBegun):
            self.begun_s = self.begun_s or now_s
        elif isinstance(report, StepDone):
            self.ends_s.append(now_s)
            self._news.set()


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


SCENES: dict[str, Callable[[int], Iterator[Wait]]] = {
    "standby": standby_waits,
    "slow": slow_waits,
    "newcomers": newcomers_waits,
}


def main() -> None:
    """Play the scenes, and print each way and the figures of each scene."""
    parser = command_line(__doc__)
    parser.add_argument("--scene", choices=SCENES, action="append", help="all by default")
    parser.add_argument("--seeds", type=int, default=1, metavar="N")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds {options.seeds}: at least 1 is needed")
    logging.getLogger("p2pswarm").addHandler(logging.NullHandler())
    figures = {}
    for name in options.scene or SCENES:
        waits = []
        for seed in range(1, options.seeds + 1):
            for one in SCENES[name](seed):
                print(f"{name}, seed {seed}, {one.way}: {one.seconds:.2f} s ({one.calm_s:.2f})")
                waits.append(one)
        seconds = [one.seconds for one in waits]
        figures[name] = {
            "median_s": round(statistics.median(seconds), 2),
            "max_s": round(max(seconds), 2),
            "calm_s": round(statistics.median(one.calm_s for one in waits), 2),
        }
        print(f"{name}: {figures[name]}", flush=True)
    write_json(options.json, figures)


if __name__ == "__main__":
    main()
