"""OwnCard: numbers only grow, whatever clocks do, and nothing is signed for nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import SEQ_MAX, Card, CardFlags, newer
from p2pswarm.net.cards.own_card import CardContents, OwnCard, announced_by
from p2pswarm.net.crypto.identity import Identity

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

    assert own.outdone(before)

    assert own.saying(THERE, 1001).seq > before.seq > mine.seq
    assert not own.outdone(before)
    assert own.saying(THERE, 1002) is own.saying(THERE, 1003)


def test_what_is_ours_now_or_older_or_anothers_changes_nothing():
    own = OwnCard(ALICE)
    assert not own.outdone(Card.make(ALICE, 7, [V4]))
    card = own.saying(HERE, 1000)

    assert not own.outdone(card)
    assert not own.outdone(Card.make(ALICE, 999, [V6]))
    assert not own.outdone(Card.make(BOB, SEQ_MAX, [V6]))
    assert own.saying(HERE, 5000) is card


def test_the_last_number_is_the_last():
    own = OwnCard(ALICE)
    own.saying(HERE, 1000)
    own.outdone(Card.make(ALICE, SEQ_MAX, [V4]))

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
