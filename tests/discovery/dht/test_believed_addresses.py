"""Whom a node believes which addresses: what strangers name is not all dialled or handed out."""

import pytest
from discovery.dht.harness import CONFIG, KEY, OWN, anywhere, contact_at, listed, raw, told

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.call_outcomes import CallRecorder, TimeoutEstimator
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.get_value import NegativeCache
from p2pswarm.discovery.dht.lookup import FindNode, Lookup, LookupOptions
from p2pswarm.discovery.dht.messages import Find, Found, Identified
from p2pswarm.discovery.dht.records import RecordStore, SignatureCache
from p2pswarm.discovery.dht.responder import Responder
from p2pswarm.discovery.dht.routing_table import Table
from p2pswarm.discovery.dht.unverified_contacts import UnverifiedContacts
from p2pswarm.discovery.dht.upkeep import contacts_through
from p2pswarm.net.os.addresses import scope_of
from p2pswarm.sim.process import UnsignedCards

PUBLIC, HOME_NET = "8.8.8.8:4000", "192.168.1.1:80"
SAME_HOST = "127.0.0.1:22"
ALL = (PUBLIC, HOME_NET, SAME_HOST)


def dialled(teller: str, *named: str) -> list[str]:
    """The addresses that a lookup asks after one peer has named them."""
    options = LookupOptions(width=20, settle=3, patience_s=5.0)
    lookup = Lookup(
        KEY, OWN, options, TimeoutEstimator(CONFIG), 0.0, UnverifiedContacts(UnsignedCards())
    )
    first = Contact(PeerId(raw(99)), Address.parse(teller))
    lookup.on_contacts([first])
    search = FindNode(lookup)
    search.drain(0.0)
    there = [(raw(number), each) for number, each in enumerate(named, 1)]
    search.on_response(first, Found(told(there)), 0.1)
    return [str(ask.contact.address) for ask in search.drain(0.1)]


@pytest.mark.parametrize(
    ("teller", "believed"),
    [
        ("8.8.4.4:4000", [PUBLIC]),
        ("10.0.0.9:4000", [PUBLIC, HOME_NET, SAME_HOST]),
        ("a.lab.example.org:4000", [PUBLIC, HOME_NET, SAME_HOST]),
    ],
)
def test_a_public_peer_cannot_make_us_dial_our_own_network(teller, believed):
    assert dialled(teller, *ALL) == believed


def test_a_public_seed_is_not_believed_private_addresses():
    named = Identified(raw(7), told([(raw(i), each) for i, each in enumerate(ALL, 1)]))

    met = contacts_through(
        Contact(None, Address.parse("8.8.4.4:4000")), named, UnverifiedContacts(UnsignedCards())
    )

    assert [str(each.address) for each in met] == ["8.8.4.4:4000", PUBLIC]


@pytest.mark.parametrize(
    ("config", "handed_out"),
    [
        (CONFIG, {PUBLIC, HOME_NET, SAME_HOST}),
        (DhtConfig(least_scope=scope_of("8.8.8.8")), {PUBLIC}),
    ],
    ids=["a private node", "a public node"],
)
def test_what_a_peer_says_of_itself_is_handed_out_only_if_it_is_believable(config, handed_out):
    table, timeouts = Table(PeerId(OWN), config), TimeoutEstimator(config)
    cards, store = UnsignedCards(), RecordStore(config, SignatureCache())
    recorder = CallRecorder(table, timeouts, anywhere, cards)
    node = Responder(PeerId(OWN), table, store, recorder, NegativeCache(8, 5.0), cards)
    for number, each in enumerate(ALL, 1):
        cards.say(PeerId(raw(number)), contact_at(raw(number), each))
        node.answer(PeerId(raw(number)), Find(KEY), 0.0, 0)

    found = node.answer(PeerId(raw(50)), Find(KEY), 0.0, 0)

    assert {str(each.address) for each in listed(found.peer_list)} == handed_out


def test_a_known_peer_stays_where_it_was_when_it_claims_what_nobody_believes():
    table, known = Table(PeerId(OWN), CONFIG), Contact(PeerId(raw(1)), Address.parse(PUBLIC))
    table.on_contact(known, 0.0)

    table.on_contact(Contact(known.peer, Address.parse("224.0.0.1:4000")), 9.0)

    assert [each.contact for each in table] == [known]
