"""Peers that claim addresses where they are not: nobody hears of these, and few are dialled."""

import asyncio
import random
from collections import Counter

import pytest
from discovery.dht.harness import address, listed, swarm, told
from worlds.dht import DhtWorld

from p2pswarm.base.ids import Address, Contact
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Find, Found, Get, Got, PeerList
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.guard.connection_limits import HandlerLimits
from p2pswarm.net.wire.message import Message
from p2pswarm.sim.loop import run
from p2pswarm.sim.rpc import SimRpc

IDS = 300
ROUNDS = 3


class NotingRpc(SimRpc):
    """Notes whom it calls."""

    def __init__(self, world, host, limits):
        super().__init__(world, host, limits)
        self.called: list[Address] = []

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        self.called.append(to.address)
        return await super().call(to, request, timeout_s)


def a_node(world: DhtWorld, address: Address | None = None) -> tuple[Dht, NotingRpc]:
    identity = Identity.generate(world.rng.randbytes(32))
    rpc = NotingRpc(world.net, world.net.enter(identity.peer_id, None, address), HandlerLimits())
    world.net.start(rpc)
    node = Dht(rpc, identity, DhtConfig(), random.Random(1), world.wall_s)
    world.nodes.append(node)
    world.rpcs.append(rpc)
    return node, rpc


async def handed_out(rpc: SimRpc, node: Dht, targets: list[bytes]) -> set[Address]:
    """All addresses that a node names to a stranger."""
    named: set[Address] = set()
    for target in targets:
        found = await rpc.call(node.contact, Find(target), 5.0)
        assert isinstance(found, Found)
        named |= {each.address for each in listed(found.peer_list)}
    return named


def claims_to_be(liar: SimRpc, at: Address) -> None:
    liar.cards.say(liar.host.peer, Contact(liar.host.peer, at))


def strangers(world: DhtWorld, count: int) -> list[SimRpc]:
    ids = [Identity.generate(world.rng.randbytes(32)).peer_id for _ in range(count)]
    return [world.net.rpc(each) for each in ids]


def test_of_300_invented_addresses_none_is_handed_out_and_none_is_dialled_twice():
    async def main():
        async with swarm(4) as world:
            node, rpc = a_node(world)
            await node.bootstrap(address(world.nodes[0]))
            liars = strangers(world, IDS)
            claims = [Address(f"{11 + i // 250}.{i % 250}.7.1", 4000 + i) for i in range(IDS)]
            targets = [each.host.peer.raw for each in liars]
            for _ in range(ROUNDS):
                for liar, claim in zip(liars, claims, strict=True):
                    claims_to_be(liar, claim)
                    await liar.call(node.contact, Find(node.table.own.raw), 5.0)
                    await asyncio.sleep(0.1)
                assert not await handed_out(liars[0], node, targets) & set(claims)

            dialled = Counter(each for each in rpc.called if each in set(claims))
            assert dialled
            assert set(dialled.values()) == {1}

            newcomer, _ = a_node(world)
            await newcomer.bootstrap(address(node))
            assert newcomer.contact.address in await handed_out(liars[0], node, targets)

    run(main(), 1)


def test_a_victim_that_300_ids_claim_to_be_is_asked_once_and_stays_what_it_is():
    async def main():
        async with swarm(4) as world:
            node, rpc = a_node(world)
            await node.bootstrap(address(world.nodes[0]))
            (stranger,) = strangers(world, 1)
            _, victim = a_node(world)
            liars = strangers(world, IDS)
            for number, liar in enumerate(liars):
                claim = Address(victim.contact.address.host, 1 + number)
                claims_to_be(liar, claim)
                await liar.call(node.contact, Find(bytes(32)), 5.0)
                await asyncio.sleep(0.05)

            hosts = [each.host for each in rpc.called]
            assert hosts.count(victim.contact.address.host) == 1
            named = await handed_out(stranger, node, [each.host.peer.raw for each in liars])
            honest = victim.contact.address
            assert {each.port for each in named if each.host == honest.host} <= {honest.port}

            await victim.call(node.contact, Find(bytes(32)), 5.0)
            await asyncio.sleep(1)  # it is dialled back
            assert honest in await handed_out(stranger, node, [victim.host.peer.raw])

    run(main(), 1)


def led_to(victim: Address, target: bytes) -> PeerList:
    """Twenty ids next to a target, all of them where the victim is."""
    near = [(int.from_bytes(target) ^ number).to_bytes(32) for number in range(1, 21)]
    return told([(raw, str(victim)) for raw in near])


@pytest.mark.parametrize("member", [False, True], ids=["nobody of the swarm", "a member"])
def test_a_third_party_that_a_liar_names_in_lookups_is_dialled_once_by_each_node(member):
    async def main():
        async with swarm(0) as world:
            public = [Address(f"{11 + i}.0.0.1", 4000) for i in range(8)]
            seed, _ = a_node(world, public[0])
            nodes = [a_node(world, each) for each in public[1:6]]
            liar, liars_rpc = a_node(world, public[6])
            for node in [each for each, _ in nodes] + [liar]:
                await node.bootstrap(address(seed))
            await asyncio.sleep(2)
            victim = Address("99.9.9.9", 4000)
            if member:
                world.net.rpc(Identity.generate(b"victim").peer_id, address=victim)
            liars_rpc.serve_unary(Find, lambda _, find: Found(led_to(victim, find.target)))
            liars_rpc.serve_unary(Get, lambda _, get: Got((), False, led_to(victim, get.key)))

            for number in range(30):
                for node, _ in nodes:
                    await node.get(world.rng.randbytes(32))
                    await node.closest(world.rng.randbytes(32))
                await asyncio.sleep(number)

            dials = [[each.host for each in rpc.called].count(victim.host) for _, rpc in nodes]
            assert sum(dials) > 0
            assert max(dials) == 1
            await nodes[0][0].put(bytes(32), b"", b"value", 60.0)
            for node, _ in nodes[1:]:
                assert (await node.get(bytes(32)))[b""].value == b"value"

    run(main(), 1)
