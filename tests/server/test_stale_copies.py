"""Weights in memory are kept, whatever fails: they may be the last of their stage."""

import asyncio

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

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.run.messages.step import Commit
from p2pswarm.server.replica import LATE_REDUCTION_S
from p2pswarm.server.version_digest import FRESH_S


class FailsOnce(Gate):
    """A compute thread whose next work fails, before it begins or after its end."""

    def __init__(self):
        super().__init__()
        self.fails = ""

    async def __call__(self, work):
        fails, self.fails = self.fails, ""
        result = await super().__call__(work) if fails != "before" else None
        if fails:
            raise Refused("out of memory")
        return result


def order_of(trainer, member, step=0, generation=None):
    number = member.record.incarnation
    return Commit(RUN_ID, step, generation or trainer.generation, number, 1.0, 1e-2)


async def reduced_step(r, **options):
    await r.ready_servers(2, **options)
    await r.trainer.step_pushes()
    await r.trainer.reduce()
    return r.trainer.members[peer(2).raw]


@pytest.mark.parametrize(("step", "generation"), [(0, 99), (3, 1)])
def test_a_commit_of_what_was_not_averaged_here_leaves_the_weights_and_says_so(step, generation):
    async def main():
        async with swarm(ONE_STAGE) as r:
            member = await reduced_step(r)
            with pytest.raises(NotServing, match="the weights of version 0 are kept"):
                await r.trainer.rpc.call(
                    member.contact,
                    order_of(r.trainer, member, step, generation),
                    2 * LATE_REDUCTION_S,
                )
            await member.over.wait()
            r.trainer.keep = lambda join: join.version == 0
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return r.trainer.joins[-1], [line for _, line in r.said], weights_of(r)

    join, said, weights = virtual(main)
    assert (join.version, len(join.digest)) == (0, 32)
    assert any("the weights of version 0 are kept" in line for line in said)
    assert_equal(weights, plain_after(1).flat.parameters)


def test_a_stale_copy_is_brought_up_to_date_by_the_others():
    async def main():
        async with swarm(ONE_STAGE) as r:
            stale, right = r.serve(2), r.serve(3)
            await r.trainer.until_ready(2)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            members = dict(r.trainer.members)
            await r.trainer.call(members[peer(3).raw], order_of(r.trainer, members[peer(3).raw]))
            with pytest.raises(NotServing):
                await r.trainer.rpc.call(
                    members[peer(2).raw].contact,
                    order_of(r.trainer, members[peer(2).raw], generation=99),
                    2 * LATE_REDUCTION_S,
                )
            r.trainer.version = 1
            await members[peer(2).raw].over.wait()
            await r.trainer.until_ready(2)
            await r.trainer.whole_step()
            return r.trainer.joins[-1].version, stale.version, right.version, weights_of(r)

    offered, stale, right, weights = virtual(main)
    assert (offered, stale, right) == (0, 2, 2)
    assert_equal(weights, plain_after(2).flat.parameters)


def test_an_optimizer_that_fails_before_it_has_changed_anything_leaves_the_weights():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = FailsOnce()
            member = await reduced_step(r, compute=gate)
            gate.fails = "before"
            with pytest.raises(NotServing, match="step 0 was not applied: out of memory"):
                await r.trainer.call(member, order_of(r.trainer, member))
            await member.over.wait()
            r.trainer.version, r.trainer.keep = 1, lambda join: bool(join.held)
            await r.trainer.until(lambda: peer(2).raw in r.trainer.members)
            again = r.trainer.members[peer(2).raw]
            await r.trainer.call(again, order_of(r.trainer, again))
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return r.trainer.joins[-1].version, weights_of(r)

    offered, weights = virtual(main)
    assert offered == 0
    assert_equal(weights, plain_after(2).flat.parameters)


def test_an_optimizer_that_fails_when_it_has_changed_something_leaves_no_weights():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = FailsOnce()
            member = await reduced_step(r, compute=gate)
            gate.fails = "after"
            with pytest.raises(NotServing):
                await r.trainer.call(member, order_of(r.trainer, member))
            await r.trainer.until(lambda: len(r.trainer.joins) == 2)
            return r.trainer.joins[-1]

    join = virtual(main)
    assert (join.version, join.digest, join.held) == (None, b"", ())


def test_a_session_that_cannot_empty_its_sum_keeps_the_weights():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = FailsOnce()
            await r.ready_servers(2, compute=gate)
            await r.trainer.whole_step()
            r.trainer.keep = lambda join: join.version == 1
            gate.fails = "before"
            member = r.trainer.members[peer(2).raw]
            await r.cut_off(member)
            await r.trainer.until(lambda: len(r.trainer.joins) == 3)
            await r.trainer.until_ready(1)
            await r.trainer.whole_step()
            return [join.version for join in r.trainer.joins], weights_of(r)

    offered, weights = virtual(main)
    assert offered == [None, 1, 1]
    assert_equal(weights, plain_after(2).flat.parameters)


def test_weights_that_changed_by_themselves_are_not_offered_again():
    """A fault of memory between two sessions."""

    async def main():
        async with swarm(ONE_STAGE) as r:
            await r.ready_servers(2)
            await r.trainer.whole_step()
            r.trainer.keep = lambda join: join.version == 1
            r.engines[peer(2).raw][-1].weights._flat.params_N[3] += 1.0
            member = r.trainer.members[peer(2).raw]
            r.world.world.partition([peer(2)])
            await member.over.wait()
            await asyncio.sleep(FRESH_S)
            r.world.world.heal()
            await r.trainer.until(lambda: len(r.trainer.joins) == 3)
            return [join.version for join in r.trainer.joins]

    assert virtual(main) == [None, 1, None]
