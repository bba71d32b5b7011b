"""Tests of `net/cards/node_cards.py`."""

import asyncio
import random
from contextlib import AsyncExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sim.virtual import virtual_time
from worlds.net import SimInternet

from p2pswarm.base.errors import BadMessage, SwarmError
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import SEQ_MAX, Card, CardFlags, newer
from p2pswarm.net.cards.node_cards import (
    HEAR_ALL_BURST,
    HEAR_BURST,
    HEAR_EVERY_S,
    TELL_EVERY_S,
    CardContents,
    CardExchange,
    CardHeard,
    CardUpdate,
    HeardCard,
    NodeCards,
    OwnCard,
    announced_by,
)
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.rpc.link_rpc import LinkRpc

ALICE, BOB = Identity.generate(b"alice"), Identity.generate(b"bob")
V4, V6 = Address("8.8.8.8", 4000), Address("2600::1", 4000)
HERE, THERE = CardContents((V4,)), CardContents((V6,), flags=CardFlags.NONE)


def test_the_same_words_are_one_card():
    own = OwnCard(ALICE)

    assert own.saying(HERE, 1000) is own.saying(HERE, 2000)
    assert own.saying(THERE, 2000).seq == 2000


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**6)), max_size=40))
def test_each_new_card_counts_more_than_the_last(said):
    own = OwnCard(ALICE)
    last = None
    for here, now_ms in said:
        card = own.saying(HERE if here else THERE, now_ms)
        if last is not None and card is not last:
            assert newer(last, card) is card
        last = card


def test_a_clock_that_was_set_back_is_noticed():
    own, before = OwnCard(ALICE), Card.make(ALICE, 5_000_000, [V4])
    mine = own.saying(THERE, 1000)

    assert own.on_own_card(before)

    assert own.saying(THERE, 1001).seq > before.seq > mine.seq
    assert not own.on_own_card(before)
    assert own.saying(THERE, 1002) is own.saying(THERE, 1003)


def test_what_is_ours_now_or_older_or_anothers_changes_nothing():
    own = OwnCard(ALICE)
    assert not own.on_own_card(Card.make(ALICE, 7, [V4]))
    card = own.saying(HERE, 1000)

    assert not own.on_own_card(card)
    assert not own.on_own_card(Card.make(ALICE, 999, [V6]))
    assert not own.on_own_card(Card.make(BOB, SEQ_MAX, [V6]))
    assert own.saying(HERE, 5000) is card


def test_the_last_number_is_the_last():
    own = OwnCard(ALICE)
    own.saying(HERE, 1000)
    own.on_own_card(Card.make(ALICE, SEQ_MAX, [V4]))

    assert own.saying(HERE, 1000).seq == SEQ_MAX


def test_what_others_would_refuse_is_not_said():
    own = OwnCard(ALICE)
    card = own.saying(HERE, 1000)

    with pytest.raises(ValueError, match="twice"):
        own.saying(CardContents((V4, V4)), 2000)

    assert own.saying(HERE, 3000) is card


@pytest.mark.parametrize(
    ("at", "direct"),
    [
        (V4, (V4,)),
        (Address("8.8.8.8", 0), ()),
        (Address("fe80::1%eth0", 1), ()),
        (Address("0.0.0.0", 1), ()),
        (Address("a.example.org", 443, web="wss"), ()),
        (V4.through(BOB.peer_id), ()),
    ],
)
def test_who_was_told_nothing_says_where_it_listens(at, direct):
    said = announced_by(Contact(ALICE.peer_id, at))

    assert said.direct == direct
    assert (said.flags is CardFlags.CLIENT) == (not direct)


OLD, NEW, NEWER = b"old", b"new", b"newer"


def test_who_has_our_card_is_told_nothing():
    exchange = CardExchange()
    exchange.on_link("a", NEW)

    assert exchange.to_tell(NEW, 0.0) == []
    assert exchange.next_deadline_s(NEW) is None


