"""Stage servers with a scripted trainer, in virtual time: they join, catch up, leave and return."""

import asyncio
import dataclasses
import gc
import weakref

import pytest
from server.gates import Gate
from server.harness import (
    CONFIG,
    RUN_ID,
    B,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.base.errors import NotServing, Refused, Unusable
from p2pswarm.base.transient_errors import DeviceLost
from p2pswarm.run.messages.membership import Leaving
from p2pswarm.run.messages.state import FetchPieces
from p2pswarm.run.messages.step import Commit


def test_a_newcomer_that_downloads_while_steps_pass_ends_bit_identical():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            r.serve(4)
            r.world.world.hosts[peer(4).raw].down_bytes_per_s = 5_000.0  # 40 s for the state
            await r.trainer.until(lambda: len(r.trainer.members) == 3)
            for _ in range(2):
                answers = await r.trainer.whole_step()
                assert answers[peer(4).raw].applied is False
            await r.trainer.until_ready(3)
            stage = r.servers[peer(4).raw].stage
            assert len(r.digests(stage)) == 1
            await r.trainer.whole_step()
            assert len(r.digests(stage)) == 1
            return weights_of(r), r.servers[peer(4).raw].version

    weights, version = virtual(main)
    assert version == 4
    assert_equal(weights, plain_after(4).flat.parameters)


def test_a_reduction_that_overtakes_the_making_of_a_newcomers_memory_is_not_missed():
    """A large stage takes long to lay out, and steps do not wait for it."""

    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with swarm(config) as it:
            await it.ready_servers(2)
            gate = Gate()
            gate.open.clear()
            newcomer = it.serve(3, compute=gate)
            await gate.waiting.wait()

            await it.trainer.step_pushes()
            answers = asyncio.create_task(it.trainer.reduce())
            await asyncio.sleep(5.0)
            gate.open.set()
            await answers
            await it.trainer.commit()
            await it.trainer.until_ready(2)

            assert newcomer.version == 1
            assert len(it.digests(0)) == 1
            assert len(it.trainer.joins) == 2

    virtual(main)


def test_a_stage_is_not_given_away_by_a_server_of_another():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            (first,) = r.trainer.of_stage(0)
            ask = FetchPieces(RUN_ID, 1)
            async with r.trainer.rpc.open_stream(first.contact, ask, 10.0) as stream:
                with pytest.raises(NotServing, match="stage 1"):
                    await stream.receive()

    virtual(main)


def test_a_server_that_comes_back_in_time_keeps_its_weights():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()
            (first,) = r.trainer.of_stage(0)
            who = first.record.peer
            await r.trainer.push(first, B)  # counted in an incarnation that ends
            await r.trainer.until_counted(B)
            r.trainer.keep = lambda join: join.version == 1
            await r.cut_off(first)
            await r.trainer.until_ready(2)
            assert r.trainer.joins[-1].digest == r.servers[who]._replica.digest
            again = r.trainer.members[who]
            flat = r.engines[who][-1].weights._flat
            assert again.record.incarnation > first.record.incarnation
            assert not flat.sum_N.any()
            with pytest.raises(NotServing, match="incarnation"):
                await r.trainer.push(again, B, incarnation=first.record.incarnation)
            return len(r.engines[who])

    assert virtual(main) == 1


def test_a_server_that_leaves_waits_for_the_step_and_says_goodbye():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3, 4)
            stage = next(s for s in (0, 1) if len(r.trainer.of_stage(s)) == 2)
            member = r.trainer.of_stage(stage)[0]
            await r.trainer.step_pushes()
            leaving = asyncio.ensure_future(r.servers[member.record.peer].leave(3.0))
            await asyncio.sleep(0.1)
            assert not leaving.done()
            await r.trainer.end_step()
            await leaving
            assert await r.running.pop(member.record.peer) == "left"
            await member.over.wait()
            return member.notes

    assert isinstance(virtual(main)[-1], Leaving)


def test_a_server_that_leaves_in_the_middle_of_a_step_does_not_wait_for_ever():
    async def main():
        async with swarm() as r:
            (server,) = await r.ready_servers(2)
            began_s = asyncio.get_running_loop().time()
            await server.leave(3.0)
            assert await r.running.pop(peer(2).raw) == "left"
            return asyncio.get_running_loop().time() - began_s

    assert virtual(main) < 5.0


def test_the_end_of_the_run_is_told():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            await r.trainer.finish()
            return await r.running.pop(peer(2).raw)

    assert virtual(main) == "done"


def test_a_newcomer_that_missed_a_reduction_keeps_its_place_and_fetches_what_is_later():
    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with swarm(config) as r:
            await r.ready_servers(2)
            await r.trainer.whole_step()
            r.serve(3)
            r.world.world.hosts[peer(3).raw].down_bytes_per_s = 2_000.0
            await r.trainer.until(lambda: len(r.trainer.members) == 2)
            await r.trainer.step_pushes()
            (old,), (new,) = r.trainer.of_stage(0), r.trainer.of_stage(0, ready=False)
            r.trainer.generation += 1
            order = dataclasses.replace(r.trainer.reduce_order(old), observers=())
            await r.trainer.call(old, order)
            answers = await r.trainer.commit()
            assert answers[peer(3).raw].applied is False
            r.world.world.hosts[peer(3).raw].down_bytes_per_s = 1e6
            await r.trainer.until_ready(2)
            assert r.trainer.members[peer(3).raw] is new
            return r.servers[peer(3).raw].version, len(r.digests(0)), len(r.trainer.joins)

    assert virtual(main) == (2, 1, 2)


