"""Cards: nobody but the peer makes one, and none names an address that no host has."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import (
    BODY_BYTES_MAX,
    DIRECT_MAX,
    RELAY_ADDRESSES_MAX,
    SEQ_MAX,
    TAG,
    AddressKind,
    Card,
    CardBody,
    CardFlags,
    DirectAddress,
    SignedCard,
    believed,
    decode_card,
    newer,
    read,
)
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.addresses import Scope
from p2pswarm.net.wire.message import encode

ALICE, BOB, CAROL = (Identity.generate(name) for name in (b"alice", b"bob", b"carol"))
V4, V6 = Address("8.8.8.8", 4000), Address("2600::1", 4000)
NAME, LAN = Address("a.example.org", 4000), Address("192.168.1.7", 4000)
LOOPBACK = Address("127.0.0.1", 4000)
RELAY = Contact(BOB.peer_id, Address("9.9.9.9", 443))
ELSEWHERE = "1.1.1.1"

hosts = st.one_of(
    st.ip_addresses().map(str),
    st.sampled_from(["127.0.0.1", "::1", "224.0.0.1", "0.0.0.0", "fe80::1", "a.example.org", "x"]),
)
ports = st.integers(0, 65535)


@st.composite
def cards(draw):
    """Our own cards, with whatever addresses are allowed."""
    addresses = draw(st.lists(st.builds(Address, hosts, ports), max_size=DIRECT_MAX, unique=True))
    try:
        return Card.make(ALICE, draw(st.integers(0, SEQ_MAX)), addresses)
    except ValueError:
        return Card.make(ALICE, 1, [V4, V6])


def test_a_card_says_what_its_peer_says():
    card = Card.make(ALICE, 7, [V6, V4, NAME], mapped=[Address("8.8.4.4", 4001)], relays=[RELAY])

    again = decode_card(card.data)

    assert again.peer == ALICE.peer_id
    assert again.seq == 7
    assert again.addresses == (V6, V4, NAME, Address("8.8.4.4", 4001))
    kinds = [AddressKind.IPV6, AddressKind.IPV4, AddressKind.NAME, AddressKind.MAPPED]
    assert [each.kind for each in again.direct] == kinds
    assert [each.contact for each in again.relays] == [RELAY]
    assert again.flags is CardFlags.NONE


@given(cards())
def test_every_card_survives_the_way_and_is_small(card):
    data = card.data

    again = decode_card(data)

    assert (again.direct, again.seq, again.signed) == (card.direct, card.seq, card.signed)
    assert len(data) <= BODY_BYTES_MAX + 80


@given(cards(), st.data())
def test_a_card_with_a_changed_byte_is_no_card(card, data):
    raw = bytearray(card.data)
    at = data.draw(st.integers(0, len(raw) - 1))
    raw[at] ^= data.draw(st.integers(1, 255))

    with pytest.raises(BadMessage):
        decode_card(bytes(raw))


@given(st.binary(max_size=300))
def test_any_bytes_are_a_card_or_a_bad_message(data):
    with pytest.raises(BadMessage):
        decode_card(data)
    if data:
        with pytest.raises(BadMessage):
            read(SignedCard(data, bytes(64)))


def test_mutated_cards_raise_nothing_else():
    """Bytes that are nearly a card reach deeper than random ones."""
    whole = Card.make(ALICE, 7, [V6, V4, NAME], relays=[RELAY])
    rng = random.Random(1)
    for _ in range(3000):
        body = bytearray(whole.signed.body)
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        signed = SignedCard(bytes(body), ALICE.sign(TAG, bytes(body)))
        try:
            card = read(signed)
        except BadMessage:
            continue
        assert all(each.port > 0 for each in card.direct)


def test_nobody_signs_for_another():
    body = Card.make(ALICE, 7, [V4]).signed.body

    with pytest.raises(BadMessage, match="did not sign"):
        read(SignedCard(body, BOB.sign(TAG, body)))
    with pytest.raises(BadMessage, match="did not sign"):
        read(SignedCard(body, ALICE.sign(b"another purpose", body)))


@pytest.mark.parametrize(
    ("host", "port", "kind"),
    [
        pytest.param("0.0.0.0", 1, 1, id="unspecified"),
        pytest.param("::", 1, 2, id="unspecified, IPv6"),
        pytest.param("224.0.0.1", 1, 1, id="multicast"),
        pytest.param("ff02::1", 1, 2, id="multicast, IPv6"),
        pytest.param("255.255.255.255", 1, 1, id="broadcast"),
        pytest.param("240.0.0.1", 1, 1, id="reserved"),
        pytest.param("8.8.8.8", 0, 1, id="port 0"),
        pytest.param("fe80::1%eth0", 1, 2, id="a zone"),
        pytest.param("::ffff:8.8.8.8", 1, 2, id="IPv4 as IPv6"),
        pytest.param("2600:0::1", 1, 2, id="another way to write it"),
        pytest.param("A.example.org", 1, 4, id="a name in capitals"),
        pytest.param("a b", 1, 4, id="no name"),
        pytest.param("8.8.8.8", 1, 2, id="another family"),
        pytest.param("2600::1", 1, 1, id="another family, IPv6"),
        pytest.param("8.8.8.8", 1, 4, id="a number as a name"),
        pytest.param("a.example.org", 1, 3, id="a mapped name"),
        pytest.param("a.example.org", 1, 1, id="a name as a number"),
    ],
)
def test_an_address_that_means_nothing_to_others_is_refused(host, port, kind):
    with pytest.raises(ValueError, match=r".") as caught:
        encode(DirectAddress(kind, host, port))

    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "wrong",
    [
        {"direct": [V4, V4]},
        {"direct": [V4], "mapped": [V4]},
        {"direct": [Address("8.8.8.8", 1 + i) for i in range(DIRECT_MAX + 1)]},
        {"direct": [Address(f"{'a' * 60}.{'b' * 60}.{'c' * 60}.{i}x.org", 1) for i in range(8)]},
        {"direct": [], "relays": [RELAY, RELAY]},
        {"direct": [], "relays": [RELAY, Contact(BOB.peer_id, V4)]},
        {"direct": [], "relays": [Contact(ALICE.peer_id, V4)]},
        {"direct": [], "relays": [Contact(None, V4)]},
        {"direct": [], "relays": [Contact(each.peer_id, V4) for each in (BOB, CAROL)] + [RELAY]},
        {"direct": [V4], "flags": CardFlags.CLIENT},
    ],
)
def test_a_card_of_ours_that_others_would_refuse_is_not_made(wrong):
    with pytest.raises(ValueError, match=r"."):
        Card.make(ALICE, 1, **wrong)


def test_limits_are_those_that_are_stated():
    direct = [Address(f"2600:{i}:ffff:ffff:ffff:ffff:ffff:ffff", 65535) for i in range(DIRECT_MAX)]
    relays = [
        Contact(each.peer_id, at)
        for each in (BOB, CAROL)
        for at in (direct[0], Address("100.100.100.254", 65535))
    ]

    card = Card.make(ALICE, SEQ_MAX, direct, relays=relays)

    assert len(card.relays) == RELAY_ADDRESSES_MAX
    assert len(card.data) < 800


def test_cards_are_equal_by_peer_and_the_newer_counts():
    old, new = Card.make(ALICE, 1, [V4]), Card.make(ALICE, 2, [V6])

    assert old == new
    assert len({old, new}) == 1
    assert old != Card.make(BOB, 1, [V4])
    assert old != V4
    assert newer(old, new) is newer(new, old) is new
    with pytest.raises(ValueError, match="two peers"):
        newer(old, Card.make(BOB, 1, [V4]))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([V4, V6, LAN])), min_size=1), st.randoms()
)
def test_whatever_order_cards_come_in_all_nodes_keep_the_same(said, chance):
    some = [Card.make(ALICE, seq, [at]) for seq, at in said]
    kept = []
    for _ in range(2):
        chance.shuffle(some)
        best = some[0]
        for each in some:
            best = newer(best, each)
        kept.append(best.data)

    assert kept[0] == kept[1]


def test_who_cannot_be_dialled_says_so():
    client = decode_card(Card.make(ALICE, 1, [], flags=CardFlags.CLIENT).data)

    assert client.flags & CardFlags.CLIENT
    assert client.direct == client.relays == ()
    assert Card.make(ALICE, 1, [], relays=[RELAY], flags=CardFlags.CLIENT).relays


def test_flags_of_a_later_version_mean_nothing_and_break_nothing():
    body = encode(CardBody(ALICE.public_key, 1, (), (), 128))
    card = read(SignedCard(body, ALICE.sign(TAG, body)))

    assert not card.flags & CardFlags.CLIENT
    assert card.signed.body == body


@pytest.mark.parametrize(
    ("named", "us", "heard_at", "least", "left"),
    [
        pytest.param([V4, LAN], [], ELSEWHERE, Scope.PRIVATE, [V4], id="a public peer"),
        pytest.param([V4, LAN], [], "192.168.1.9", Scope.PRIVATE, [V4, LAN], id="a neighbour"),
        pytest.param([V4, LAN], [], "192.168.1.9", Scope.PUBLIC, [V4], id="we are public"),
        pytest.param([V4, V6], [V4], ELSEWHERE, Scope.PUBLIC, [V6], id="ourselves"),
        pytest.param([LOOPBACK, LAN], [], "192.168.1.9", Scope.PRIVATE, [LAN], id="our loopback"),
        pytest.param([LOOPBACK], [], "127.0.0.1", Scope.PRIVATE, [LOOPBACK], id="this machine"),
        pytest.param([LOOPBACK], [], "::1", Scope.PRIVATE, [LOOPBACK], id="this machine, IPv6"),
        pytest.param(
            [Address("localhost", 1), NAME], [], "a.example.org", Scope.PRIVATE, [NAME], id="names"
        ),
    ],
)
def test_addresses_that_lead_to_our_own_network_are_not_dialled(named, us, heard_at, least, left):
    card = Card.make(ALICE, 1, named)
    relayed = Card.make(ALICE, 1, [], relays=[Contact(BOB.peer_id, each) for each in named[:1]])

    direct = believed([Contact(card.peer, at) for at in card.addresses], us, heard_at, least)
    relays = believed([each.contact for each in relayed.relays], us, heard_at, least)

    assert [each.address for each in direct] == left
    assert [each.address for each in relays] == [each for each in named[:1] if each in left]
