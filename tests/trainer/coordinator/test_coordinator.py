"""The coordinator: whatever dies, every microbatch counts once in every stage."""

from collections.abc import Sequence
from typing import Any

import pytest
from core import core_of
from trainer.toy_server import Server
from trainer.toy_swarm import World

NAMES_MAX = 255  # a toy server's name is a byte
LATE = range(7)  # the seeds of `make test` that are played with a delay, too


def plays(seeds: Sequence[int], core: Sequence[int]) -> list[Any]:
    """Seeds without and with a delay; `core`: what is not left to `make test-all`."""
    both = [(seed, delay) for delay in (0, 1) for seed in seeds]
    return core_of(both, [(seed, 0) for seed in core] + [(seed, 1) for seed in LATE])


def swarm(
    seed: int, *, stages: int = 2, replicas: int = 2, steps: int = 6, delay: int = 0
) -> World:
    world = World(seed, stages=stages, steps=steps, microbatches=6, delay=delay)
    for name in range(1, stages * replicas + 1):
        world.start(name)
    return world


@pytest.mark.parametrize("delay", [0, 1])
def test_a_calm_run_launches_every_microbatch_once(delay: int):
    world = swarm(seed=22, delay=delay)  # in which no server takes so long that it stalls

    world.run()

    assert world.ended is not None
    assert not world.ended.failed
    assert [d.step for d in world.done] == list(range(6))
    assert set(world.launched.values()) <= {1, 4}  # held-out numbers recur once an evaluation
    assert [e.step for e in world.evaluations] == [0, 2, 4, 6]


def one_of(world: World) -> Server | None:
    """A ready server of a stage that has another."""
    ready = world.coordinator.members.ready
    stages = [s for s in range(world.config.stages) if len(ready(s)) > 1]
    victims = [member for stage in stages for member in ready(stage)]
    return world.servers[world.rng.choice(victims).incarnation.peer] if victims else None


def cause_trouble(world: World, name: int = 100) -> None:
    """Every few seconds a server dies and another comes, loses its link, or freezes."""
    if server := one_of(world):
        what = world.rng.random()
        if what < 0.4:
            world.kill(server)
            world.later(0.5, world.start, name)
        elif what < 0.8:
            world.drop_link(server, server.incarnation)
        else:
            world.freeze(server, world.rng.uniform(1.0, 60.0))
    if name < NAMES_MAX:
        world.later(world.rng.uniform(1.0, 15.0), cause_trouble, world, name + 1)


def copies(world: World, stage: int) -> list[Server]:
    """The servers that could go on with a stage: they hold its weights, or the step to them."""
    step = world.coordinator.step
    return [
        server
        for server in world.servers.values()
        if server.alive and server.stage == stage and server.version in (step - 1, step)
    ]


# In 155 and 214 a sum is voided whose microbatch a fence, still under way, has shown to be counted.
@pytest.mark.parametrize(("seed", "delay"), plays([*range(60), 155, 214], [*range(12), 155, 214]))
def test_whatever_dies_or_freezes_nothing_is_lost_or_doubled_and_the_run_goes_on(
    seed: int, delay: int
):
    """World.check compares the real sums at each commit with the whole batch."""
    world = swarm(seed, stages=1 + seed % 3, replicas=3, steps=8, delay=delay)
    world.failure_share = 0.03
    world.later(3.0, cause_trouble, world)

    world.run(until_s=3000.0)

    assert [lost for lost in world.lost if "another had counted" in lost.reason] == []
    if world.ended is None:
        assert not all(copies(world, stage) for stage in range(world.config.stages)), "stuck"
    else:
        assert not world.ended.failed, world.ended.reason
        assert [d.step for d in world.done] == list(range(8))


@pytest.mark.parametrize(("seed", "delay"), plays(range(40), range(9)))
def test_what_is_not_finite_anywhere_is_in_no_sum_and_all_else_is_in_one(seed: int, delay: int):
    stages = 1 + seed % 3
    world = swarm(seed, stages=stages, replicas=1 + seed % 2, steps=8, delay=delay)
    world.poison = {6 * step + seed % 6: (seed + step) % stages for step in (1, 2, 5)}
    if seed % 4:
        world.failure_share = 0.03
        world.later(3.0, cause_trouble, world)

    world.run(until_s=3000.0)

    if world.ended is None:
        assert not all(copies(world, stage) for stage in range(stages)), "stuck"
        return
    assert not world.ended.failed, world.ended.reason
    aside = [microbatch for done in world.done for microbatch in done.quarantined]
    assert aside == sorted(world.poison)


@pytest.mark.parametrize(("seed", "delay"), plays(range(40), range(9)))
def test_a_commit_that_reaches_nobody_is_sent_again(seed: int, delay: int):
    """All links break with every third decision; no server dies, so every step is done."""
    world = swarm(seed, stages=1 + seed % 3, replicas=1 + seed % 2, steps=10, delay=delay)
    world.failure_share, world.lost_share, world.refusal_share = 0.02, 0.35, 0.5

    world.run(until_s=3000.0)

    assert world.ended is not None, "stuck"
    assert not world.ended.failed
    assert [d.step for d in world.done] == list(range(10))
    assert world.resent > 0 or not any(world.doomed.values())
    assert [lost for lost in world.lost if "differ" in lost.reason] == []


@pytest.mark.parametrize("seed", core_of(range(12), range(5)))
def test_newcomers_that_miss_reductions_stay_and_become_ready(seed: int):
    """Nobody waits for them: a commit overtakes its reduction, or that never comes."""
    world = swarm(seed, stages=2, replicas=2, steps=20)
    world.miss_share = 0.8
    joining = range(100, 110)
    for number, name in enumerate(joining):
        world.later(1.0 + 2.0 * number, world.start, name)

    world.run()

    assert world.skipped > 0
    assert [lost for lost in world.lost if "commit" in lost.reason] == []
    newcomers = [world.servers[bytes([name]) * 32] for name in joining]
    assert sum(server.version is not None for server in newcomers) >= 5


def drop_links(world: World) -> None:
    """Links end again and again; a server is back in a second, or before its loss is noticed."""
    if ready := world.coordinator.members.ready():
        server = world.servers[world.rng.choice(ready).incarnation.peer]
        world.drop_link(server, server.incarnation)
    world.later(world.rng.uniform(0.5, 12.0), drop_links, world)


@pytest.mark.parametrize("seed", core_of(range(40), range(14)))
def test_sums_that_are_kept_hold_every_microbatch_once(seed: int):
    """World.counted_once looks at every sum that the coordinator may still use, at each count."""
    world = swarm(seed, stages=1 + seed % 3, replicas=1 + seed % 3, steps=8)
    world.failure_share = 0.02 * (seed % 2)
    world.later(1.0, drop_links, world)

    world.run(until_s=20_000.0)

    assert world.ended is not None, "stuck"
    assert not world.ended.failed, world.ended.reason
    assert [lost for lost in world.lost if "another had counted" in lost.reason] == []
    assert world.kept > world.voided
