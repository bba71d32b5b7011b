"""What nodes answer each other: liars, unsigned records, gets that are carried on."""

import asyncio
from dataclasses import replace

import pytest
from discovery.dht.harness import (
    SEED,
    SWARM_KEY,
    TTL_S,
    address,
    by_distance,
    holders,
    rpc_of,
    swarm,
    told,
)
from worlds.dht import DhtWorld

from p2pswarm.base.errors import PeerError
from p2pswarm.base.ids import PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import HOPS_MAX, Get, Got, Pong, Record, Store
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.discovery.dht.records import sign
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Rpc
from p2pswarm.sim.loop import run


class Liar:
    """A server whose answers are made up."""

    def __init__(self, world: DhtWorld) -> None:
        node = world.enter()
        self.rpc: Rpc = rpc_of(world, node)
        self.node = node
        self.asked = 0

    def answer(self, request: type, reply: object) -> None:
        def told(_peer: PeerId, _request: object) -> object:
            self.asked += 1
            if isinstance(reply, Exception):
                raise reply
            return reply

        self.rpc.serve_unary(request, told)


STRAY = sign(Identity.generate(b"x"), b"k" * 32, b"", b"v", 1, 1_700_000_300_000)
FORGED = replace(STRAY, key=SWARM_KEY, value=b"forged")


@pytest.mark.parametrize(
    "lie",
    [
        Pong(),
        Got((STRAY,), False, told([])),
        Got((), False, told([(b"x" * 32, "no address")])),
        PeerError("breach"),
    ],
    ids=["another answer", "a record of another key", "no contacts", "breaks the rpc"],
)
def test_liars_are_dropped_and_the_value_is_found(lie):
    async def main():
        async with swarm(8) as world:
            liar = Liar(world)
            await liar.node.bootstrap(address(world.nodes[0]))
            liar.answer(Get, lie)
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            reader = world.enter(DhtConfig(server=False, replicas_success=8))
            await reader.bootstrap(address(world.nodes[0]))
            await asyncio.sleep(1)
            reader.timeouts._trips[liar.node.contact.peer.raw].srtt_s = 0.0  # so it is asked first

            found = await reader.get(SWARM_KEY)

            assert liar.asked == 1
            assert found[b""].value == b"value"
            assert reader.table.get(liar.node.contact.peer.raw) is None

    run(main(), SEED)


def test_a_forged_record_is_passed_over():
    async def main():
        async with swarm(8) as world:
            liar = Liar(world)
            await liar.node.bootstrap(address(world.nodes[0]))
            liar.answer(Get, Got((FORGED,), False, told([])))
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            reader = world.enter(DhtConfig(server=False, replicas_success=8))
            await reader.bootstrap(address(world.nodes[0]))
            await asyncio.sleep(1)
            reader.timeouts._trips[liar.node.contact.peer.raw].srtt_s = 0.0  # so it is asked first

            found = await reader.get(SWARM_KEY)

            assert liar.asked == 1
            assert found[b""].value == b"value"

    run(main(), SEED)


def test_what_its_publisher_did_not_sign_is_returned_to_nobody():
    """Not to others, not to its holder's own user; and its holders forget it when it was read."""

    async def main():
        async with swarm(8) as world:
            publisher = by_distance(world.nodes)[-1]
            false = replace(await signed(publisher, world), value=b"unsigned")
            for node in world.nodes:
                await rpc_of(world, publisher).call(node.contact, Store((false,)), 1.0)
            assert len(holders(world)) == 8

            assert [await node.get(SWARM_KEY) for node in world.nodes] == [{}] * 8
            await asyncio.sleep(1)
            await carried(world.nodes[0], world)
            await asyncio.sleep(1)
            assert SWARM_KEY not in world.nodes[0].store

    run(main(), SEED)


async def signed(node: Dht, world: DhtWorld) -> Record:
    return sign(
        node._publisher._identity, SWARM_KEY, b"", b"v", 1, int(1000 * (world.wall_s() + TTL_S))
    )


def carried(node: Dht, world: DhtWorld, hops: int = HOPS_MAX) -> Got:
    """What `node` answers to a get that it may carry on."""
    return rpc_of(world, world.nodes[-1]).call(
        node.contact, Get(SWARM_KEY, b"", False, hops), timeout_s=5.0
    )


def test_a_node_that_is_asked_asks_on():
    async def main():
        async with swarm(16) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            client = world.enter(DhtConfig(server=False))
            far = by_distance(world.nodes[:16])[-1]

            plain = await carried(far, world, hops=0)
            found = await carried(far, world)

            assert plain.records == ()
            assert [record.value for record in found.records] == [b"value"]
            assert client.calls == 0

    run(main(), SEED)


def test_a_node_that_finds_nothing_says_whom_it_knows():
    async def main():
        async with swarm(16) as world:
            got = await carried(world.nodes[0], world)

            assert got.records == ()
            assert len(got.peer_list.cards) == 14  # all but the asked and the runner

    run(main(), SEED)


def test_what_is_too_large_to_be_carried_is_left_to_the_asker():
    async def main():
        async with swarm(16) as world:
            for i in range(20):
                await world.nodes[3].put(SWARM_KEY, b"%d" % i, b"v" * 4000, TTL_S)
            await asyncio.sleep(1)
            client = world.enter(DhtConfig(server=False))
            await client.bootstrap(address(world.nodes[0]))

            got = await carried(by_distance(world.nodes[:16])[-1], world)

            assert got.records == ()
            assert len(got.peer_list.cards) > 0
            assert len(await client.get(SWARM_KEY)) == 20

    run(main(), SEED)


def test_the_number_of_gets_carried_at_once_is_limited():
    async def main():
        async with swarm(16, DhtConfig(carrying=1)) as world:
            await world.nodes[3].put(SWARM_KEY, b"", b"value", TTL_S)
            await asyncio.sleep(1)
            far = by_distance(world.nodes)[-1]

            answers = await asyncio.gather(*[carried(far, world) for _ in range(3)])

            assert [len(got.records) for got in answers] == [1, 0, 0]

    run(main(), SEED)
