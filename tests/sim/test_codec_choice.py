"""Codecs that are measured for: links that are throttled in mid-run have coarser ones soon."""

import asyncio

import pytest

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.sim.swarm_trainers import TrainerMachine
from p2pswarm.trainer.balance.codec_choice import CodecsChosen
from p2pswarm.trainer.reports.reports import StepDone

SEED = 3
FAST, SLOW = 12.5e6, 0.2e6
"""Bytes a second of each host. In bf16 two servers send 65 kB each 75 ms, 0.87 MB a second."""
THROTTLED = 4
SOON = THROTTLED + 20
LAST = 5
"""Steps whose time is measured."""
MEASURED = CodecConfig(choice="measured", last_boundary="dither6")


class ThrottledSwarm(SimSwarm):
    """Two stages of two servers each; all lines are slow from a step on."""

    def __init__(self, codecs: CodecConfig, steps: int) -> None:
        model = ModelConfig(d_model=256, layers=2, heads=4, sequence_length=64)
        batch = BatchConfig(microbatches=16, rows=2, evaluate_every=0)
        settings = small_run(stages=2, steps=steps, model=model, batch=batch, codecs=codecs)
        world = WorldConfig(bandwidth_bytes_per_s=FAST, rtt_median_s=0.05)
        cost = Cost(forward_s=0.05, gradient_bytes=1_000)
        super().__init__(SwarmConfig(seed=SEED, run=settings, servers=4, cost=cost, world=world))
        self.ends_s: list[float] = []
        self.chosen: list[CodecsChosen] = []

    def _trainer_says(self, machine: TrainerMachine, report: Report) -> None:
        if isinstance(report, StepDone):
            self.ends_s.append(asyncio.get_running_loop().time())
            if report.step == THROTTLED:
                for host in self.world.world.hosts.values():
                    host.up_bytes_per_s = host.down_bytes_per_s = SLOW
        if isinstance(report, CodecsChosen):
            self.chosen.append(report)
        super()._trainer_says(machine, report)

    def step_s(self) -> float:
        """Of the last steps."""
        return (self.ends_s[-1] - self.ends_s[-1 - LAST]) / LAST


def played(codecs: CodecConfig, steps: int) -> ThrottledSwarm:
    async def play() -> ThrottledSwarm:
        swarm = ThrottledSwarm(codecs, steps)
        await swarm.play()
        return swarm

    return run(play(), SEED)


@pytest.mark.full
def test_throttled_links_have_the_codecs_that_they_need_within_twenty_steps():
    measured = played(MEASURED, SOON + LAST + 1)
    best = played(CodecConfig(activation="dither6", gradient="dither3"), THROTTLED + LAST + 3)

    assert measured.chosen
    assert all(THROTTLED < one.step <= SOON for one in measured.chosen)
    assert measured.step_s() < 1.15 * best.step_s()
