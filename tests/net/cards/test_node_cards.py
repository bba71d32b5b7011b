"""NodeCards: what a node believes of the cards that links bring, and what it answers."""

import pytest

from p2pswarm.base.errors import BadMessage
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.node_cards import HeardCard, NodeCards
from p2pswarm.net.cards.own_card import CardContents
from p2pswarm.net.crypto.identity import Identity

US, ALICE, EVE = (Identity.generate(name) for name in (b"us", b"alice", b"eve"))
HERE = Contact(US.peer_id, Address("8.8.1.1", 4000))
V4, V6 = Address("8.8.8.8", 4000), Address("2600::1", 4000)
LOOPBACK, LAN = Address("127.0.0.1", 22), Address("192.168.1.1", 80)
OLD, NEW = Card.make(ALICE, 1, [V4]), Card.make(ALICE, 2, [V6])


def linked(theirs: Card = OLD) -> NodeCards[str]:
    """The cards of a node with a link to Alice."""
    cards: NodeCards[str] = NodeCards(US)
    ours = cards.ours(HERE, 1000)
    cards.learn(theirs, Address("1.1.1.1", 1))
    cards.met("link", theirs, b"introduction" + ours.encode(), ours)
    return cards


def hear(cards: NodeCards[str], card: Card) -> HeardCard:
    return cards.hear("link", Contact(ALICE.peer_id, Address("1.1.1.1", 1)), card.encode(), 0.0)


def test_a_newer_card_is_kept_and_an_older_one_is_answered():
    cards = linked()

    assert hear(cards, NEW) == HeardCard(moved=True)
    assert hear(cards, OLD) == HeardCard(NEW.encode())
    assert hear(cards, NEW) == HeardCard()
    assert cards.book.of(ALICE.peer_id).seq == 2


def test_a_card_of_an_earlier_process_of_ours_is_outdone():
    cards = linked()
    earlier = Card.make(US, 10**9, [V4])

    assert hear(cards, earlier) == HeardCard(outdone=True)
    assert cards.ours(HERE, 1001).seq > earlier.seq
    assert hear(cards, earlier) == HeardCard()


def test_anothers_card_is_a_breach():
    with pytest.raises(BadMessage, match="a card of"):
        hear(linked(), Card.make(EVE, 1, [V4]))


def test_over_a_link_that_is_not_up_nothing_is_heard():
    cards = linked()
    cards.left("link", ALICE.peer_id)

    assert hear(cards, NEW) == HeardCard()


def test_who_comes_back_with_an_older_card_is_told_so():
    cards = linked(NEW)
    ours = cards.ours(HERE, 1000)

    assert cards.met("again", OLD, ours.encode(), ours).signed == NEW.signed
    assert cards.met("third", NEW, ours.encode(), ours) is None


def test_what_is_announced_counts_more_than_where_we_listen():
    cards = linked()
    assert cards.ours(HERE, 1000).addresses == (HERE.address,)

    cards.announce(CardContents((V6,)), 2000)

    assert cards.ours(HERE, 3000).addresses == (V6,)


@pytest.mark.parametrize(
    ("remote", "believed"),
    [
        (Address("127.0.0.1", 1), [LOOPBACK, LAN, V4]),
        (Address("127.0.0.1", 1).through(US.peer_id), [V4]),
        (Address("192.168.1.9", 1), [LAN, V4]),
        (Address("1.1.1.1", 1), [V4]),
    ],
    ids=["our machine", "a relay on our machine", "the LAN", "outside"],
)
def test_where_a_card_came_from_decides_what_of_it_is_dialled(remote, believed):
    cards = linked()

    cards.learn(Card.make(EVE, 1, [LOOPBACK, LAN, V4]), remote)

    assert [each.address for each in cards.book.direct(EVE.peer_id, ())] == believed
