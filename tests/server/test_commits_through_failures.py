"""A commit is applied once and whole, whatever becomes of the link that it came over."""

import asyncio
from dataclasses import replace

import pytest
from server.gates import Gate
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

from p2pswarm.base.errors import Late
from p2pswarm.run.messages.step import Commit, Committed


def order_of(trainer, member, step=0):
    number = member.record.incarnation
    return Commit(RUN_ID, step, trainer.generation, number, 1.0, 1e-2)


async def reduced_step(r):
    """A step of a stage with one server, which is coming, up to its decision."""
    await r.trainer.until_ready(1)
    await r.trainer.step_pushes()
    await r.trainer.reduce()
    (member,) = r.trainer.members.values()
    return member


def test_a_link_that_is_lost_while_the_optimizer_works_leaves_the_weights_whole():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = Gate()
            server = r.serve(2, compute=gate)
            member = await reduced_step(r)
            gate.open.clear()
            order = order_of(r.trainer, member)
            committing = asyncio.ensure_future(r.trainer.call(member, order))
            await gate.waiting.wait()
            await r.cut_off(member)
            await asyncio.sleep(2.0)
            committing.cancel()
            assert len(r.trainer.joins) == 1  # it says what it holds when that is certain

            r.trainer.version, r.trainer.keep = 1, lambda join: join.version == 1
            gate.open.set()
            await r.trainer.until_ready(1)

            again = r.trainer.members[peer(2).raw]
            answer = await r.trainer.call(again, order_of(r.trainer, again))
            assert replace(answer, seconds=None) == Committed(1, applied=True)
            return server.version, r.trainer.joins[-1], server._replica.digest, weights_of(r)

    version, join, digest, weights = virtual(main)
    assert (version, join.version, join.digest) == (1, 1, digest)
    assert_equal(weights, plain_after(1).flat.parameters)


def test_a_commit_whose_caller_has_lost_patience_is_applied_and_begins_the_next_step():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = Gate()
            server = r.serve(2, compute=gate)
            member = await reduced_step(r)
            gate.open.clear()
            order = order_of(r.trainer, member)
            with pytest.raises(Late):
                await r.trainer.rpc.call(member.contact, order, 1.0)
            await asyncio.sleep(1.0)
            gate.open.set()
            r.trainer.version = 1
            await r.trainer.whole_step()
            return server.version, len(r.trainer.joins), weights_of(r)

    version, joins, weights = virtual(main)
    assert (version, joins) == (2, 1)
    assert_equal(weights, plain_after(2).flat.parameters)


def test_a_commit_that_is_sent_again_is_answered_alike_and_applied_once():
    async def main():
        async with swarm(ONE_STAGE) as r:
            r.serve(2)
            member = await reduced_step(r)
            order = order_of(r.trainer, member)
            async with asyncio.TaskGroup() as tasks:
                calls = [tasks.create_task(r.trainer.call(member, order)) for _ in range(3)]
            r.trainer.version = 1
            await r.trainer.whole_step()
            late = await r.trainer.call(member, order)
            answers = {replace(call.result(), seconds=None) for call in calls}
            return answers, late, len(r.trainer.joins), weights_of(r)

    answers, late, joins, weights = virtual(main)
    assert answers == {late}
    assert late.version == 1
    assert joins == 1
    assert_equal(weights, plain_after(2).flat.parameters)


def test_a_decided_commit_that_did_not_come_is_applied_in_the_next_session():
    """All servers of a stage are one commit behind: the trainer sends it again."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            r.serve(2)
            member = await reduced_step(r)
            r.world.world.partition([peer(2)])
            await member.over.wait()
            r.trainer.version = 1  # decided, and nobody heard it
            r.trainer.keep = lambda join: bool(join.held)
            r.world.world.heal()
            await r.trainer.until(lambda: len(r.trainer.joins) == 2)
            await r.trainer.until(lambda: peer(2).raw in r.trainer.members)
            again = r.trainer.members[peer(2).raw]
            answer = await r.trainer.call(again, order_of(r.trainer, again))
            await r.trainer.until_ready(1)
            assert replace(answer, seconds=None) == Committed(1, applied=True)
            await r.trainer.whole_step()
            return r.trainer.joins[-1], r.trainer.generation, weights_of(r)

    join, generation, weights = virtual(main)
    assert join.version == 0
    assert (join.held[-1].step, join.held[-1].generation) == (0, generation - 1)
    assert_equal(weights, plain_after(2).flat.parameters)


def test_weights_that_were_not_kept_are_offered_again_while_no_newer_are_here():
    async def main():
        async with swarm(ONE_STAGE) as r:
            r.serve(2)
            member = await reduced_step(r)
            for _ in range(2):  # the second session finds nobody to fetch from
                r.world.world.partition([peer(2)])
                await member.over.wait()
                r.trainer.version = 1
                r.world.world.heal()
                await r.trainer.until(lambda: peer(2).raw in r.trainer.members)
                member = r.trainer.members[peer(2).raw]
            return r.trainer.joins[1:]

    first, second = virtual(main)
    assert first.held is not None
    assert (second.version, second.digest, second.held) == (0, first.digest, first.held)
