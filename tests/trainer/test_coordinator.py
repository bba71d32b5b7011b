"""The coordinator: whatever dies, every microbatch counts once in every stage."""

import pytest
from trainer.toy_swarm import World


def swarm(seed: int, *, stages: int = 2, replicas: int = 2, steps: int = 6) -> World:
    world = World(seed, stages=stages, steps=steps, microbatches=6)
    for name in range(1, stages * replicas + 1):
        world.start(name)
    return world


def test_a_calm_run_launches_every_microbatch_once():
    world = swarm(seed=1)

    world.run()

    assert world.ended is not None
    assert not world.ended.failed
    assert [d.step for d in world.done] == list(range(6))
    assert set(world.launched.values()) <= {1, 4}  # held-out numbers recur once an evaluation
    assert [e.version for e in world.evaluations] == [0, 2, 4, 6]


@pytest.mark.parametrize("seed", range(60))
def test_deaths_and_failing_roads_lose_and_double_nothing(seed: int):
    """World.check compares the real sums at each commit with the whole batch."""
    world = swarm(seed, stages=1 + seed % 3, replicas=3, steps=8)
    world.failure_share = 0.03
    name = 100

    def trouble() -> None:
        nonlocal name
        name += 1
        stages = range(world.config.stages)
        victims = [
            m
            for stage in stages
            for m in world.coordinator.members.ready(stage)
            if len(world.coordinator.members.ready(stage)) > 1
        ]
        if victims:
            server = world.servers[world.rng.choice(victims).incarnation.peer]
            if world.rng.random() < 0.5:
                world.kill(server)
                world.later(0.5, world.start, name)
            else:
                world.drop_link(server, server.incarnation)
        world.later(world.rng.uniform(1.0, 15.0), trouble)

    world.later(3.0, trouble)
    world.run()

    assert world.ended is not None, "stuck"
    if not world.ended.failed:
        assert [d.step for d in world.done] == list(range(8))
    else:
        assert "no server left" in world.ended.reason


@pytest.mark.parametrize("seed", range(12))
def test_newcomers_that_miss_reductions_stay_and_become_ready(seed: int):
    """Nobody waits for them: a commit overtakes its reduction, or that never comes."""
    world = swarm(seed, stages=2, replicas=2, steps=12)
    world.miss_share = 0.6
    joining = range(100, 110)
    for number, name in enumerate(joining):
        world.later(1.0 + 2.0 * number, world.start, name)

    world.run()

    assert world.skipped > 0
    assert [lost for lost in world.lost if "commit" in lost.reason] == []
    newcomers = [world.servers[bytes([name]) * 32] for name in joining]
    assert sum(server.version is not None for server in newcomers) >= 5
