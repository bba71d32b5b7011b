"""Whole runs in virtual time: exactly once through deaths, work by speed, the same run again."""

import asyncio

import pytest
from core import core_of
from sim.seed import SEED

from p2pswarm.base.ids import PeerId
from p2pswarm.settings.config import BatchConfig, CodecConfig, ModelConfig
from p2pswarm.sim.compute import Cost
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run
from p2pswarm.trainer.reports.reports import MemberLost, RunFinished, SumVoided

FIVE_REGIONS = ((0.1, 0.1), (0.9, 0.1), (0.5, 0.5), (0.1, 0.9), (0.9, 0.9))


def play(config: SwarmConfig) -> tuple[SwarmResult, SimSwarm]:
    swarm = SimSwarm(config)
    return run(swarm.play(), config.seed), swarm


def test_calm_run_does_every_step_and_loses_nothing() -> None:
    result, swarm = play(SwarmConfig(seed=SEED, regions=FIVE_REGIONS))

    assert result.ended == RunFinished("all steps are done", failed=False)
    assert result.steps == swarm.config.run.steps
    assert (result.lost, result.replayed) == (0, 0)
    assert 0.3 < result.busy_share <= 1.0
    assert swarm.useful_share == pytest.approx(1.0)


@pytest.mark.parametrize("seed", core_of(range(SEED, SEED + 3), [SEED]))
def test_run_through_deaths_counts_each_microbatch_once(seed: int) -> None:
    """A counts that is not all ones is an AssertionError in the midst of the run."""
    config = SwarmConfig(
        seed=seed,
        run=small_run(steps=12),
        servers=9,
        speeds=(1.0, 0.5, 2.0),
        regions=FIVE_REGIONS,
        death_every_s=4.0,
        rebirth_s=2.0,
    )

    result, swarm = play(config)

    assert result.ended == RunFinished("all steps are done", failed=False)
    assert result.steps == 12
    assert result.lost >= 2
    assert swarm.useful_share < 1.0


def test_machine_twice_as_fast_does_twice_the_work() -> None:
    config = SwarmConfig(
        seed=SEED,
        run=small_run(stages=1, steps=4, batch=BatchConfig(microbatches=96, rows=1)),
        servers=2,
        speeds=(1.0, 2.0),
    )

    _result, swarm = play(config)

    slow, fast = (m.processor.busy_s * m.processor.speed for m in swarm.machines)
    assert 1.6 < fast / slow < 2.4


def test_trainers_link_carries_no_activations() -> None:
    config = SwarmConfig(
        seed=SEED,
        run=small_run(
            steps=3,
            model=ModelConfig(d_model=512, layers=4, heads=4, sequence_length=64),
            codecs=CodecConfig(activation="raw", gradient="raw"),
        ),
        cost=Cost(state_bytes=4096),
    )

    result, _swarm = play(config)

    assert result.trainer_bytes < 0.01 * result.moved_bytes


def test_slow_links_slow_the_run() -> None:
    model = ModelConfig(d_model=256, layers=4, heads=4, sequence_length=64)
    fast, slow = (
        play(
            SwarmConfig(
                seed=SEED,
                run=small_run(steps=2, model=model),
                world=WorldConfig(bandwidth_bytes_per_s=rate),
            )
        )[0]
        for rate in (25e6, 1e5)
    )

    assert slow.seconds > 2 * fast.seconds


def test_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def digest(seed: int) -> str:
        run_config = small_run(steps=4)
        config = SwarmConfig(seed=seed, run=run_config, servers=8, death_every_s=3.0)
        return play(config)[0].digest

    assert digest(SEED) == digest(SEED)
    assert digest(SEED) != digest(SEED + 1)


@pytest.mark.parametrize("notice_s", [30.0, 0.5], ids=["in time", "too late"])
def test_machine_that_is_told_of_its_end_costs_work_only_if_it_is_told_too_late(notice_s):
    holds_a_sum = asyncio.Event()

    def counted(peer: PeerId, _stage: int, _number: int) -> None:
        if peer == swarm.machines[0].rpc.host.peer:
            holds_a_sum.set()

    swarm = SimSwarm(SwarmConfig(seed=SEED, run=small_run(steps=4)), counted)

    async def main() -> SwarmResult:
        playing = asyncio.create_task(swarm.play())
        await holds_a_sum.wait()
        begun_s = asyncio.get_running_loop().time()
        victim = swarm.machines[0]
        await swarm.dismiss(victim, notice_s, 0.9 * notice_s)
        assert victim.died_s is not None
        assert victim.died_s - begun_s <= notice_s
        return await playing

    result = run(main(), SEED)

    assert result.ended == RunFinished("all steps are done", failed=False)
    void = [one.voided for one in swarm.reports if isinstance(one, MemberLost)]
    void += [one.microbatches for one in swarm.reports if isinstance(one, SumVoided)]
    assert (sum(void) == 0) == (notice_s == 30.0)
