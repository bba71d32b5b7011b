"""What a node says of itself in its card."""

import asyncio

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import DIRECT_MAX, Card, CardFlags
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.node.stack.reaching import contents_of
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.reach.nat.announcement import Announcement
from p2pswarm.settings.config import NetworkConfig, NodeConfig

PATIENCE_S = 20.0
PUBLIC, HOME = Address("203.0.114.7", 4000), Address("192.168.1.5", 4000)
RELAYS = [
    Contact(PeerId(bytes(31) + bytes([n])), Address(f"203.0.114.{n}", 4000)) for n in range(1, 4)
]


def node(*bootstrap: Contact, **network):
    config = NodeConfig(
        role="bootstrap",
        listen="127.0.0.1:0",
        bootstrap=tuple(str(each.address) for each in bootstrap),
        network=NetworkConfig(**network),
    )
    return open_stack(config, Identity.generate())


def nobody(_peer: PeerId) -> Card | None:
    """Of no relay a card is known."""
    return None


def test_a_card_says_all_that_is_announced_and_that_we_are_a_relay():
    contents = contents_of(Announcement((PUBLIC,), (HOME,), tuple(RELAYS[:1]), relay=True), nobody)

    assert (contents.direct, contents.mapped) == ((PUBLIC,), (HOME,))
    assert contents.relays == tuple(RELAYS[:1])
    assert contents.flags == CardFlags.RELAY


def test_who_says_no_address_of_its_own_is_a_client():
    assert contents_of(Announcement(relays=tuple(RELAYS[:1])), nobody).flags == CardFlags.CLIENT
    zone = Announcement((Address("fe80::1%eth0", 4000),))
    assert contents_of(zone, nobody).flags == CardFlags.CLIENT


def test_what_a_card_has_no_words_for_is_left_out():
    web = Contact(RELAYS[0].peer, Address("relay.example.org", 443, web="wss"))
    nameless = Contact(None, Address("203.0.114.9", 4000))

    contents = contents_of(Announcement(relays=(web, nameless, *RELAYS)), nobody)

    assert contents.relays == tuple(RELAYS[:2])


def test_a_relay_is_named_in_both_families_as_its_card_has_them():
    relay = Identity.generate()
    v4, v6 = Address("203.0.114.7", 4000), Address("2600::7", 4001)
    inside = [Address("192.168.1.5", 4000), Address("fd00::5", 4000)]
    cards = {relay.peer_id: Card.make(relay, 1, [*inside, v4, v6])}

    for here, there in ((v4, v6), (v6, v4)):
        told = contents_of(Announcement(relays=(Contact(relay.peer_id, here),)), cards.get)
        assert told.relays == (Contact(relay.peer_id, here), Contact(relay.peer_id, there))
    for private in inside:  # strangers are not led from a private relay to a public place
        told = contents_of(Announcement(relays=(Contact(relay.peer_id, private),)), cards.get)
        assert [each.address for each in told.relays] == [private]
    cards[relay.peer_id] = Card.make(relay, 2, [*inside, v4])
    told = contents_of(Announcement(relays=(Contact(relay.peer_id, v4),)), cards.get)
    assert [each.address for each in told.relays] == [v4]


def test_however_much_is_announced_others_take_the_card():
    many = [Address(f"203.0.115.{n}", 4000) for n in range(1, 10)]

    contents = contents_of(Announcement(tuple(many), tuple(many), tuple(RELAYS)), nobody)

    assert len(contents.direct) == DIRECT_MAX
    Card.make(
        Identity.generate(),
        1,
        contents.direct,
        mapped=contents.mapped,
        relays=contents.relays,
        flags=contents.flags,
    )


async def test_a_node_of_this_machine_alone_says_where_it_listens():
    async with asyncio.timeout(PATIENCE_S), node() as one, node(relay=False) as selfish:
        assert one.endpoint.card.addresses == one.endpoint.listening[:1]
        assert one.endpoint.card.flags == CardFlags.RELAY
        assert selfish.endpoint.card.flags == CardFlags.NONE


async def test_a_node_with_relays_of_its_user_says_these_and_nothing_else():
    async with asyncio.timeout(PATIENCE_S), node() as seed:
        relay = seed.endpoint.contact
        async with node(relay, relays=(str(relay.address),)) as hidden:
            card = hidden.endpoint.card

            assert card.flags == CardFlags.CLIENT
            assert card.addresses == ()
            assert [each.contact for each in card.relays] == [relay]
