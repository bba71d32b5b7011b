"""A DHT that was cut in two, or began in two, is one within half a minute; in virtual time."""

import asyncio
import contextlib
import random
from collections.abc import Sequence

import pytest
from core import core_of
from sim.seed import SEED
from worlds.dht import DhtWorld, DhtWorldConfig, fill_tables, whole_share

from p2pswarm.base.errors import NoRoute
from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.routing_table import Neighbour, neighbour
from p2pswarm.sim.loop import run
from p2pswarm.sim.network_conditions import WorldConfig

HEAL_S = 30.0
TTL_S = 60.0
MOST = 0.95  # a node that nobody has greeted may lack a neighbour until it refreshes
LAN = WorldConfig(rtt_median_s=0.02, rtt_least_s=0.002)


def settled(count: int, *, public: bool = False) -> DhtWorld:
    """Nodes that have been there for a while, at public or at private addresses."""
    world = DhtWorld(DhtWorldConfig(nodes=0 if public else count, stale=0.0, seed=SEED, world=LAN))
    if public:
        chance = random.Random(SEED)
        for number in range(count):
            host = f"{chance.randrange(20, 90)}.{number % 250}.{chance.randrange(250)}.7"
            world.enter(address=Address(host, 4000))
        everybody: list[Neighbour] = [neighbour(rpc.contact, 0.0) for rpc in world.rpcs]
        fill_tables([node.table for node in world.nodes], everybody, SEED)
    return world


async def live(node: Dht, seeds: Sequence[Contact] = (), key: bytes = b"") -> None:
    """As a node does, which publishes something, too."""
    with contextlib.suppress(NoRoute):
        await node.bootstrap(seeds)
    if key:
        await node.put(key, b"", key, TTL_S)
    await node.maintain()


async def until_one(nodes: Sequence[Dht], patience_s: float, share: float = 1.0) -> float:
    now = asyncio.get_running_loop().time
    begun_s = now()
    async with asyncio.timeout(patience_s):
        for _ in iter(lambda: whole_share(nodes) >= share, True):
            await asyncio.sleep(0.5)
    return now() - begun_s


@pytest.mark.parametrize("public", [False, True])
@pytest.mark.parametrize(
    ("count", "apart_s"), core_of([(2, 60), (9, 600), (100, 60), (60, 600)], [(2, 60), (9, 600)])
)
def test_halves_that_were_cut_apart_are_one_table_again_within_half_a_minute(
    count, apart_s, public
):
    async def main() -> None:
        world = settled(count, public=public)
        nodes = world.nodes
        keys = [bytes([number]) * 32 for number in range(10)]
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(live(node, (), keys[number] if number < len(keys) else b""))
                for number, node in enumerate(nodes)
            ]
            await asyncio.sleep(20)
            world.net.world.partition([node.contact.peer for node in nodes[::2]])
            await asyncio.sleep(apart_s)
            world.net.world.heal()
            await until_one(nodes, HEAL_S)
            await asyncio.sleep(HEAL_S)  # each value was published again, and was missed before
            for number, key in enumerate(keys[: len(nodes)]):
                assert b"" in await nodes[(number + 1) % len(nodes)].get(key)
            for task in tasks:
                task.cancel()
        await world.close()

    run(main(), SEED)


@pytest.mark.parametrize(
    ("halves", "k"),
    core_of(
        [((60, 60), 20), ((110, 10), 20), ((30, 10), 20), ((40, 1), 20), ((80, 80), 8)],
        [((30, 10), 20), ((40, 1), 20)],
    ),
)
def test_halves_that_began_apart_are_nearly_one_table_after_one_hint(halves, k):
    """Nobody has a seed of the other half; then one node is told of one of the others.

    With a small k no node knows all of its own half, as in a large swarm, and some lack neighbours
    in their own half already: then they are as nearly one table as each half was.
    """

    async def main() -> None:
        dht = DhtConfig(k=k)
        world = DhtWorld(DhtWorldConfig(nodes=0, stale=0.0, seed=SEED, world=LAN, dht=dht))
        async with asyncio.TaskGroup() as group:
            tasks, parts = [], []
            for count in halves:
                part = [world.enter() for _ in range(count)]
                seed = [Contact(None, part[0].contact.address)]
                tasks += [group.create_task(live(node, seed)) for node in part]
                parts.append(part)
            await asyncio.sleep(300)
            a, b = parts
            assert all(b[0].contact.peer.raw not in {n.raw for n in node.table} for node in a)

            as_before = min(MOST, whole_share(a), whole_share(b))
            assert as_before > 0.8

            await a[-1].bootstrap([Contact(None, b[-1].contact.address)])
            await until_one(world.nodes, HEAL_S, as_before)

            for task in tasks:
                task.cancel()
        await world.close()

    run(main(), SEED)


def test_peers_that_ended_cost_a_node_one_call_in_five_seconds():
    async def main() -> None:
        world = settled(60)
        nodes = world.nodes[:10]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(live(node)) for node in nodes]
            for node in world.nodes[10:]:
                world.net.kill(node.contact.peer)
            for node in nodes:
                for each in list(node.table):
                    await node.closest(each.raw)
            before = sum(node.calls for node in nodes)
            await asyncio.sleep(300)
            calls = (sum(node.calls for node in nodes) - before) / len(nodes)
            assert calls < 300 / 4, "greetings are no calls: nothing else goes on"
            for task in tasks:
                task.cancel()
        await world.close()

    run(main(), SEED)
