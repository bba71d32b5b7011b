"""Putting as a user meets it: a few nodes in virtual time."""

import asyncio

import pytest
from discovery.dht.harness import (
    SEED,
    SWARM_KEY,
    TTL_S,
    address,
    by_distance,
    holders,
    now_s,
    rpc_of,
    swarm,
)

from p2pswarm.base.errors import NoRoute, Refused, Unusable
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Store, Stored
from p2pswarm.sim.loop import run


def test_the_eight_closest_hold_a_value():
    """Five when `put` returns, the rest soon after; in a small swarm without any lookup."""

    async def main():
        async with swarm(16) as world:
            publisher = world.nodes[3]
            before = publisher.calls
            await publisher.put(SWARM_KEY, b"", b"value", TTL_S)
            assert len(holders(world)) == 5
            await asyncio.sleep(1)

            assert by_distance(holders(world)) == by_distance(world.nodes)[:8]
            assert publisher.calls - before <= 8

    run(main(), SEED)


def test_a_swarm_of_one_serves_itself():
    async def main():
        async with swarm(1) as world:
            assert await world.nodes[0].put(SWARM_KEY, b"", b"value", TTL_S) == 1
            assert b"" in await world.nodes[0].get(SWARM_KEY)

    run(main(), SEED)


def test_values_expire():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", 20.0)
            await asyncio.sleep(20)

            assert [await node.get(SWARM_KEY) for node in world.nodes] == [{}] * 16

    run(main(), SEED)


def test_our_own_values_live_on_until_they_are_withdrawn():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            upkeep = [group.create_task(node.maintain()) for node in world.nodes]
            reader, publisher = by_distance(world.nodes)[-1], world.nodes[3]
            await publisher.put(SWARM_KEY, b"kept", b"value", 30.0)
            await publisher.put(SWARM_KEY, b"once", b"value", 30.0, republish=False)
            await publisher.put(SWARM_KEY, b"gone", b"value", 30.0)
            publisher.withdraw(SWARM_KEY, b"gone")
            await asyncio.sleep(100)

            assert list(await reader.get(SWARM_KEY)) == [b"kept"]
            assert sum(len(node.store) for node in world.nodes) == 8
            for task in upkeep:
                task.cancel()

    run(main(), SEED)


def test_a_value_is_published_again_however_long_nothing_else_is_due():
    """`maintain` sleeps without a deadline until a put wakes it."""

    async def main():
        async with swarm(1) as world, asyncio.TaskGroup() as group:
            node = world.nodes[0]
            task = group.create_task(node.maintain())
            await asyncio.sleep(1000)

            await node.put(SWARM_KEY, b"", b"value", 60.0)
            await asyncio.sleep(500)

            assert b"" in await node.get(SWARM_KEY)
            task.cancel()

    run(main(), SEED)


def test_a_holder_that_answers_a_batch_with_nonsense_is_dropped():
    async def main():
        async with swarm(16) as world:
            publisher, liar = world.nodes[3], by_distance(world.nodes)[7]
            assert publisher is not liar
            rpc_of(world, liar).serve_unary(Store, lambda *_: Stored(b"\0\0\0"))

            await publisher.put(SWARM_KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)

            assert publisher.table.get(liar.contact.peer.raw) is None
            assert len(holders(world)) == 8

    run(main(), SEED)


def test_what_we_put_ourselves_is_looked_for_at_once():
    async def main():
        async with swarm(16) as world:
            node = by_distance(world.nodes)[-1]
            assert await node.get(SWARM_KEY) == {}

            await node.put(SWARM_KEY, b"", b"value", TTL_S)

            assert b"" in await node.get(SWARM_KEY)

    run(main(), SEED)


def test_dead_holders_do_not_hold_up_a_put():
    async def main():
        async with swarm(16) as world:
            for node in by_distance(world.nodes)[:4]:
                world.net.kill(node.contact.peer)
            publisher = by_distance(world.nodes)[-1]
            begin_s = now_s()

            assert await publisher.put(SWARM_KEY, b"", b"value", TTL_S) >= 5
            assert now_s() - begin_s < 0.1
            assert b"" in await by_distance(world.nodes)[-2].get(SWARM_KEY)

    run(main(), SEED)


