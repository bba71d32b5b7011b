"""Cards over links that are up: a peer that moves is known to have moved, in virtual time."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from sim.virtual import virtual_time
from worlds.net import SimInternet

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.card_exchange import HEAR_BURST, TELL_EVERY_S
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.card_news import CardHeard, CardNews
from p2pswarm.net.rpc.link_rpc import LinkRpc

ALICE, BOB, EVE = (Identity.generate(name) for name in (b"alice", b"bob", b"eve"))
MOVED, AGAIN = Address("99.1.1.1", 4000), Address("99.1.1.2", 4000)


class Peers:
    """Endpoints with calls over them, on hosts next to each other."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self._rng = random.Random(1)
        self.internet = SimInternet(1)

    async def add(self, identity: Identity, wall_s: float = 1000.0) -> tuple[Endpoint, LinkRpc]:
        hosts = self.internet.world.hosts
        if identity.peer_id.raw not in hosts:
            at = Address(f"8.8.{len(hosts)}.1", 1)
            self.internet.world.place(identity.peer_id, (0.5, 0.5), at)
        net = self.internet.net(identity.peer_id)
        loop = asyncio.get_running_loop()
        endpoint = Endpoint(
            identity, net, TransportConfig(), self._rng.randbytes, lambda: wall_s + loop.time()
        )
        await self._stack.enter_async_context(endpoint)
        await endpoint.listen(Address("0.0.0.0", 4000))
        return endpoint, await self._stack.enter_async_context(LinkRpc(endpoint))


in_virtual_time = virtual_time(Peers)


def known(by: Endpoint, of: Endpoint) -> tuple[Address, ...]:
    card = by.cards.of(of.peer_id)
    return () if card is None else card.addresses


@in_virtual_time
async def test_a_link_begins_with_both_cards(peers):
    (alice, _), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    alice.announce([MOVED], mapped=[AGAIN])
    bob.announce([bob.listening[0]])

    await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(1)

    assert known(alice, bob) == (bob.listening[0],)
    assert known(bob, alice) == (MOVED, AGAIN)


@in_virtual_time
async def test_who_hears_where_it_is_says_so_before_anything_else(peers):
    """It listens on all addresses, and knows none of them until a peer has seen it."""
    (alice, _), (bob, _) = await peers.add(ALICE), await peers.add(BOB)

    await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(1)

    assert known(bob, alice) == (alice.listening[0],)
    assert known(alice, bob) == (bob.listening[0],)


@in_virtual_time
async def test_a_newer_card_goes_over_a_living_link(peers):
    (alice, _), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(2)

    alice.announce([MOVED])
    await asyncio.sleep(1)
    assert known(bob, alice) == (MOVED,)
    bob.announced = AGAIN
    await asyncio.sleep(1)

    assert known(alice, bob) == (AGAIN,)


@in_virtual_time
async def test_who_changes_its_mind_often_is_heard_seldom_and_the_last_word_counts(peers):
    (alice, _), (bob, rpc) = await peers.add(ALICE), await peers.add(BOB)
    await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(2)
    heard = []
    rpc.serve_unary(
        CardNews,
        lambda peer, news: heard.append(news) or CardHeard(bob.hear(peer, news.card)),
    )
    for number in range(500):
        alice.announce([Address("99.1.1.1", 1 + number)])
        await asyncio.sleep(0.01)
    await asyncio.sleep(2 * TELL_EVERY_S)

    assert known(bob, alice) == (Address("99.1.1.1", 500),)
    assert len(heard) <= 7


@pytest.mark.parametrize("who_dials", ["the one that forgot", "the one that remembers"])
def test_a_clock_that_was_set_back_is_told_and_outdone(who_dials):
    """A peer that is started again with an earlier clock would keep its old address for ever."""

    async def body(peers):
        alice, rpc = await peers.add(ALICE, wall_s=9000.0)
        bob, _ = await peers.add(BOB)
        alice.announce([MOVED])
        await alice.link(Contact(None, bob.listening[0]))
        await asyncio.sleep(1)
        await rpc.close()
        await alice.close()
        again, _ = await peers.add(ALICE, wall_s=1000.0)
        again.announce([AGAIN])

        if who_dials == "the one that forgot":
            await again.link(Contact(None, bob.listening[0]))
        else:
            await bob.link(Contact(None, again.listening[0]))
        await asyncio.sleep(3)

        assert known(bob, again) == (AGAIN,)
        assert again.card.addresses == (AGAIN,)

    in_virtual_time(body)()


@in_virtual_time
async def test_anothers_card_ends_the_link(peers):
    (alice, rpc), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    link = await alice.link(Contact(None, bob.listening[0]))
    card = Card.make(EVE, 7, [MOVED]).encode()

    with pytest.raises(SwarmError):
        await rpc.call(link.contact, CardNews(card), 5.0)
    await asyncio.sleep(1)

    assert not bob.links()
    assert bob.cards.of(EVE.peer_id) is None


@in_virtual_time
async def test_garbage_is_a_bad_message_and_a_flood_is_not_looked_at(peers):
    (alice, rpc), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    link = await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(100)
    with pytest.raises(BadMessage):
        bob.hear(ALICE.peer_id, b"garbage")
    assert bob.hear(EVE.peer_id, b"garbage") == b""  # who has no link is not heard

    for number in range(HEAR_BURST + 10):
        card = Card.make(ALICE, 10**9 + number, [Address("99.1.1.1", 1 + number)])
        await rpc.call(link.contact, CardNews(card.encode()), 5.0)

    heard = bob.cards.of(ALICE.peer_id)
    assert heard is not None
    assert heard.seq < 10**9 + HEAR_BURST
    assert bob.links()


@in_virtual_time
async def test_an_older_card_is_answered_with_the_newer_one(peers):
    (alice, rpc), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    alice.announce([MOVED])
    link = await alice.link(Contact(None, bob.listening[0]))
    old = Card.make(ALICE, 1, [AGAIN])

    reply = await rpc.call(link.contact, CardNews(old.encode()), 5.0)

    assert reply == CardHeard(alice.card.encode())
    assert known(bob, alice) == (MOVED,)
