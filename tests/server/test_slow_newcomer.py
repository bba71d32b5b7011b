"""A newcomer whose link is ten times slower than the others' joins too."""

import asyncio

import pytest
from server.harness import (
    ONE_STAGE,
    RUN_ID,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.run.messages.step import Commit

GRADIENT_BYTES = 117_000  # the state has three times as many


def commit_order(trainer, member):
    number = member.record.incarnation
    return Commit(RUN_ID, trainer.version, trainer.generation, number, 1.0, 1e-2)


async def step_of_the_ready(r, step_s):
    """A step that waits for the ready members only; newcomers are told, as by the trainer."""
    trainer = r.trainer
    ends_s = asyncio.get_running_loop().time() + step_s
    await trainer.step_pushes()
    trainer.generation += 1
    ready = [m for m in trainer.members.values() if m.ready]
    others = [m for m in trainer.members.values() if not m.ready]
    late = [r.tasks.create_task(trainer.call(m, trainer.reduce_order(m))) for m in others]
    async with asyncio.TaskGroup() as tasks:
        for member in ready:
            tasks.create_task(trainer.call(member, trainer.reduce_order(member)))
    late += [r.tasks.create_task(trainer.call(m, commit_order(trainer, m))) for m in others]
    async with asyncio.TaskGroup() as tasks:
        for member in ready:
            tasks.create_task(trainer.call(member, commit_order(trainer, member)))
    trainer.version += 1
    await asyncio.sleep(ends_s - asyncio.get_running_loop().time())
    return late


@pytest.mark.parametrize(("step_s", "gradient_s"), [(8.0, 6.0), (60.0, 30.0)])
def test_it_catches_up_in_one_incarnation(step_s, gradient_s):
    """However late its copy of a reduction is, as long as it comes before the next one."""
    slow_bytes_per_s = GRADIENT_BYTES / gradient_s

    async def main():
        async with swarm(ONE_STAGE) as r:
            for number in (2, 3):
                r.serve(number)
                r.world.world.hosts[peer(number).raw].up_bytes_per_s = 10 * slow_bytes_per_s
            await r.trainer.until_ready(2)
            await step_of_the_ready(r, step_s)
            r.serve(4)
            host = r.world.world.hosts[peer(4).raw]
            host.up_bytes_per_s = host.down_bytes_per_s = slow_bytes_per_s
            await r.trainer.until(lambda: len(r.trainer.members) == 3)
            steps = 0
            while not r.trainer.members[peer(4).raw].ready:
                await step_of_the_ready(r, step_s)
                steps += 1
                assert steps < 20
            return steps, len(r.trainer.joins), len(r.digests(0)), weights_of(r), r.trainer.version

    steps, joins, digests, weights, version = virtual(main, limit_s=3000.0)
    assert (joins, digests) == (3, 1)
    assert steps <= 12
    assert_equal(weights, plain_after(version).flat.parameters)
