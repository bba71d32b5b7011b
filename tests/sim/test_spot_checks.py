"""Spot checks in whole swarms: who computes wrong is found, and no wrong sum is committed."""

import pytest
from core import core_of

from p2pswarm.sim.loop import run
from p2pswarm.sim.swarm import SimSwarm
from p2pswarm.sim.swarm_run import SwarmConfig, SwarmResult, small_run
from p2pswarm.trainer.reports.reports import MemberLost, ResultsTied, WrongResult


def play(config: SwarmConfig) -> tuple[SimSwarm, SwarmResult]:
    async def story() -> tuple[SimSwarm, SwarmResult]:
        swarm = SimSwarm(config)
        return swarm, await swarm.play()

    return run(story(), seed=config.seed)


def found(swarm: SimSwarm) -> list[bytes]:
    return [r.incarnation.peer for r in swarm.reports if isinstance(r, WrongResult)]


@pytest.mark.parametrize(
    ("seed", "delay"),
    core_of([(seed, delay) for seed in range(6) for delay in (0, 1)], [(2, 1)]),
)
def test_a_processor_that_is_wrong_now_and_then_is_named_and_spoils_no_step(seed: int, delay: int):
    """Simulated weights refuse a commit with a spoilt sum when every microbatch is checked."""
    checked = small_run(spot_check_share=1.0, delay=delay)
    config = SwarmConfig(seed=seed, run=checked, servers=9, wrong={seed: 0.1})

    swarm, result = play(config)

    assert not result.ended.failed, result.ended.reason
    assert result.steps == 5
    culprit = swarm.machines[seed].rpc.host.peer.raw
    assert set(found(swarm)) == {culprit}


@pytest.mark.parametrize("delay", core_of([0, 1], [1]))
def test_honest_servers_are_not_suspected_and_their_steps_are_not_done_again(delay: int):
    swarm, result = play(SwarmConfig(run=small_run(spot_check_share=1.0, delay=delay), servers=6))

    assert not result.ended.failed
    assert found(swarm) == []
    assert not any(isinstance(r, ResultsTied | MemberLost) for r in swarm.reports)


def test_a_share_of_microbatches_is_computed_once_more():
    runs = [small_run(steps=10, min_replicas=1, spot_check_share=share) for share in (0.0, 0.25)]
    alone, some = (play(SwarmConfig(run=each, servers=3)) for each in runs)

    busy_s = [sum(m.processor.busy_s for m in swarm.machines) for swarm, _ in (alone, some)]
    assert 1.1 < busy_s[1] / busy_s[0] < 1.4