def test_who_has_an_older_card_is_told_at_once_and_then_seldom():
    exchange = CardExchange()
    exchange.on_link("a", OLD)
    exchange.on_link("b", NEW)

    assert exchange.to_tell(NEW, 5.0) == ["a"]
    assert exchange.to_tell(NEWER, 5.0) == ["b"]
    assert exchange.next_deadline_s(NEWER) == 5.0 + TELL_EVERY_S
    assert exchange.to_tell(NEWER, 5.0 + TELL_EVERY_S) == ["a"]
    assert exchange.next_deadline_s(NEWER) is None


def test_a_link_that_ended_is_forgotten():
    exchange = CardExchange()
    exchange.on_link("a", OLD)
    exchange.on_link_end("a")
    exchange.on_link_end("a")

    assert exchange.to_tell(NEW, 0.0) == []
    assert not exchange.may_hear("a", 0.0)
    assert len(exchange) == 0


def test_one_peers_flood_is_not_looked_at():
    exchange = CardExchange()
    exchange.on_link("flood", NEW)
    exchange.on_link("honest", NEW)

    looked = sum(exchange.may_hear("flood", number / 1000) for number in range(10_000))

    assert looked <= HEAR_BURST + 10 / HEAR_EVERY_S
    assert exchange.may_hear("honest", 10.0)


def test_all_peers_together_cost_a_bounded_share_of_the_processor():
    exchange = CardExchange()
    links = [str(number) for number in range(1024)]
    for link in links:
        exchange.on_link(link, NEW)

    looked = sum(exchange.may_hear(link, float(at)) for at in range(60) for link in links)

    assert looked <= HEAR_ALL_BURST + 60 * 100


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("up"), st.integers(0, 4)),
            st.tuples(st.just("ended"), st.integers(0, 4)),
            st.tuples(st.just("change"), st.integers(0, 4)),
            st.tuples(st.just("wait"), st.floats(0, 3)),
        ),
        max_size=60,
    )
)
def test_in_the_end_every_peer_has_the_newest_card(happened):
    exchange, now_s, ours = CardExchange(), 0.0, b"0"
    have: dict[int, bytes] = {}
    told_s: dict[int, float] = {}

    def tell():
        for link in exchange.to_tell(ours, now_s):
            assert now_s >= told_s.get(link, float("-inf")) + TELL_EVERY_S
            have[link], told_s[link] = ours, now_s

    for what, value in happened:
        if what == "up":
            exchange.on_link(value, ours)
            have[value] = ours
            told_s.pop(value, None)
        elif what == "ended":
            exchange.on_link_end(value)
            have.pop(value, None)
        elif what == "change":
            ours = b"%d" % value
            tell()
        else:
            until_s = now_s + value
            while (at_s := exchange.next_deadline_s(ours)) is not None and at_s <= until_s:
                now_s = max(now_s, at_s)
                tell()
            now_s = until_s
    while (at_s := exchange.next_deadline_s(ours)) is not None:
        now_s = max(now_s, at_s)
        tell()

    assert set(have.values()) <= {ours}


US, EVE = Identity.generate(b"us"), Identity.generate(b"eve")
NODE_CARDS_HERE = Contact(US.peer_id, Address("8.8.1.1", 4000))
NODE_CARDS_V4, NODE_CARDS_V6 = Address("8.8.8.8", 4000), Address("2600::1", 4000)
LOOPBACK, LAN = Address("127.0.0.1", 22), Address("192.168.1.1", 80)
NODE_CARDS_OLD, NODE_CARDS_NEW = (
    Card.make(ALICE, 1, [NODE_CARDS_V4]),
    Card.make(ALICE, 2, [NODE_CARDS_V6]),
)


def linked(theirs: Card = NODE_CARDS_OLD) -> NodeCards[str]:
    """The cards of a node with a link to Alice."""
    cards: NodeCards[str] = NodeCards(US)
    ours = cards.ours(NODE_CARDS_HERE, 1000)
    cards.learn(theirs, Address("1.1.1.1", 1))
    cards.on_link("link", theirs, b"introduction" + ours.data, ours)
    return cards


def hear(cards: NodeCards[str], card: Card) -> HeardCard:
    return cards.on_card("link", Contact(ALICE.peer_id, Address("1.1.1.1", 1)), card.data, 0.0)


