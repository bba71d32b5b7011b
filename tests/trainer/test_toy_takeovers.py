"""Takeovers in the toy swarm: sums outlive coordinators, and every microbatch counts once."""

import pytest
from trainer.coordinator.test_coordinator import cause_trouble, copies, plays
from trainer.toy_takeovers import Takeovers

STEPS = 8


def swarm(seed: int, replicas: int = 3, delay: int = 0) -> Takeovers:
    world = Takeovers(seed, stages=1 + seed % 3, steps=STEPS, microbatches=6, delay=delay)
    for name in range(1, world.config.stages * replicas + 1):
        world.start(name)
    return world


def take_over_again(world: Takeovers, longest_s: float) -> None:
    """Takeovers at random times, sometimes one in another."""
    world.take_over()
    if world.takeovers < 40:
        world.later(world.rng.uniform(0.2, longest_s), take_over_again, world, longest_s)


def check_whole(world: Takeovers) -> None:
    """World.check has compared the sums of every record with the whole batch."""
    assert [lost for lost in world.lost if "another had counted" in lost.reason] == []
    assert [lost for lost in world.lost if "differ" in lost.reason] == []
    assert world.decided_steps == list(range(len(world.decided_steps)))


@pytest.mark.parametrize(("seed", "delay"), plays(range(60), range(20)))
def test_takeovers_lose_and_double_nothing(seed: int, delay: int):
    world = swarm(seed, 1 + seed % 3, delay)
    world.failure_share = 0.02 * (seed % 2)
    world.later(2.0, take_over_again, world, 12.0)

    world.run(until_s=3000.0)

    assert world.ended is not None, "stuck"
    assert not world.ended.failed, world.ended.reason
    check_whole(world)
    assert world.decided_steps == list(range(STEPS))


@pytest.mark.parametrize(("seed", "delay"), plays(range(60), range(20)))
def test_takeovers_among_deaths_and_freezes(seed: int, delay: int):
    world = swarm(seed, delay=delay)
    world.failure_share, world.late_share = 0.03, 0.5
    world.later(3.0, cause_trouble, world)
    world.later(2.0, take_over_again, world, 20.0)

    world.run(until_s=3000.0)

    check_whole(world)
    if world.ended is None:
        assert not all(copies(world, stage) for stage in range(world.config.stages)), "stuck"
    else:
        assert not world.ended.failed, world.ended.reason


@pytest.mark.parametrize("delay", [0, 1])
def test_most_of_what_was_counted_is_kept(delay: int):
    """A step takes some seconds here; the takeovers come in the middle of one."""
    kept = voided = 0
    for seed in range(10):
        world = swarm(seed, delay=delay)
        world.late_share = 0.0
        world.later(2.0, take_over_again, world, 10.0)
        world.run(until_s=3000.0)
        kept, voided = kept + world.kept, voided + world.voided

    assert kept > 100
    assert voided < kept / 10
