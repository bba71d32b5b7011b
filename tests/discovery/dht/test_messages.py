"""The DHT's messages on the wire."""

from dataclasses import replace

import pytest
from discovery.dht.harness import listed, told

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.messages import (
    PAGE_BYTES,
    PEER_LIST_BYTES,
    Find,
    Found,
    Get,
    Got,
    Identified,
    Identify,
    PeerList,
    Ping,
    Pong,
    Record,
    Store,
    Stored,
    peer_list,
    peers_in,
)
from p2pswarm.net.cards.card import TAG, Card, CardFlags, SignedCard, decode_card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import decode, encode
from p2pswarm.sim.process import unsigned

ID = bytes(range(32))
HOME = "203.0.113.7:4000"
RECORD = Record(ID, b"sub", b"value", 7, 1_700_000_000_000, ID, bytes(64))
ALICE, BOB = Identity.generate(b"alice"), Identity.generate(b"bob")
HERE, THERE = Address("8.8.8.8", 4000), Address("2600::1", 4000)
TWO = told([(ID, HOME), (ID[::-1], "[::1]:1")])


@pytest.mark.parametrize(
    "sent",
    [
        Identify(ID),
        Identified(ID, TWO),
        Find(ID),
        Found(TWO),
        Get(ID, b"after", True, 2),
        Got((RECORD, RECORD), True, TWO),
        Store((RECORD,)),
        Stored(b"\0\7"),
        Ping(),
        Pong(),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_what_is_sent_arrives(sent):
    assert decode(encode(sent)) == sent


def test_a_peer_list_holds_contacts():
    assert listed(TWO) == [
        Contact(PeerId(ID), Address("203.0.113.7", 4000)),
        Contact(PeerId(ID[::-1]), Address("::1", 1)),
    ]


def signed(seq: int = 1, identity: Identity = ALICE, addresses: tuple[Address, ...] = (HERE,)):
    return Card.make(identity, seq, addresses)


def test_cards_without_places_are_malformed():
    with pytest.raises(ValueError, match="0 places in 1 cards"):
        PeerList((signed().data,), b"")
    with pytest.raises(ValueError, match="more than"):
        PeerList((bytes(1000),) * 12, bytes(12))


def test_what_peers_signed_is_what_is_read():
    card = signed(addresses=(HERE, THERE))

    packed = peer_list([(card, THERE), (signed(identity=BOB), HERE)])

    assert [each for each, _ in peers_in(packed, decode_card)] == [
        Contact(ALICE.peer_id, THERE),
        Contact(BOB.peer_id, HERE),
    ]


def test_who_does_not_name_the_address_where_we_found_it_is_not_told():
    assert peer_list([(signed(addresses=(THERE,)), HERE)]) == PeerList((), b"")
    client = Card.make(ALICE, 1, (), flags=CardFlags.CLIENT)
    assert peer_list([(client, HERE)]) == PeerList((), b"")


def forged() -> bytes:
    return encode(SignedCard(signed().signed.body, BOB.sign(TAG, signed().signed.body)))


@pytest.mark.parametrize(
    ("card", "place", "why"),
    [
        (forged(), 0, "did not sign"),
        (signed().data, 1, "place 1 in a card of 1"),
        (signed().data, 255, "place 255"),
        (Card.make(ALICE, 1, (), flags=CardFlags.CLIENT).data, 0, "of 0 addresses"),
        (b"no card", 0, "."),
        (signed().data[:-1], 0, "."),
        (unsigned(ALICE.peer_id, Contact(None, HERE)), 0, "did not sign"),
    ],
)
def test_an_address_that_its_peer_did_not_sign_is_a_breach(card, place, why):
    with pytest.raises(BadMessage, match=why):
        peers_in(PeerList((card,), bytes([place])), decode_card)


def test_cards_that_leave_no_room_are_left_out():
    many = tuple(Address(f"{'x' * 60}.{'y' * 40}.{i}.example.org", 1 + i) for i in range(8))
    large = [signed(identity=Identity.generate(bytes([i])), addresses=many) for i in range(20)]
    assert len(large[0].data) > PEER_LIST_BYTES // 20

    packed = peer_list([(each, many[0]) for each in large])

    assert 0 < len(packed.cards) < 20
    assert sum(map(len, packed.cards)) <= PEER_LIST_BYTES


def test_a_full_answer_fits_a_frame():
    left = PEER_LIST_BYTES - 10 * 1096
    full = PeerList((bytes(1096),) * 10 + (bytes(left),) * (left > 0), bytes(10 + (left > 0)))
    large = replace(RECORD, value=bytes(4096))
    count = PAGE_BYTES // large.size_bytes
    records = (large,) * count + (RECORD,) * ((PAGE_BYTES - count * large.size_bytes) // 168)

    assert len(encode(Got(records, True, full))) < 60 * 1024
    assert len(encode(Got((RECORD,) * 128, True, full))) < 60 * 1024