def test_the_late_replicas_reach_the_holders_that_are_left():
    """Ourselves among them; one that died meanwhile is replaced by the next."""

    async def main():
        async with swarm(16) as world:
            closest = by_distance(world.nodes)
            publisher = closest[5]
            await publisher.put(SWARM_KEY, b"", b"value", TTL_S)
            world.net.kill(closest[7].contact.peer)
            await asyncio.sleep(3)

            assert by_distance(holders(world)) == [*closest[:7], closest[8]]

    run(main(), SEED)


def test_when_no_record_may_wait_only_the_late_replicas_are_lost():
    async def main():
        async with swarm(16, DhtConfig(batches=0)) as world:
            assert await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S) >= 5
            await asyncio.sleep(1)
            assert len(holders(world)) == 5
            assert not world.nodes[3]._runner.running

    run(main(), SEED)


def test_a_client_without_peers_has_nowhere_to_put():
    async def main():
        async with swarm(0) as world:
            client = world.enter(DhtConfig(server=False))
            with pytest.raises(NoRoute, match="no peer could be reached"):
                await client.put(SWARM_KEY, b"", b"value", TTL_S)
            assert await client.get(SWARM_KEY) == {}

    run(main(), SEED)


def test_when_all_peers_are_gone_a_put_says_so():
    async def main():
        async with swarm(3) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            for node in world.nodes[:3]:
                world.net.kill(node.contact.peer)

            with pytest.raises(NoRoute):
                await client.put(SWARM_KEY, b"", b"value", TTL_S)
            assert await client.get(SWARM_KEY) == {}

    run(main(), SEED)


def test_a_wrong_clock_is_named():
    async def main():
        async with swarm(3) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            client._wall_s = lambda: world.wall_s() - 3600

            with pytest.raises(Unusable, match="clock"):
                await client.put(SWARM_KEY, b"", b"value", TTL_S)

    run(main(), SEED)


@pytest.mark.parametrize("nodes", [1, 12])
def test_a_server_whose_clock_is_behind_is_told_so_when_it_publishes(nodes):
    """It keeps its value itself; by all other clocks that is over."""

    async def main():
        async with swarm(nodes) as world:
            late = world.enter()
            await late.bootstrap(address(world.nodes[0]))
            late._wall_s = lambda: world.wall_s() - 300

            with pytest.raises(Unusable, match="clock"):
                await late.put(SWARM_KEY, b"", b"value", 60.0)

    run(main(), SEED)


def test_a_full_quota_is_named():
    async def main():
        async with swarm(3, DhtConfig(records_per_publisher=1)) as world:
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            await client.put(SWARM_KEY, b"a", b"value", TTL_S)

            with pytest.raises(Refused, match="QUOTA"):
                await client.put(SWARM_KEY, b"b", b"value", TTL_S, republish=False)

    run(main(), SEED)


@pytest.mark.parametrize("ttl_s", [0.0, 3601.0])
def test_a_time_to_live_that_no_peer_grants_is_our_callers_mistake(ttl_s):
    async def main():
        async with swarm(1) as world:
            with pytest.raises(ValueError, match="a value lives up to 3600 s"):
                await world.nodes[0].put(SWARM_KEY, b"", b"value", ttl_s)

    run(main(), SEED)


def test_verdicts_of_a_future_version_are_no_success():
    async def main():
        async with swarm(2) as world:
            rpc_of(world, world.nodes[0]).serve_unary(Store, lambda *_: Stored(b"\xff"))
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))
            world.net.kill(world.nodes[1].contact.peer)

            with pytest.raises(NoRoute):
                await client.put(SWARM_KEY, b"", b"value", TTL_S)

    run(main(), SEED)


def test_closing_drops_the_records_that_wait_in_batches():
    async def main():
        async with swarm(16) as world:
            publisher = world.nodes[3]
            await publisher.put(SWARM_KEY, b"", b"value", TTL_S)
            await publisher.close()
            await asyncio.sleep(1)

            assert len(holders(world)) == 5

    run(main(), SEED)