def test_a_newer_card_is_kept_and_an_older_one_is_answered():
    cards = linked()

    assert hear(cards, NODE_CARDS_NEW) == HeardCard(moved=True)
    assert hear(cards, NODE_CARDS_OLD) == HeardCard(NODE_CARDS_NEW.data)
    assert hear(cards, NODE_CARDS_NEW) == HeardCard()
    assert cards.book.of(ALICE.peer_id).seq == 2


def test_a_card_of_an_earlier_process_of_ours_is_outdone():
    cards = linked()
    earlier = Card.make(US, 10**9, [NODE_CARDS_V4])

    assert hear(cards, earlier) == HeardCard(outdone=True)
    assert cards.ours(NODE_CARDS_HERE, 1001).seq > earlier.seq
    assert hear(cards, earlier) == HeardCard()


def test_anothers_card_is_a_breach():
    with pytest.raises(BadMessage, match="a card of"):
        hear(linked(), Card.make(EVE, 1, [NODE_CARDS_V4]))


def test_over_a_link_that_is_not_up_nothing_is_heard():
    cards = linked()
    cards.on_link_end("link", ALICE.peer_id)

    assert hear(cards, NODE_CARDS_NEW) == HeardCard()


def test_who_comes_back_with_an_older_card_is_told_so():
    cards = linked(NODE_CARDS_NEW)
    ours = cards.ours(NODE_CARDS_HERE, 1000)

    assert cards.on_link("again", NODE_CARDS_OLD, ours.data, ours).signed == NODE_CARDS_NEW.signed
    assert cards.on_link("third", NODE_CARDS_NEW, ours.data, ours) is None


def test_what_is_announced_counts_more_than_where_we_listen():
    cards = linked()
    assert cards.ours(NODE_CARDS_HERE, 1000).addresses == (NODE_CARDS_HERE.address,)

    cards.announce(CardContents((NODE_CARDS_V6,)), 2000)

    assert cards.ours(NODE_CARDS_HERE, 3000).addresses == (NODE_CARDS_V6,)


@pytest.mark.parametrize(
    ("remote", "believed"),
    [
        (Address("127.0.0.1", 1), [LOOPBACK, LAN, NODE_CARDS_V4]),
        (Address("127.0.0.1", 1).through(US.peer_id), [NODE_CARDS_V4]),
        (Address("192.168.1.9", 1), [LAN, NODE_CARDS_V4]),
        (Address("1.1.1.1", 1), [NODE_CARDS_V4]),
    ],
    ids=["our machine", "a relay on our machine", "the LAN", "outside"],
)
def test_where_a_card_came_from_decides_what_of_it_is_dialled(remote, believed):
    cards = linked()

    cards.learn(Card.make(EVE, 1, [LOOPBACK, LAN, NODE_CARDS_V4]), remote)

    assert [each.address for each in cards.book.direct(EVE.peer_id, ())] == believed


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
        CardUpdate,
        lambda peer, news: heard.append(news) or CardHeard(bob.learn_card(peer, news.card)),
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
    card = Card.make(EVE, 7, [MOVED]).data

    with pytest.raises(SwarmError):
        await rpc.call(link.contact, CardUpdate(card), 5.0)
    await asyncio.sleep(1)

    assert not bob.links()
    assert bob.cards.of(EVE.peer_id) is None


@in_virtual_time
async def test_garbage_is_a_bad_message_and_a_flood_is_not_looked_at(peers):
    (alice, rpc), (bob, _) = await peers.add(ALICE), await peers.add(BOB)
    link = await alice.link(Contact(None, bob.listening[0]))
    await asyncio.sleep(100)
    with pytest.raises(BadMessage):
        bob.learn_card(ALICE.peer_id, b"garbage")
    assert bob.learn_card(EVE.peer_id, b"garbage") == b""  # who has no link is not heard

    for number in range(HEAR_BURST + 10):
        card = Card.make(ALICE, 10**9 + number, [Address("99.1.1.1", 1 + number)])
        await rpc.call(link.contact, CardUpdate(card.data), 5.0)

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

    reply = await rpc.call(link.contact, CardUpdate(old.data), 5.0)

    assert reply == CardHeard(alice.card.data)
    assert known(bob, alice) == (MOVED,)
