"""Tests of `node/stack/reachability_service.py`."""

import asyncio
import contextlib
import os
import socket

import pytest

from p2pswarm.base.errors import DialFailed, Unusable
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import DIRECT_MAX, Card, CardFlags
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.node.stack.addresses import check
from p2pswarm.node.stack.reachability_service import (
    circuit_files,
    contents_of,
    fitted_limits,
    relaying,
)
from p2pswarm.node.stack.stack import open_stack
from p2pswarm.reach.nat.announcement import Announcement
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.settings.node_config import NetworkConfig, NodeConfig

PATIENCE_S = 20.0
ANYWHERE = "127.0.0.1:0"


def node(*bootstrap: Contact, **network):
    """A whole node with these settings of `[network]`."""
    config = NodeConfig(
        role="bootstrap",
        listen=ANYWHERE,
        bootstrap=tuple(str(each.address) for each in bootstrap),
        network=NetworkConfig(**network),
    )
    return open_stack(config, Identity.generate())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


async def test_a_node_is_found_and_called_through_the_relay_that_it_names():
    async with asyncio.timeout(PATIENCE_S), node() as public:
        seed = public.endpoint.contact
        async with node(seed, relays=(str(seed.address),)) as hidden, node(seed) as other:
            contact = hidden.endpoint.contact
            assert contact.address == seed.address.through(hidden.endpoint.peer_id)

            link = await other.endpoint.link(contact)

            assert link.peer == hidden.endpoint.peer_id
            assert link.remote == contact.address
            known = await other.dht.closest(contact.peer.raw)
            assert contact.peer not in [each.peer for each in known]  # it is a client


async def test_a_node_whose_relay_dies_is_reached_through_the_other():
    async with asyncio.timeout(PATIENCE_S), contextlib.AsyncExitStack() as stack:
        enter = stack.enter_async_context
        second = await enter(node())
        seed = second.endpoint.contact
        mortal = await stack.enter_async_context(contextlib.AsyncExitStack())
        first = await mortal.enter_async_context(node(seed))
        relays = tuple(str(each.endpoint.contact.address) for each in (first, second))
        hidden = await enter(node(seed, relays=relays))
        other = await enter(node(seed))
        us = hidden.endpoint.peer_id
        assert hidden.endpoint.contact.address == first.endpoint.contact.address.through(us)

        moved, announce = asyncio.Event(), hidden.keeper.on_change

        def change():
            announce()
            moved.set()

        hidden.keeper.on_change = change
        await mortal.aclose()
        while hidden.endpoint.contact.address != seed.address.through(us):
            await moved.wait()
            moved.clear()

        link = await other.endpoint.link(hidden.endpoint.contact)
        assert link.peer == us


async def test_a_node_that_is_told_so_is_no_relay():
    async with asyncio.timeout(PATIENCE_S), node(relay=False) as selfish, node() as other:
        through = selfish.endpoint.contact.address.through(selfish.endpoint.peer_id)
        with pytest.raises(DialFailed, match="it is no relay"):
            await other.endpoint.link(Contact(None, through))


async def test_a_second_port_and_websocket_lead_to_the_same_node():
    second, web = free_port(), free_port()
    async with asyncio.timeout(PATIENCE_S), node(relay_port=second, relay_web=web) as public:
        for address in (Address("127.0.0.1", second), Address("127.0.0.1", web, web="ws")):
            async with node(Contact(None, address)) as other:
                assert public.endpoint.peer_id in [each.peer for each in other.endpoint.links()]


async def test_relays_that_do_not_take_us_are_told_in_a_line():
    config = NodeConfig(network=NetworkConfig(relays=(f"127.0.0.1:{free_port()}",)))
    net = CircuitNet(SocketNet())
    end = Endpoint(Identity.generate(), net, TransportConfig(), os.urandom)
    async with end, LinkRpc(end) as rpc:
        with pytest.raises(Unusable, match=r"none of 127.*Connection refused") as told:
            async with relaying(end, rpc, net, config, reachable_s=0.2):
                pass
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("setting", ["relay_port", "relay_web"])
async def test_a_port_that_is_taken_is_told_by_its_name(setting):
    with socket.create_server(("127.0.0.1", 0)) as taken, contextlib.ExitStack() as stack:
        stack.enter_context(pytest.raises(Unusable, match=rf"network\.{setting}: cannot listen"))
        async with node(**{setting: taken.getsockname()[1]}):
            pass


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"listen": "wss://a:1"}, "--relay-web"),
        ({"network": NetworkConfig(relays=("a",))}, r"network\.relays: 'a' is not HOST:PORT"),
        ({"network": NetworkConfig(relays=("a:1/" + "a" * 52,))}, "name the relay alone, a:1"),
        ({"network": NetworkConfig(relays=("a." * 110 + "b:1",))}, "give its number"),
    ],
)
def test_addresses_that_make_no_sense_are_told(settings, told):
    with pytest.raises(Unusable, match=told):
        check(NodeConfig(**settings))


def test_who_is_behind_relays_needs_no_files_for_circuits_and_few_files_mean_few_circuits():
    assert circuit_files(NodeConfig()) == 1024
    assert circuit_files(NodeConfig(network=NetworkConfig(relays=("a:1",)))) == 0
    assert fitted_limits(0.25).circuits_max == 128
    assert fitted_limits(0.0001).network_circuits_max == 1


REACHING_PATIENCE_S = 20.0
PUBLIC, HOME = Address("203.0.114.7", 4000), Address("192.168.1.5", 4000)
RELAYS = [
    Contact(PeerId(bytes(31) + bytes([n])), Address(f"203.0.114.{n}", 4000)) for n in range(1, 4)
]


def reachable_node(*bootstrap: Contact, **network):
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
    async with (
        asyncio.timeout(REACHING_PATIENCE_S),
        reachable_node() as one,
        reachable_node(relay=False) as selfish,
    ):
        assert one.endpoint.card.addresses == one.endpoint.listening[:1]
        assert one.endpoint.card.flags == CardFlags.RELAY
        assert selfish.endpoint.card.flags == CardFlags.NONE


async def test_a_node_with_relays_of_its_user_says_these_and_nothing_else():
    async with asyncio.timeout(REACHING_PATIENCE_S), reachable_node() as seed:
        relay = seed.endpoint.contact
        async with reachable_node(relay, relays=(str(relay.address),)) as hidden:
            card = hidden.endpoint.card

            assert card.flags == CardFlags.CLIENT
            assert card.addresses == ()
            assert [each.contact for each in card.relays] == [relay]


async def test_a_node_of_this_machine_alone_tells_so_at_once():
    said = []
    async with asyncio.timeout(PATIENCE_S), node() as alone:
        alone.reachability.tell(said.append)

    assert said == ["reachable: from this machine alone: it listens on 127.0.0.1"]


async def test_a_node_that_others_reach_by_another_address_does_not():
    said = []
    async with asyncio.timeout(PATIENCE_S), node(announce="203.0.113.7:4000") as reached:
        reached.reachability.tell(said.append)

    assert said == []
