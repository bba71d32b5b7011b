"""Signed cards in the DHT, over real handshakes in virtual time: who is found, and who is not."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from discovery.dht.harness import KEY
from net.link.harness import NotedNet
from sim.virtual import virtual_time
from worlds.net import SimInternet

from p2pswarm.base.errors import NoRoute
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.messages import Find, Found, Get, Got, PeerList, peers_in
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.cards.card import TAG, Card, CardFlags, SignedCard, decode_card
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import encode

DEAD_V6, VICTIM = Address("2600::1", 4000), Address("99.9.9.9", 4000)
BOB, EVE = Identity.generate(b"bob"), Identity.generate(b"eve")


class NotingNet(NotedNet):
    """A network in which one address can be slow."""

    def __init__(self, net) -> None:
        super().__init__(net)
        self.slow: Address | None = None
        """Where connections take a second."""

    async def dial(self, to, from_port=0):
        connection = await super().dial(to, from_port)
        await asyncio.sleep(1.0 if to == self.slow else 0.0)
        return connection


class Node:
    """A node and what it stands on."""

    def __init__(self, endpoint: Endpoint, rpc: LinkRpc, dht: Dht, net: NotingNet) -> None:
        self.endpoint, self.rpc, self.dht, self.net = endpoint, rpc, dht, net
        self.peer = endpoint.peer_id

    @property
    def at(self) -> Contact:
        return Contact(None, self.endpoint.listening[0])

    def knows(self) -> list[Contact]:
        return [each.contact for each in self.dht.table]


class Swarm:
    """Nodes at public addresses of an internet."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rng = random.Random(1)
        self.internet = SimInternet(1)

    async def add(self, identity: Identity | None = None, *said: Address, server=True) -> Node:
        """A node that listens; `said`: what it announces, if it is not where it listens."""
        identity = identity or Identity.generate(self._rng.randbytes(32))
        number = len(self.internet.world.hosts)
        self.internet.world.place(identity.peer_id, (0.5, 0.5), Address(f"{11 + number}.8.1.1", 1))
        net = NotingNet(self.internet.net(identity.peer_id))
        endpoint = Endpoint(identity, net, TransportConfig(), self._rng.randbytes)
        await self._stack.enter_async_context(endpoint)
        at = await endpoint.listen(Address("0.0.0.0", 4000))
        flags = CardFlags.NONE if server else CardFlags.CLIENT
        endpoint.announce((said or (at,)) if server else (), flags=flags)
        rpc = await self._stack.enter_async_context(LinkRpc(endpoint))
        clock = asyncio.get_running_loop().time
        dht = Dht(rpc, identity, DhtConfig(server=server), self._rng, clock)
        await self._stack.enter_async_context(dht)
        return Node(endpoint, rpc, dht, net)


in_virtual_time = virtual_time(Swarm)


async def handed_out(asker: Node, teller: Node, target: bytes) -> list[Contact]:
    """Whom a node names to another one."""
    found = await asker.rpc.call(teller.at, Find(target), 5.0)
    assert isinstance(found, Found)
    return [named for named, _ in peers_in(found.peer_list, decode_card)]


@in_virtual_time
async def test_a_node_behind_a_nat_is_in_no_table_and_nobody_is_told_of_it(swarm):
    """Its card names the address of its router, which lets nobody in."""
    seed, other = await swarm.add(), await swarm.add()
    natted = await swarm.add(BOB, VICTIM)
    for node in (other, natted):
        await node.dht.bootstrap([seed.at])
    await natted.dht.put(KEY, b"", b"value", 600.0)
    for _ in range(5):
        await natted.dht.get(bytes(32))
        await natted.dht.closest(BOB.peer_id.raw)
        await asyncio.sleep(30)

    for node in (seed, other):
        assert BOB.peer_id not in {each.peer for each in node.knows()}
        assert node.net.dialled.count(VICTIM) <= 1
        named = await handed_out(natted, node, BOB.peer_id.raw)
        assert BOB.peer_id not in {each.peer for each in named}
    assert (await other.dht.get(KEY))[b""].value == b"value"
    assert len(natted.knows()) == 2


@in_virtual_time
async def test_a_node_that_says_it_is_a_client_is_dialled_by_nobody(swarm):
    seed, other = await swarm.add(), await swarm.add()
    client = await swarm.add(BOB, server=False)
    for node in (other, client):
        await node.dht.bootstrap([seed.at])
    await client.dht.put(KEY, b"", b"value", 60.0)
    await asyncio.sleep(10)

    for node in (seed, other):
        assert client.at.address not in node.net.dialled
        assert BOB.peer_id not in {each.peer for each in node.knows()}
    assert (await other.dht.get(KEY))[b""].value == b"value"


@in_virtual_time
async def test_of_several_addresses_the_one_where_a_node_was_found_is_handed_out(swarm):
    seed = await swarm.add()
    bob = await swarm.add(BOB, DEAD_V6, Address("12.8.1.1", 4000), VICTIM)
    assert bob.at.address == Address("12.8.1.1", 4000)
    await bob.dht.bootstrap([seed.at])
    await asyncio.sleep(5)
    assert seed.knows() == [Contact(BOB.peer_id, bob.at.address)]

    carol = await swarm.add()
    await carol.dht.bootstrap([seed.at])
    await asyncio.sleep(5)

    assert Contact(BOB.peer_id, bob.at.address) in carol.knows()
    assert carol.net.dialled == [seed.at.address, bob.at.address]
    card = carol.endpoint.cards.of(BOB.peer_id)
    assert card is not None
    assert card.addresses == (DEAD_V6, bob.at.address, VICTIM)


