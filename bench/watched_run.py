"""A run in virtual time and when its steps were done, for benches of what holds a step up."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import RunBegun, StepDone

STAGES, STEPS_MOST = 3, 1000
REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.9))
PATIENCE_S = 300.0  # for one step


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

    def __init__(
        self, seed: int, forward_s: float, *, microbatches: int = 16, **changes: object
    ) -> None:
        """Two servers a stage, unless `changes` say something else."""
        config = {
            "seed": seed,
            "run": small_run(
                stages=STAGES,
                steps=STEPS_MOST,
                min_replicas=1,
                model=ModelConfig(d_model=8, layers=4, heads=4, sequence_length=8),
                batch=BatchConfig(microbatches=microbatches, rows=1, evaluate_every=0),
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

    def now_s(self) -> float:
        """Return the time since the begin; 0 before it."""
        return asyncio.get_running_loop().time() - self.begun_s if self.begun_s else 0.0

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
