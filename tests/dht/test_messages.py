"""The DHT's messages on the wire."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.dht.messages import (
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
    contact_of,
    contacts_in,
    peer_list,
)
from p2pswarm.errors import BadMessage
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.wire.message import decode, encode

ID = bytes(range(32))
HOME = "203.0.113.7:4000"
RECORD = Record(ID, b"sub", b"value", 7, 1_700_000_000_000, ID, bytes(64))
TWO = peer_list([(ID, HOME), (ID[::-1], "[::1]:1")])


@pytest.mark.parametrize(
    "sent",
    [
        Identify(HOME, ID),
        Identified(ID, TWO),
        Find("", ID),
        Found(TWO),
        Get(HOME, ID, b"after", True, 2),
        Got((RECORD, RECORD), True, TWO),
        Store(HOME, (RECORD,)),
        Stored(b"\0\7"),
        Ping(HOME),
        Pong(),
    ],
    ids=lambda sent: type(sent).__name__,
)
def test_what_is_sent_arrives(sent):
    assert decode(encode(sent)) == sent


def test_a_peer_list_holds_contacts():
    assert contacts_in(TWO) == [
        Contact(PeerId(ID), Address("203.0.113.7", 4000)),
        Contact(PeerId(ID[::-1]), Address("::1", 1)),
    ]


def test_ids_without_addresses_are_malformed():
    with pytest.raises(BadMessage):
        decode(encode(Found(TWO)).replace(b"[::1]:1", b"[::1]:1" + b"\xa1x"))
    with pytest.raises(ValueError, match="1 addresses for 64 bytes"):
        PeerList(ID + ID, (HOME,))


@pytest.mark.parametrize("listen_address", ["", "nowhere", "host:99999", "a b:1", "[]:1", "[::1:1"])
def test_a_contact_needs_an_address(listen_address):
    with pytest.raises(BadMessage, match="not a contact"):
        contact_of(ID, listen_address)


@pytest.mark.parametrize(
    "host", ["a..b", "..", "x" * 64 + ".com", "\u00e4" * 80, "a\0b", "a\x7fb"], ids=ascii
)
def test_a_host_that_no_resolver_takes_is_no_contact(host):
    """Dialling it would raise UnicodeError or ValueError, which no caller of a peer expects."""
    with pytest.raises(BadMessage, match="not a contact"):
        contact_of(ID, f"{host}:1")


@given(st.binary(min_size=32, max_size=32), st.text(max_size=262))
def test_whatever_a_peer_calls_an_address_is_a_contact_or_a_breach(peer, listen_address):
    try:
        known = contact_of(peer, listen_address)
    except BadMessage:
        return
    assert known.peer == PeerId(peer)
    known.address.host.encode("idna")


def test_an_id_of_another_length_is_no_contact():
    with pytest.raises(BadMessage, match="not a contact"):
        contact_of(ID[1:], HOME)


def test_a_full_answer_fits_a_frame():
    far = "x" * 252 + ":65535"
    records = tuple([RECORD] * 128)
    full = peer_list([(ID, far)] * 20)

    assert len(encode(Got(records, True, full))) < 60 * 1024
