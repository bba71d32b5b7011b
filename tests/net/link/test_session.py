"""Introductions: what a peer says of itself in the handshake, and what it may not say."""

from dataclasses import dataclass, replace

import pytest

from p2pswarm.base.errors import BadHandshake
from p2pswarm.base.ids import Address
from p2pswarm.net.cards.card import BODY_BYTES_MAX, Card, SignedCard
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.link.session import Introduction, introduced_card, read_introduction
from p2pswarm.net.wire.message import Message, encode, message


@message(61471)
@dataclass(frozen=True, slots=True)
class Other(Message):
    number: int


ALICE, BOB = Identity.generate(b"alice"), Identity.generate(b"bob")
CARD = Card.make(ALICE, 7, [Address("8.8.8.8", 4001)])
OURS = Introduction(b"i" * 16, 4001, "203.0.113.7", CARD.data)


def test_an_introduction_is_read_as_it_was_written():
    assert read_introduction(encode(OURS)) == OURS


@pytest.mark.parametrize(
    "payload",
    [b"", b"garbage", encode(OURS)[:-1], b"\x95\x0a\xc4\x01x\x00\xa0\xc4\x00", encode(Other(7))],
)
def test_anything_else_is_a_bad_handshake(payload: bytes):
    with pytest.raises(BadHandshake, match="introduc"):
        read_introduction(payload)


@pytest.mark.parametrize("host", ["a b", "::1::", "\x1b[2J", "x" * 200, "a..b"])
def test_an_observed_host_that_is_none_is_refused(host: str):
    """We would announce it, and no introduction of ours could be made any more."""
    with pytest.raises(BadHandshake, match="introduction"):
        read_introduction(encode(replace(OURS, observed_host=host)))


@pytest.mark.parametrize(
    ("host", "read"),
    [("", ""), ("2001:db8::1", "2001:db8::1"), ("::ffff:192.0.2.1", "192.0.2.1"), ("me", "me")],
)
def test_an_observed_host_is_read_in_its_one_form(host: str, read: str):
    raw = encode(replace(OURS, observed_host=host))

    assert read_introduction(raw).observed_host == read


def test_a_peer_introduces_itself_with_its_own_card():
    card = introduced_card(read_introduction(encode(OURS)), ALICE.peer_id)

    assert card.addresses == CARD.addresses


FORGED = SignedCard(CARD.signed.body, BOB.sign(b"p2pswarm-card-1:", CARD.signed.body))
TOO_LARGE = b"\x93\x13\xc5\x04\x01" + bytes(BODY_BYTES_MAX + 1) + b"\xc4\x40" + bytes(64)


@pytest.mark.parametrize(
    ("card", "why"),
    [
        (Card.make(BOB, 1, [Address("8.8.8.8", 4001)]).data, "the card of"),
        (encode(FORGED), "did not sign"),
        (TOO_LARGE, "card: "),
        (b"garbage", "card: "),
        (encode(CARD.signed) + b"x", "card: "),
        (encode(OURS), "is no card"),
    ],
    ids=["another peer's", "forged", "oversized", "garbage", "bytes after it", "no card"],
)
def test_another_card_is_a_bad_handshake(card: bytes, why: str):
    introduction = read_introduction(encode(replace(OURS, card=card)))

    with pytest.raises(BadHandshake, match=why) as caught:
        introduced_card(introduction, ALICE.peer_id)

    assert len(str(caught.value)) < 250
