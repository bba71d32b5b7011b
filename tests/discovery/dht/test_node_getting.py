"""Getting as a user meets it: a few nodes in virtual time."""

import asyncio
from dataclasses import replace

import pytest
from discovery.dht.harness import (
    ALICE,
    LAN,
    NOW_MS,
    SEED,
    STRANGER,
    SWARM_KEY,
    TTL_S,
    address,
    by_distance,
    holders,
    swarm,
)

from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.records import Verdict, sign
from p2pswarm.sim.loop import run


def test_what_one_puts_all_others_get():
    async def main():
        async with swarm(16) as world:
            assert await world.nodes[3].put(SWARM_KEY, b"a", b"value", TTL_S) >= 5
            for node in world.nodes:
                found = await node.get(SWARM_KEY)
                assert found[b"a"].value == b"value"

    run(main(), SEED)


def test_in_a_small_swarm_a_get_is_one_call():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            before = reader.calls

            await reader.get(SWARM_KEY)

            assert reader.calls - before == 1

    run(main(), SEED)


def test_a_holder_gets_its_value_without_a_call():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            holder = by_distance(world.nodes)[0]
            before = holder.calls

            assert b"" in await holder.get(SWARM_KEY)
            assert holder.calls == before

    run(main(), SEED)


def test_a_node_that_is_no_holder_any_more_asks_the_holders():
    """A stray copy may lack what others published since."""

    async def main():
        async with swarm(16) as world:
            stray = by_distance(world.nodes)[-1]
            await world.nodes[3].put(SWARM_KEY, b"a", b"old", TTL_S)
            stray.store.offer(
                (await stray.get(SWARM_KEY))[b"a"], STRANGER, int(1000 * world.wall_s())
            )
            await world.nodes[4].put(SWARM_KEY, b"b", b"new", TTL_S)

            assert sorted(await stray.get(SWARM_KEY)) == [b"a", b"b"]

    run(main(), SEED)


def test_the_newer_value_is_found():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"old", TTL_S)
            await world.nodes[3].put(SWARM_KEY, b"", b"new", TTL_S)

            found = await by_distance(world.nodes)[-1].get(SWARM_KEY)
            assert found[b""].value == b"new"

    run(main(), SEED)


def test_what_is_not_there_is_not_looked_for_again_at_once():
    async def main():
        async with swarm(16) as world:
            reader = world.nodes[3]
            assert await reader.get(SWARM_KEY) == {}
            before = reader.calls
            assert await reader.get(SWARM_KEY) == {}
            assert reader.calls == before

            await asyncio.sleep(5)
            assert await reader.get(SWARM_KEY) == {}
            assert reader.calls > before

    run(main(), SEED)


def test_gets_of_one_key_share_a_lookup():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            before = reader.calls

            found = await asyncio.gather(*[reader.get(SWARM_KEY) for _ in range(10)])

            assert reader.calls - before == 1
            assert all(b"" in each for each in found)

    run(main(), SEED)


def test_one_get_of_several_may_be_cancelled_alone():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            reader = by_distance(world.nodes)[-1]
            first = group.create_task(reader.get(SWARM_KEY))
            second = group.create_task(reader.get(SWARM_KEY))
            await asyncio.sleep(0)
            first.cancel()

            assert b"" in await second

    run(main(), SEED)


def test_a_quorum_finds_what_one_holder_lacks():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"a", b"value", TTL_S)
            await world.nodes[4].put(SWARM_KEY, b"b", b"value", TTL_S)
            for node in holders(world)[:4]:
                node.store._forget(SWARM_KEY, b"a")

            found = await by_distance(world.nodes)[-1].get(SWARM_KEY, quorum=5)

            assert sorted(found) == [b"a", b"b"]

    run(main(), SEED)


def test_a_holder_that_lacks_a_record_is_repaired():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            forgetful = by_distance(world.nodes)[0]
            forgetful.store._forget(SWARM_KEY, b"")
            reader = by_distance(world.nodes)[-1]

            await reader.get(SWARM_KEY, quorum=7)
            await asyncio.sleep(1)

            assert SWARM_KEY in forgetful.store

    run(main(), SEED)


def test_many_subkeys_come_page_by_page():
    """300 publishers' worth of records under one key, more than two messages hold."""

    async def main():
        async with swarm(4) as world:
            names = [b"%03d" % i for i in range(300)]
            for number, name in enumerate(names):
                await world.nodes[number % 4].put(SWARM_KEY, name, b"v" * 200, TTL_S)
            reader = world.enter()
            await reader.bootstrap(address(world.nodes[0]))

            assert sorted(await reader.get(SWARM_KEY)) == names

    run(main(), SEED)


def keep_many(node: Dht, count: int, signature: bytes | None = None) -> None:
    """Have a node hold `count` subkeys of one publisher, with a false signature if given."""
    for number in range(count):
        one = sign(ALICE, SWARM_KEY, b"%04d" % number, b"v", 1, NOW_MS + int(1000 * TTL_S))
        one = replace(one, signature=signature) if signature else one
        assert node.store.offer(one, ALICE.peer_id, NOW_MS) is Verdict.KEPT


@pytest.mark.parametrize("signature", [None, bytes(64)], ids=["genuine", "forged"])
def test_others_have_their_turn_while_a_node_reads_many_subkeys_of_its_own(signature):
    """Checking a thousand signatures at once would stop the node for a tenth of a second."""

    async def main():
        async with swarm(1) as world:
            node, turns = world.nodes[0], 0
            keep_many(node, 1000, signature)
            getting = asyncio.create_task(node.get(SWARM_KEY))
            while not getting.done():
                await asyncio.sleep(0)
                turns += 1

            assert len(await getting) == (0 if signature else 1000)
            assert turns >= 1000 // 128

    run(main(), SEED)


def test_what_nobody_signed_is_gone_some_time_after_it_was_read():
    async def main():
        async with swarm(2) as world:
            keep_many(world.nodes[0], 300, bytes(64))

            assert await world.nodes[1].get(SWARM_KEY) == {}
            await asyncio.sleep(2)

            assert SWARM_KEY not in world.nodes[0].store

    run(main(), SEED)


def test_lookups_are_needed_in_a_large_swarm():
    """60 nodes fill buckets: nobody knows all, and values are found all the same."""

    async def main():
        async with swarm(60) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            closest = await world.nodes[9].closest(SWARM_KEY)

            for node in world.nodes[::7]:
                assert b"" in await node.get(SWARM_KEY)
            peers = [node.contact for node in by_distance(world.nodes)]
            assert closest[:8] == [each for each in peers if each != world.nodes[9].contact][:8]

    run(main(), SEED)


def test_closing_cancels_gets_and_puts_that_wait():
    async def main():
        async with swarm(16) as world, asyncio.TaskGroup() as group:
            reader = by_distance(world.nodes)[-1]
            waiting = group.create_task(reader.get(SWARM_KEY))
            putting = group.create_task(reader.put(SWARM_KEY, b"", b"value", TTL_S))
            await asyncio.sleep(0)

            async with reader:
                pass
            await asyncio.sleep(1)

            assert waiting.cancelled()
            assert putting.cancelled()
            assert not reader._runner._tasks

    run(main(), SEED)


def test_the_same_seed_is_the_same_swarm():
    async def main() -> str:
        async with swarm(12, world=LAN) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            await world.nodes[5].get(SWARM_KEY)
            return world.net.digest

    assert run(main(), SEED) == run(main(), SEED)
