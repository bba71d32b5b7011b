"""Stage servers with a scripted trainer, in virtual time: refusals, fences and replays."""

import asyncio

import pytest
from server.gates import Gate
from server.harness import (
    RUN_ID,
    B,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.run.messages.microbatch import Handed, Undelivered
from p2pswarm.run.messages.step import CannotAverage, Fence, FencedWork


def test_a_push_for_a_former_incarnation_is_refused():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            former = first.record.incarnation - 1
            with pytest.raises(NotServing, match="incarnation"):
                await r.trainer.push(first, 0, incarnation=former)

    virtual(main)


def test_a_push_from_a_stranger_is_refused():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            push, _ = r.trainer.push_of(first, 0)
            stranger = r.world.rpc(peer(99))
            async with stranger.open_stream(first.contact, push, 10.0) as stream:
                with pytest.raises(NotServing, match="from the trainer"):
                    await stream.receive()
            with pytest.raises(Refused, match="only the trainer"):
                await stranger.call(
                    first.contact, Fence(RUN_ID, 0, first.record.incarnation, ()), 10.0
                )

    virtual(main)


def test_a_push_for_the_next_step_waits_for_the_commit():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.step_pushes()
            early = asyncio.ensure_future(r.trainer.push(first, B, step=1))
            await asyncio.sleep(1.0)
            assert not early.done()
            await r.trainer.end_step()
            receipt = await early
            await r.trainer.until_counted(B)
            return receipt

    assert virtual(main).queue_s >= 1.0


def test_a_microbatch_that_nobody_takes_is_undelivered():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            return r.trainer.notes(Undelivered)

    (note,) = virtual(main)
    assert (note.microbatch, note.attempt) == (0, 0)
    assert "nobody serves stage 1" in note.reason


def test_a_fence_is_answered_at_once_and_what_is_computed_meanwhile_is_not_counted():
    async def main():
        async with swarm() as r:
            gate = Gate()
            await r.ready_servers(2)
            await r.ready_servers(3, compute=gate)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            gate.open.clear()
            await r.trainer.push(first, 0)
            await gate.waiting.wait()
            began_s = asyncio.get_running_loop().time()
            assert await r.trainer.fence(last, 0, 0) == ()
            assert await r.trainer.fence(first, 0, 0) == ()
            assert asyncio.get_running_loop().time() - began_s < 1.0
            await asyncio.sleep(60.0)
            gate.open.set()
            with pytest.raises(NotServing, match="over"):
                await r.trainer.push(first, 0)
            for number in range(B):
                await r.trainer.push(first, number, attempt=1)
            await r.trainer.until_counted(*range(B))
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)


def test_a_fence_ends_what_is_being_handed_on():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            (first,) = r.trainer.of_stage(0)
            await r.trainer.push(first, 0)
            await r.trainer.fence(first, 0, 0)
            await r.ready_servers(3)
            await asyncio.sleep(100.0)
            return r.trainer.notes(Handed), r.trainer.notes(Undelivered)

    assert virtual(main) == ([], [])


def test_a_server_says_that_it_waits_for_one_that_stands_still():
    """What it has computed would else count as its own slowness."""

    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            stopped = r.servers[last.contact.peer.raw]
            r.world.freeze(stopped._context.rpc)
            await r.trainer.push(first, 0)
            await r.trainer.until(lambda: r.trainer.notes(Handed))
            r.world.thaw(stopped._context.rpc)
            record = last.record
            return r.trainer.notes(Handed), Handed(
                0, 0, 0, record.peer, record.incarnation, granted=False
            )

    told, expected = virtual(main)
    assert told == [expected]


def test_fences_of_a_former_incarnation_are_refused():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            (first,) = r.trainer.of_stage(0)
            order = Fence(RUN_ID, 0, first.record.incarnation + 1, (FencedWork(0, 0),))
            with pytest.raises(NotServing, match="is over"):
                await r.trainer.call(first, order)

    virtual(main)


def test_a_replay_for_a_lost_server_makes_the_step_whole():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            for number in (3, 4):
                r.serve(number)
            await r.trainer.until_ready(3)
            await r.trainer.step_pushes()
            stage = next(s for s in (0, 1) if len(r.trainer.of_stage(s)) == 2)
            lost = r.trainer.of_stage(stage)[0]
            missing = [n for n in range(B) if (stage, lost.record.peer) in r.trainer.holders(n)]
            assert missing
            r.kill(int.from_bytes(lost.record.peer))
            await lost.over.wait()
            await r.trainer.publish()
            (door, *_) = r.trainer.of_stage(0)
            for number in missing:
                await r.trainer.push(door, number, attempt=1, counting=(stage,))
            await r.trainer.until_counted(*range(B))
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)


def test_a_member_lost_while_averaging_is_done_without_in_the_next_generation():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3, 4, 5)
            await r.trainer.step_pushes()
            lost, stays = r.trainer.of_stage(1)
            mine = [n for n in range(B) if (1, lost.record.peer) in r.trainer.holders(n)]
            r.trainer.generation += 1
            order = r.trainer.reduce_order(stays)
            averaging = asyncio.ensure_future(r.trainer.call(stays, order))
            await asyncio.sleep(1.0)
            r.kill(int.from_bytes(lost.record.peer))
            answer = await averaging
            assert isinstance(answer, CannotAverage)
            assert answer.peer == lost.record.peer
            await lost.over.wait()
            await r.trainer.publish()
            (door, *_) = r.trainer.of_stage(0)
            late = [asyncio.ensure_future(r.trainer.push(door, n, 1, counting=(1,))) for n in mine]
            await asyncio.sleep(5.0)
            assert not any(len(r.trainer.holders(n)) == 2 for n in mine)
            assert await r.trainer.fence(stays, mine[0], 0) == ()
            await asyncio.gather(*late)
            await r.trainer.until_counted(*range(B))
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1).flat.parameters)
