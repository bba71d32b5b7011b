"""Servers that are asked to leave: nothing that they counted is lost if there is time."""

import asyncio

import pytest
from server.gates import Gate
from server.harness import (
    ONE_STAGE,
    B,
    assert_equal,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.base.errors import NotServing
from p2pswarm.base.ids import Address, Contact
from p2pswarm.run.messages.membership import Assigned, Leaving
from p2pswarm.server.lifecycle import Lifecycle
from p2pswarm.server.stage_server import GOODBYE_S


def now_s():
    return asyncio.get_running_loop().time()


def test_the_last_server_of_a_stage_hands_its_weights_to_a_newcomer_before_it_leaves():
    async def main():
        async with swarm(ONE_STAGE) as r:
            (old,) = await r.ready_servers(2)
            await r.trainer.whole_step()
            leaving = asyncio.ensure_future(old.leave(60.0))
            await asyncio.sleep(10.0)
            await r.trainer.whole_step()
            assert not leaving.done()

            new = r.serve(3)
            await leaving
            assert await r.running.pop(peer(2).raw) == "left"
            await r.trainer.until(lambda: len(r.trainer.members) == 1)
            del r.servers[peer(2).raw]

            await r.trainer.whole_step()
            return new.version, weights_of(r), r.said

    version, weights, said = virtual(main)
    assert version == 3
    assert_equal(weights, plain_after(3, ONE_STAGE).flat.parameters)
    assert [who for who, _ in said] == [peer(2).raw]
    assert "no other server has the weights of this stage" in said[0][1]


def test_the_last_server_of_a_stage_leaves_when_its_grace_is_over():
    async def main():
        async with swarm(ONE_STAGE) as r:
            (server,) = await r.ready_servers(2)
            began_s = now_s()
            await server.leave(20.0)
            assert await r.running.pop(peer(2).raw) == "left"
            return now_s() - began_s, [line for _, line in r.said]

    took_s, said = virtual(main)
    assert 20.0 <= took_s < 21.0
    assert "they are lost with this process" in said[-1]


def test_a_server_that_has_counted_nothing_leaves_at_once_however_long_it_may_take():
    async def main():
        async with swarm(ONE_STAGE) as r:
            r.serve(2)
            server = r.serve(3)
            await r.trainer.until_ready(2)
            began_s = now_s()
            await server.leave(3600.0)
            assert await r.running.pop(peer(3).raw) == "left"
            return now_s() - began_s

    assert virtual(main) < 1.0


def test_a_server_with_a_count_takes_nothing_new_on_and_waits_for_the_commit():
    async def main():
        async with swarm(ONE_STAGE) as r:
            server = r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            member = r.trainer.members[peer(2).raw]
            for number in range(B - 1):
                await r.trainer.push(member, number)
            leaving = asyncio.ensure_future(server.leave(100.0))
            await asyncio.sleep(50.0)
            with pytest.raises(NotServing, match="this server is leaving"):
                await r.trainer.push(member, B - 1)
            await r.trainer.push(r.trainer.members[peer(3).raw], B - 1)
            await r.trainer.until_counted(*range(B))
            await r.trainer.reduce()
            assert not leaving.done()
            await r.trainer.commit()
            await leaving
            await member.over.wait()
            return member.notes[-1]

    assert isinstance(virtual(main), Leaving)


def test_what_is_in_hand_is_finished_before_a_server_leaves():
    async def main():
        async with swarm(ONE_STAGE) as r:
            gate = Gate()
            server = r.serve(2, compute=gate)
            r.serve(3)
            await r.trainer.until_ready(2)
            member = r.trainer.members[peer(2).raw]
            gate.open.clear()
            pushing = asyncio.ensure_future(r.trainer.push(member, 0))
            await gate.waiting.wait()
            leaving = asyncio.ensure_future(server.leave(30.0))
            await asyncio.sleep(5.0)
            gate.open.set()
            await pushing
            await r.trainer.until(lambda: r.trainer.holders(0))
            assert not leaving.done()
            leaving.cancel()

    virtual(main)


def test_a_commit_that_crosses_the_goodbye_of_a_server_is_carried_out():
    async def main():
        async with swarm(ONE_STAGE) as r:
            server = r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            member, other = (r.trainer.members[peer(number).raw] for number in (2, 3))
            for number in range(B):
                await r.trainer.push(other, number)
            await r.trainer.until_counted(*range(B))
            await r.trainer.reduce()
            answers = {}

            async def crosses():
                answers.update(await r.trainer.commit())

            r.trainer.before_goodbye = crosses
            await server.leave(30.0)
            await member.over.wait()
            assert await r.running.pop(peer(2).raw) == "left"
            return answers[peer(2).raw].applied, server.version, member.notes[-1]

    assert virtual(main) == (True, 1, Leaving())


def test_a_server_that_nobody_answers_leaves_all_the_same():
    async def main():
        async with swarm(ONE_STAGE) as r:
            server = r.serve(2)
            r.serve(3)
            await r.trainer.until_ready(2)
            r.trainer.before_goodbye = asyncio.Event().wait
            began_s = now_s()
            await server.leave(30.0)
            assert await r.running.pop(peer(2).raw) == "left"
            return now_s() - began_s

    assert GOODBYE_S <= virtual(main) < 2 * GOODBYE_S


def test_a_server_without_a_session_leaves_though_its_join_is_not_answered():
    async def main():
        async with swarm(ONE_STAGE) as r:
            r.world.kill(peer(1), silent=True)
            server = r.serve(2)
            await asyncio.sleep(1.0)
            began_s = now_s()
            await server.leave(20.0)
            assert await r.running.pop(peer(2).raw) == "left"
            return now_s() - began_s

    assert virtual(main) < 0.1


def test_of_two_last_servers_that_leave_at_once_one_stays_until_another_has_the_weights():
    async def main():
        async with swarm(ONE_STAGE) as r:
            first, second = r.serve(2), r.serve(3)
            await r.trainer.until_ready(2)
            await r.trainer.whole_step()
            leaving = [asyncio.ensure_future(one.leave(60.0)) for one in (first, second)]
            await r.trainer.until(lambda: len(r.trainer.leaving) == 2)
            await asyncio.sleep(5.0)
            here = len(r.trainer.members)
            r.serve(4)
            await asyncio.gather(*leaving)
            await r.trainer.until(lambda: list(r.trainer.members) == [peer(4).raw])
            for number in (2, 3):
                assert await r.running.pop(peer(number).raw) == "left"
                del r.servers[peer(number).raw]
            await r.trainer.whole_step()
            return here, weights_of(r)

    here, weights = virtual(main)
    assert here >= 1
    assert_equal(weights, plain_after(2, ONE_STAGE).flat.parameters)


def test_a_server_computes_on_until_the_trainer_answers_whether_it_may_leave():
    one = Lifecycle([Contact(peer(1), Address("10.0.0.1", 1))], 60.0, 0.0)
    one.joining(0.0)
    one.answered(Assigned(0, 5, 3, keep=False))
    one.prepared()
    one.loaded()

    one.leave(50.0, 20.0)

    assert (one.closing, one.remarks()) == (False, [])
    one.on_deadline(70.0)
    assert one.must_say_goodbye
    assert one.remarks() == [], "nobody said that it is the last"
