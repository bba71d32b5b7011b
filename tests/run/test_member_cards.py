"""Cards in the messages of a run: who is told of a peer learns where else it is dialled."""

import pytest

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.wire.message import encode
from p2pswarm.run.member_cards import (
    NO_CARDS,
    PEER_COST_BYTES,
    as_far_as_they_fit,
    leads_there,
    learn_all,
    with_cards,
)
from p2pswarm.run.messages.membership import Leaving, MemberRecord, StandsBy, View
from p2pswarm.run.messages.trainers import PROBES_MAX, AskReachable, Trainers, Whereabouts

TELLER = PeerId(b"t" * 32)


class Told:
    """Cards that somebody was told, and cards that it knows."""

    def __init__(self, known: dict[bytes, bytes] | None = None) -> None:
        self.known = known or {}
        self.learnt: list[tuple[bytes, bytes, PeerId | None]] = []

    def of(self, peer: bytes) -> bytes:
        return self.known.get(peer, b"")

    def learn(self, peer: bytes, card: bytes, teller: PeerId | None) -> None:
        if card == b"bad":
            raise BadMessage("no card")
        self.learnt.append((peer, card, teller))

    def watch(self, _on_news):
        return lambda: None


def member(number: int, card: bytes) -> MemberRecord:
    return MemberRecord(bytes([number]) * 32, "h:1", 0, number, True, card)


def trainers(*cards: bytes) -> Trainers:
    first, *rest = (Whereabouts(bytes([at]) * 32, "h:1", card) for at, card in enumerate(cards))
    return Trainers(b"r" * 16, 1, (first,), tuple(rest))


def test_members_of_a_view_and_trainers_are_learnt():
    told = Told()

    learn_all(told, View(1, 0, False, (), (member(1, b"a"), member(2, b"b")), ()), TELLER)
    learn_all(told, trainers(b"c", b"d"), TELLER)
    learn_all(told, Leaving(), TELLER)
    learn_all(told, None, TELLER)

    assert [card for _, card, _ in told.learnt] == [b"a", b"b", b"c", b"d"]
    assert {teller for _, _, teller in told.learnt} == {TELLER}


def test_who_leads_and_whom_a_standby_is_asked_about_are_learnt():
    told = Told()
    asked = (Whereabouts(b"c" * 32, "h:1", b"e"), Whereabouts(b"d" * 32, "h:1"))

    learn_all(told, StandsBy(b"b" * 32, "h:1", 3, b"f"), TELLER)
    learn_all(told, StandsBy(b"", "", 3, b""), TELLER)
    learn_all(told, AskReachable(b"r" * 16, 3, asked), TELLER)

    assert [(peer[:1], card) for peer, card, _ in told.learnt] == [
        (b"b", b"f"),
        (b"c", b"e"),
        (b"d", b""),
    ]


def test_cards_are_told_as_far_as_they_fit_and_peers_in_any_case():
    peers = [Whereabouts(bytes([at]) * 32, "h:1") for at in range(4)]
    known = Told({bytes([at]) * 32: b"x" * size for at, size in enumerate((40, 70, 30, 31))})

    told = as_far_as_they_fit(known, peers, 4 * (PEER_COST_BYTES + len("h:1")) + 100)

    assert [one.peer for one in told] == [one.peer for one in peers]
    assert [len(one.card) for one in told] == [40, 0, 30, 0]


def test_the_longest_question_fits_into_a_message():
    longest = Whereabouts(b"p" * 32, "a" * 300)
    cards = Told({b"p" * 32: b"x" * 1096})

    told = as_far_as_they_fit(cards, [longest] * PROBES_MAX)

    assert len(encode(AskReachable(b"r" * 16, 2**29, told))) <= 60 * 1024
    assert sum(bool(one.card) for one in told) >= 8


def test_a_view_with_a_card_that_is_none_is_the_teller_s_breach():
    with pytest.raises(BadMessage):
        learn_all(Told(), View(1, 0, False, (), (member(1, b"bad"),), ()), TELLER)


def test_the_coordinator_tells_the_newest_cards_that_it_knows():
    told = with_cards(Told({bytes(32): b"new"}), trainers(b"old", b"gone"))

    assert [one.card for one in (*told.trainers, *told.voters)] == [b"new", b""]


def test_without_cards_there_is_nothing_to_know():
    NO_CARDS.learn(b"p" * 32, b"whatever", None)
    NO_CARDS.watch(lambda _peer: None)()

    assert NO_CARDS.of(b"p" * 32) == b""


def test_the_longest_card_fits_into_a_record():
    names = [Address(("n" * 60 + ".") * 2 + f"e{n}.example", 65_535) for n in range(7)]
    card = Card.make(Identity.generate(), 2**53, names, flags=CardFlags.RELAY)

    assert len(card.signed.body) > 1000
    assert member(1, card.data).card == card.data


def test_a_card_leads_to_its_addresses_and_to_the_peer_at_its_relays():
    key, at = Identity.generate(), Address("203.0.114.7", 4000)
    relay = Contact(TELLER, Address("203.0.114.9", 4000))
    card = Card.make(key, 1, [at], relays=[relay]).data

    assert leads_there(card, str(at))
    assert leads_there(card, str(relay.address.through(key.peer_id)))
    assert not leads_there(card, "203.0.114.8:4000")
    assert not leads_there(card, "no address")
    assert not leads_there(b"", str(at))
    assert not leads_there(card[:-1], str(at))
    assert not leads_there(encode(Leaving()), str(at))
