"""Servers whose trainer goes away, stands by, or comes back: they find the one that coordinates."""

import asyncio

import pytest
from server.harness import CONFIG, ScriptedTrainer, peer, swarm, virtual

from p2pswarm.base.errors import LinkLost, Refused
from p2pswarm.run.messages.membership import Join, StandsBy
from p2pswarm.server.trainer_search import SEEK_S


def now_s():
    return asyncio.get_running_loop().time()


async def found_again_after(away_s, r):
    """How long a trainer that was away for so long waits for its server."""
    await r.ready_servers(2)
    r.world.kill(peer(1), silent=False)
    await asyncio.sleep(away_s)
    back = ScriptedTrainer(r.world.rpc(peer(1)), CONFIG)
    began_s = now_s()
    await back.until_ready(1)
    return now_s() - began_s


def test_a_trainer_that_returns_after_ten_seconds_has_its_server_again_within_two():
    async def main():
        async with swarm() as r:
            return await found_again_after(10.0, r)

    assert virtual(main) < 2.5


def test_a_trainer_that_was_away_for_an_hour_finds_its_server_again():
    async def main():
        async with swarm() as r:
            return await found_again_after(3600.0, r), [line for _, line in r.said]

    took_s, said = virtual(main, limit_s=1e5)
    assert took_s < SEEK_S + 2.0
    assert len(said) == 3
    assert "looking for it every 10 s" in said[1]
    assert said[2].endswith("is there again")


def test_a_trainer_that_was_frozen_for_ninety_seconds_finds_its_server_again():
    """Nobody can tell a frozen process from an unplugged cable."""

    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            r.world.world.partition([peer(1)])
            await asyncio.sleep(90.0)
            r.world.world.heal()
            began_s = now_s()
            await r.trainer.until(lambda: len(r.trainer.joins) > 1)
            await r.trainer.until_ready(1)
            return now_s() - began_s

    assert virtual(main) < SEEK_S + 10.0


def test_a_standby_sends_servers_to_the_coordinator():
    async def main():
        async with swarm() as r:
            standby = r.world.rpc(peer(1))
            other = ScriptedTrainer(r.world.rpc(peer(9)), CONFIG)

            async def stand_by(stream, join):
                where = other.rpc.contact
                await stream.send(StandsBy(where.peer.raw, str(where.address)))

            standby.serve_stream(Join, stand_by)
            server = r.serve(2)
            await other.until_ready(1)
            (member,) = other.of_stage(0)
            assert await other.fence(member, 0, 0) == ()
            return now_s(), server.version

    took_s, version = virtual(main)
    assert took_s < 2.0
    assert version == 0


def test_a_trainer_that_the_server_is_told_of_is_asked_though_another_does_not_answer():
    async def main():
        async with swarm() as r:
            (server,) = await r.ready_servers(2)
            r.world.kill(peer(1), silent=True)
            await asyncio.sleep(40.0)
            other = ScriptedTrainer(r.world.rpc(peer(9)), CONFIG)
            began_s = now_s()
            assert await server.seeker.seeking() == SEEK_S
            server.seeker.found([other.rpc.contact])
            await other.until_ready(1)
            return now_s() - began_s, server.seeker.seeks

    took_s, seeks = virtual(main)
    assert took_s < 2.0
    assert not seeks


def test_a_server_that_gives_its_run_up_ends_at_once():
    async def main():
        async with swarm() as r:
            (server,) = await r.ready_servers(2)
            r.world.kill(peer(1), silent=True)
            await asyncio.sleep(30.0)
            assert not server.seeker.gave_up
            server.seeker.give_up("another run was found")
            began_s = now_s()
            reason = await r.running.pop(peer(2).raw)
            return reason, server.seeker.gave_up, now_s() - began_s

    assert virtual(main) == ("another run was found", True, 0.0)


def test_a_former_coordinator_gives_no_orders():
    async def main():
        async with swarm() as r:
            (server,) = await r.ready_servers(2)
            (former,) = r.trainer.of_stage(0)
            r.world.world.partition([peer(1)])
            await asyncio.sleep(40.0)
            other = ScriptedTrainer(r.world.rpc(peer(9)), CONFIG)
            server.seeker.found([other.rpc.contact])
            await other.until_ready(1)
            r.world.world.heal()
            with pytest.raises(Refused, match="only the trainer"):
                await r.trainer.fence(former, 0, 0)

    virtual(main)


@pytest.mark.parametrize("turns", range(12))
def test_a_server_that_is_cancelled_while_it_loses_its_trainer_ends(turns):
    """Both come in one turn of the event loop for some of these."""

    async def main():
        async with swarm() as r:
            r.serve(2)
            await r.trainer.until_ready(1)
            running, server = r.running[peer(2).raw], r.servers[peer(2).raw]
            server._session.fail(LinkLost("the link ended"))
            for _ in range(turns):
                await asyncio.sleep(0)

            running.cancel()
            await asyncio.wait((running,), timeout=5.0)

            return running.cancelled()

    assert virtual(main)