def test_an_order_ends_with_the_session_that_it_was_for():
    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with swarm(config) as r:
            await r.ready_servers(2, 3)
            await r.trainer.step_pushes()
            first, _ = r.trainer.of_stage(0)
            r.trainer.generation += 1
            averaging = asyncio.ensure_future(r.trainer.call(first, r.trainer.reduce_order(first)))
            await asyncio.sleep(1.0)
            await r.trainer.finish()
            with pytest.raises(NotServing, match="incarnation is over"):
                await averaging
            return asyncio.get_running_loop().time()

    assert virtual(main) < 10.0


def test_a_server_says_when_it_serves_a_stage():
    async def main():
        async with swarm() as r:
            server = r.serve(2)
            sessions = await server.serving()
            again = asyncio.ensure_future(server.serving(sessions))
            await asyncio.sleep(1.0)
            assert not again.done()
            again.cancel()
            return sessions, server.stage, server.version

    assert virtual(main) == (1, 0, 0)


def test_a_server_that_comes_back_into_the_run_says_that_it_serves_again():
    async def main():
        async with swarm() as r:
            server, _ = await r.ready_servers(2, 3)
            sessions = await server.serving()
            await r.cut_off(r.trainer.members[peer(2).raw])
            return sessions, await server.serving(sessions), server.stage

    assert virtual(main)[:2] == (1, 2)


def test_a_server_that_waits_to_join_again_leaves_at_once():
    async def main():
        async with swarm() as r:
            (server,) = await r.ready_servers(2)
            r.world.kill(peer(1), silent=False)
            await asyncio.sleep(8.0)
            left_s = asyncio.get_running_loop().time()
            await server.leave(3.0)
            assert await r.running.pop(peer(2).raw) == "left"
            return asyncio.get_running_loop().time() - left_s

    assert virtual(main) < 1.0


def test_a_server_whose_weights_cannot_follow_joins_again_by_itself():
    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with swarm(config) as r:
            await r.ready_servers(2, 3)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            lost, _ = r.trainer.of_stage(0)
            incarnation = lost.record.incarnation
            wrong = Commit(RUN_ID, 0, r.trainer.generation - 1, incarnation, 1.0, 1e-2)
            with pytest.raises(NotServing, match="no reduction of step 0"):
                await r.trainer.call(lost, wrong)
            await lost.over.wait()
            await r.trainer.commit()
            await r.trainer.until_ready(2)
            return r.trainer.members[lost.record.peer].record.incarnation > incarnation, r.digests(
                0
            )

    rejoined, digests = virtual(main)
    assert rejoined
    assert len(digests) == 1


class BrokenMemory:
    """A compute thread without memory for the n-th piece of work."""

    def __init__(self, after, error=None):
        self.after = after
        self.error = error or Refused("out of memory")

    async def __call__(self, work):
        self.after -= 1
        if self.after == 0:
            raise self.error
        return work()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(Refused("out of memory"), Unusable, id="another run may fit"),
        pytest.param(DeviceLost("the device fails"), DeviceLost, id="no run would do"),
    ],
)
def test_a_stage_that_cannot_be_made_ends_the_server_with_a_reason(error, kind):
    async def main():
        async with swarm() as r:
            r.serve(2, compute=BrokenMemory(1, error))
            await asyncio.sleep(10.0)

    with pytest.raises(ExceptionGroup) as failed:
        virtual(main)
    (why,) = failed.value.exceptions
    assert type(why) is kind
    assert str(why) == f"stage 0 cannot be served here: {error}"


def test_a_device_that_fails_at_a_change_of_stage_ends_the_server_too():
    async def main():
        async with swarm() as r:
            server, _ = await r.ready_servers(2, 3)
            other = 1 - server._replica.stage

            def lost(stage):
                raise DeviceLost("the device fails")

            server._context = dataclasses.replace(server._context, make_engine=lost)
            r.trainer.stage_of = lambda join: other
            await r.cut_off(r.trainer.members[peer(2).raw])
            await asyncio.sleep(10.0)

    with pytest.raises(ExceptionGroup) as failed:
        virtual(main)
    assert type(failed.value.exceptions[0]) is DeviceLost


def test_a_stage_is_let_go_of_before_the_memory_of_the_next_is_made():
    """Else a machine holds both, and one that has room for one of them is refused."""

    async def main():
        async with swarm() as r:
            server, _ = await r.ready_servers(2, 3)
            former, other = weakref.ref(server._replica), 1 - server._replica.stage
            make_engine, gone = server._context.make_engine, []

            def watched(stage):
                gc.collect()
                gone.append(former() is None)
                return make_engine(stage)

            server._context = dataclasses.replace(server._context, make_engine=watched)
            r.serve(4, stage=1 - other)  # of which the stage's weights are got meanwhile
            await r.trainer.until_ready(3)
            r.trainer.stage_of = lambda join: other
            await r.cut_off(r.trainer.members[peer(2).raw])
            await r.trainer.until_ready(3)
            return gone, server._replica.stage == other

    assert virtual(main) == ([True], True)


def test_a_commit_that_could_not_be_applied_costs_neither_the_weights_nor_the_server():
    async def main():
        config = dataclasses.replace(CONFIG, stages=1)
        async with swarm(config) as r:
            await r.ready_servers(2)
            memory = BrokenMemory(0)
            (server,) = await r.ready_servers(3, compute=memory)
            await r.trainer.step_pushes()
            await r.trainer.reduce()
            member = r.trainer.members[peer(3).raw]
            memory.after = 1
            with pytest.raises(ExceptionGroup):
                await r.trainer.commit()
            await member.over.wait()
            await r.trainer.until_ready(2)
            return server.version, len(r.digests(0)), r.trainer.joins[-1].version

    assert virtual(main) == (1, 1, 0)