@in_virtual_time
async def test_a_node_that_moves_is_known_where_it_is_now_and_not_where_it_was(swarm):
    seed, other = await swarm.add(), await swarm.add()
    bob = await swarm.add(BOB)
    for node in (other, bob):
        await node.dht.bootstrap([seed.at])
    await asyncio.sleep(5)
    moved = await bob.endpoint.listen(Address("0.0.0.0", 4001))

    bob.endpoint.announce([moved])
    await asyncio.sleep(1)
    named = await handed_out(other, seed, BOB.peer_id.raw)
    assert BOB.peer_id not in {each.peer for each in named}
    await bob.dht.closest(KEY)
    await bob.rpc.call(seed.at, Find(KEY), 5.0)
    await asyncio.sleep(5)

    assert Contact(BOB.peer_id, moved) in seed.knows()
    assert Contact(BOB.peer_id, moved) in await handed_out(other, seed, BOB.peer_id.raw)


def forged(at: Address) -> bytes:
    """A card that Eve has made for Bob."""
    body = Card.make(BOB, 2**40, [at]).signed.body
    return encode(SignedCard(body, EVE.sign(TAG, body)))


@pytest.mark.parametrize(
    "card",
    [
        forged(VICTIM),
        b"no card",
        Card.make(BOB, 7, (), flags=CardFlags.CLIENT).data,
        Card.make(BOB, 7, [VICTIM]).data + b"\0" * 200,
    ],
    ids=["forged", "garbage", "a client's", "padded"],
)
def test_a_card_that_its_peer_did_not_sign_leads_nowhere_and_costs_its_teller(card):
    async def body(swarm):
        seed, eve = await swarm.add(), await swarm.add(EVE)
        alice = await swarm.add()
        for node in (eve, alice):
            await node.dht.bootstrap([seed.at])
        await asyncio.sleep(5)
        assert EVE.peer_id in {each.peer for each in alice.knows()}
        lie = PeerList((card,), b"\0")
        eve.rpc.serve_unary(Find, lambda _, __: Found(lie))
        eve.rpc.serve_unary(Get, lambda _, __: Got((), False, lie))

        await alice.dht.closest(BOB.peer_id.raw)
        await asyncio.sleep(5)

        assert VICTIM not in alice.net.dialled
        assert EVE.peer_id not in {each.peer for each in alice.knows()}
        assert alice.endpoint.cards.of(BOB.peer_id) is None

    in_virtual_time(body)()


@in_virtual_time
async def test_an_old_card_that_is_replayed_loses_against_the_one_that_is_known(swarm):
    seed, eve = await swarm.add(), await swarm.add(EVE)
    bob, alice = await swarm.add(BOB), await swarm.add()
    old = PeerList((Card.make(BOB, 0, [VICTIM]).data,), b"\0")
    bob.endpoint.announce([bob.at.address, DEAD_V6])  # a newer one
    for node in (eve, bob, alice):
        await node.dht.bootstrap([seed.at])
    await asyncio.sleep(5)
    eve.rpc.serve_unary(Find, lambda _, __: Found(old))

    await alice.dht.closest(BOB.peer_id.raw)
    await asyncio.sleep(5)

    assert VICTIM not in alice.net.dialled
    assert EVE.peer_id in {each.peer for each in alice.knows()}  # it may not know better


@in_virtual_time
async def test_a_liars_own_card_leads_its_dialler_to_each_host_once(swarm):
    """The liar is slow where it was found, and its card names others beside that."""
    seed, eve, alice = await swarm.add(), await swarm.add(EVE), await swarm.add()
    victims = [Address(f"99.9.{number}.9", 4000) for number in range(7)]
    eve.endpoint.announce([eve.at.address, *victims])
    for node in (eve, alice):
        await node.dht.bootstrap([seed.at])
    alice.net.slow = eve.at.address
    for _ in range(30):
        for link in alice.endpoint.links():
            link.close()
        await alice.dht.closest(EVE.peer_id.raw)
        await alice.endpoint.link(Contact(EVE.peer_id, eve.at.address))
        await asyncio.sleep(60)

    dials = [alice.net.dialled.count(each) for each in victims]
    assert alice.net.dialled.count(eve.at.address) > 10
    assert sum(dials) > 0
    assert max(dials) == 1


@in_virtual_time
async def test_seeds_that_are_all_dead_are_named(swarm):
    alice = await swarm.add()
    dead = [Contact(None, VICTIM), Contact(None, DEAD_V6), Contact(None, Address("8.9.9.9", 1))]

    with pytest.raises(NoRoute) as caught:
        await alice.dht.bootstrap(dead)

    said = str(caught.value)
    assert all(str(each.address) in said for each in dead)
    assert "is a node running and reachable there?" in said
    assert "\n" not in said


@in_virtual_time
async def test_a_seed_that_is_another_than_was_named_costs_only_itself(swarm):
    seed, alice = await swarm.add(), await swarm.add()
    other = Contact(PeerId(b"x" * 32), seed.at.address)
    bob = await swarm.add(BOB)

    await alice.dht.bootstrap([other, bob.at])

    assert BOB.peer_id in {each.peer for each in alice.knows()}
