"""CardBook: the newest card of each peer, in bounds, whoever tells of how many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.addresses import Scope

US = Identity.generate(b"us")
PEERS = [Identity.generate(bytes([number])) for number in range(12)]
ALICE = PEERS[0]
V4, V6, LAN = Address("8.8.8.8", 4000), Address("2600::1", 4000), Address("192.168.1.7", 4000)
RELAY = Contact(PEERS[1].peer_id, Address("9.9.9.9", 443))
HERE, LAN_HOST, PUBLIC_HOST = "127.0.0.1", "192.168.1.9", "1.1.1.1"


def book(most: int = 4) -> CardBook:
    return CardBook(US.peer_id, most)


def test_the_newer_card_is_kept_and_is_news():
    kept = book()
    old, new = Card.make(ALICE, 1, [V4]), Card.make(ALICE, 2, [V6])

    assert kept.learn(old, PUBLIC_HOST)
    assert not kept.learn(old, PUBLIC_HOST)
    assert kept.learn(new, PUBLIC_HOST)
    assert not kept.learn(old, PUBLIC_HOST)

    assert kept.of(ALICE.peer_id) is new
    assert [each.address for each in kept.direct(ALICE.peer_id, ())] == [V6]


def test_a_card_of_ours_is_not_kept():
    kept = book()

    assert not kept.learn(Card.make(US, 2**53, [V4]), PUBLIC_HOST)
    assert kept.of(US.peer_id) is None


def test_nothing_is_known_of_a_stranger():
    kept = book()

    assert kept.of(ALICE.peer_id) is None
    assert kept.direct(ALICE.peer_id, ()) == kept.relayed(ALICE.peer_id, ()) == []


def test_ipv6_comes_first_and_relays_name_the_peer():
    kept = book()
    kept.learn(Card.make(ALICE, 1, [V4, V6], relays=[RELAY]), PUBLIC_HOST)

    direct = kept.direct(ALICE.peer_id, ())
    relayed = kept.relayed(ALICE.peer_id, ())

    assert direct == [Contact(ALICE.peer_id, V6), Contact(ALICE.peer_id, V4)]
    assert relayed == [Contact(ALICE.peer_id, RELAY.address.through(ALICE.peer_id))]


@pytest.mark.parametrize(
    ("heard_at", "believed"),
    [
        (PUBLIC_HOST, [V4]),
        (LAN_HOST, [V4, LAN]),
        (HERE, [V4, LAN, Address("127.0.0.1", 7)]),
    ],
)
def test_where_a_card_came_from_decides_what_is_believed(heard_at, believed):
    kept = book()
    kept.learn(Card.make(ALICE, 1, [V4, LAN, Address("127.0.0.1", 7)]), heard_at)

    assert [each.address for each in kept.direct(ALICE.peer_id, ())] == believed


def test_our_own_address_is_nobodys():
    kept = book()
    kept.learn(Card.make(ALICE, 1, [V4, V6]), PUBLIC_HOST)

    assert [each.address for each in kept.direct(ALICE.peer_id, (V6,))] == [V4]


def test_least_scope_is_respected():
    kept = book()
    kept.learn(Card.make(ALICE, 1, [V4, LAN]), LAN_HOST)

    assert [each.address for each in kept.direct(ALICE.peer_id, (), Scope.PUBLIC)] == [V4]


def test_the_same_card_from_nearer_is_believed_more():
    kept = book()
    card = Card.make(ALICE, 1, [LAN])
    kept.learn(card, PUBLIC_HOST)
    assert not kept.direct(ALICE.peer_id, ())

    assert not kept.learn(card, LAN_HOST)
    assert kept.direct(ALICE.peer_id, ())
    kept.learn(card, PUBLIC_HOST)

    assert kept.direct(ALICE.peer_id, ())


def test_the_card_of_a_linked_peer_stays():
    kept = book(2)
    kept.on_link(ALICE.peer_id)
    kept.on_link(ALICE.peer_id)
    kept.learn(Card.make(ALICE, 1, [V4]), PUBLIC_HOST)
    for peer in PEERS[1:]:
        kept.learn(Card.make(peer, 1, [V4]), PUBLIC_HOST)
    assert kept.of(ALICE.peer_id)

    kept.on_link_end(ALICE.peer_id)
    assert kept.of(ALICE.peer_id)
    kept.on_link_end(ALICE.peer_id)
    for peer in PEERS[1:]:
        kept.learn(Card.make(peer, 2, [V4]), PUBLIC_HOST)

    assert not kept.of(ALICE.peer_id)


def test_a_link_without_a_card_leaves_nothing():
    kept = book(2)
    kept.on_link(ALICE.peer_id)
    kept.on_link_end(ALICE.peer_id)

    assert len(kept) == 0
    assert kept.learn(Card.make(ALICE, 1, [V4]), PUBLIC_HOST)


def test_who_tells_of_many_pushes_out_only_what_it_told():
    kept = book(4)
    kept.learn(Card.make(ALICE, 1, [V4]), "5.5.5.5")
    for peer in PEERS[1:]:
        kept.learn(Card.make(peer, 1, [V4]), "6.6.6.6")

    assert kept.of(ALICE.peer_id)
    assert len(kept) == 4


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("learn"),
                st.integers(0, 11),
                st.integers(0, 3),
                st.sampled_from(["1.1.1.1", "1.1.2.2", "9.9.9.9", LAN_HOST]),
            ),
            st.tuples(st.just("link"), st.integers(0, 11)),
            st.tuples(st.just("unlink"), st.integers(0, 11)),
        ),
        max_size=60,
    )
)
def test_whatever_happens_there_is_a_bound_and_the_newest_card_of_a_link_stays(happened):
    kept = book(3)
    links: dict[int, int] = {}
    newest: dict[int, int] = {}
    for what, peer, *rest in happened:
        identity = PEERS[peer]
        if what == "learn":
            seq, heard_at = rest
            before = kept.of(identity.peer_id)
            news = kept.learn(Card.make(identity, seq, [V4]), heard_at)
            if before is not None:
                assert news == (seq > before.seq)
            if peer in links:
                newest[peer] = max(seq, newest.get(peer, 0))
        elif what == "link":
            kept.on_link(identity.peer_id)
            links[peer] = links.get(peer, 0) + 1
            card = kept.of(identity.peer_id)
            if card is not None:
                newest[peer] = card.seq
        elif peer in links:
            kept.on_link_end(identity.peer_id)
            links[peer] -= 1
            if not links[peer]:
                del links[peer]
                newest.pop(peer, None)

        assert len(kept) <= 3 + len(links)
        for linked, seq in newest.items():
            card = kept.of(PEERS[linked].peer_id)
            assert card is not None
            assert card.seq == seq
