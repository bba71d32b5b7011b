"""Servers that join while steps pass, in virtual time: they catch up, and keep their place."""

import asyncio
import functools
import itertools
import random

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.progress.events import Report
from p2pswarm.settings.config import BatchConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, small_run
from p2pswarm.trainer.reports.reports import MemberJoined, MemberLost, RunBegun, StepDone

FIVE_REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.5), (0.1, 0.9), (0.9, 0.9))
STEP_S = 2.0  # about what a step of these runs takes


def latecomers(seed: int, *, state_bytes: int) -> list[Report]:
    """The reports of a run in which servers join at many points of a step."""
    pauses_s = tuple(STEP_S * (0.35 + 0.07 * ((seed + number) % 10)) for number in range(8))
    config = SwarmConfig(
        seed=seed,
        run=small_run(steps=14),
        regions=FIVE_REGIONS,
        latecomers_s=pauses_s,
        cost=Cost(state_bytes=state_bytes),
    )
    swarm = SimSwarm(config)
    result = run(swarm.play(), seed)
    assert result.steps == 14
    return swarm.reports


@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 2), [SEED]))
@pytest.mark.parametrize("state_bytes", core_of([1 << 16, 4 << 20], [4 << 20]))
def test_newcomer_is_not_held_to_a_commit_whose_reduction_is_still_on_its_way(
    seed: int, state_bytes: int
) -> None:
    """The commit is a few bytes and the reduction many: it overtakes what it commits."""
    reports = latecomers(seed, state_bytes=state_bytes)

    assert [report for report in reports if isinstance(report, MemberLost)] == []
    joined = sum(isinstance(report, MemberJoined) for report in reports)
    assert joined == 6 + 8


@pytest.mark.parametrize("slow", [0, 1])
def test_a_server_a_hundred_times_slower_that_came_first_holds_no_step_up(slow: int) -> None:
    """A microbatch takes it fifteen seconds, and the others of its stage have no work by then."""
    ended_s: list[float] = []
    speeds = tuple(0.01 if number == slow else 1.0 for number in range(9))
    batch = BatchConfig(microbatches=32, rows=1, evaluate_every=0)
    config = SwarmConfig(
        seed=SEED, run=small_run(steps=4, batch=batch), servers=len(speeds), speeds=speeds
    )
    swarm = SimSwarm(config)

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            ended_s.append(asyncio.get_running_loop().time())

    swarm.heard = heard
    result = run(swarm.play(), SEED)

    assert result.steps == 4
    assert max(end_s - begin_s for begin_s, end_s in itertools.pairwise(ended_s)) < 6.0


@pytest.mark.parametrize("silent", core_of([False, True], [True]))
def test_newcomers_that_come_and_die_slow_no_step(*, silent: bool) -> None:
    """Each dies two or three seconds after it came, before it is given work."""
    ended_s: list[float] = []
    batch = BatchConfig(microbatches=32, rows=1, evaluate_every=0)
    run_config = small_run(stages=2, steps=10, min_replicas=1, batch=batch)
    swarm = SimSwarm(SwarmConfig(seed=SEED, run=run_config, servers=4))
    rng = random.Random(SEED)

    def heard(report: Report) -> None:
        if isinstance(report, RunBegun | StepDone):
            ended_s.append(asyncio.get_running_loop().time())

    async def come_and_die() -> None:
        while True:
            await asyncio.sleep(rng.uniform(0.3, 1.2))
            if len(ended_s) > 2:
                kill = functools.partial(swarm.kill, swarm.join(), silent=silent)
                asyncio.get_running_loop().call_later(rng.uniform(2.0, 3.0), kill)

    async def main() -> int:
        enemy = asyncio.ensure_future(come_and_die())
        result = await swarm.play()
        enemy.cancel()
        return result.steps

    swarm.heard = heard
    steps = run(main(), SEED)

    took_s = [end_s - begin_s for begin_s, end_s in itertools.pairwise(ended_s)]
    calm_s = max(took_s[:2])
    assert steps == 10
    assert max(took_s) < 1.25 * calm_s
