"""CardPaths: the order of the ways to a peer, whatever its card says."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.card_paths import CardPaths
from p2pswarm.net.link.path import ClaimedWay, DialledWay, PathKind, known_ways, place_of
from p2pswarm.net.os.address_scope import Scope, scope_of
from p2pswarm.net.os.sockets import SocketNet

US, ALICE, BOB = (Identity.generate(name) for name in (b"us", b"alice", b"bob"))
OURS = Address("8.8.1.1", 4000)
NET = SocketNet()
PLACES = [
    Address("8.8.8.8", 4000),
    Address("8.8.4.4", 4000),
    Address("2600::1", 4000),
    Address("2600:1::1", 4001),
    Address("a.example.org", 4000),
    Address("192.168.1.1", 80),
    Address("127.0.0.1", 22),
    OURS,
]
RELAYS = [Contact(BOB.peer_id, Address("9.9.9.9", 443)), Contact(US.peer_id, Address("9.9.8.8", 1))]
NOWHERE = Address("127.0.0.1", 0)


class Punched:
    """A way that leads through no address."""

    kind = PathKind.PUNCHED

    async def connect(self):
        raise AssertionError("nobody dials here")


class Offered:
    def ways(self, to):
        del to
        return (Punched(),)


def paths_of(card: Card | None, heard_at: str = "1.1.1.1") -> tuple[CardPaths, CardClaims]:
    book, claims = CardBook(US.peer_id), CardClaims()
    if card is not None:
        book.learn(card, heard_at)
    return CardPaths(NET, book, claims, lambda: (OURS,), lambda: 0.0), claims


@given(
    st.lists(st.sampled_from(PLACES), max_size=8, unique=True),
    st.lists(st.sampled_from(RELAYS), max_size=2, unique=True),
    st.sampled_from([NOWHERE, *PLACES[:4], RELAYS[0].address.through(ALICE.peer_id)]),
    st.booleans(),
)
def test_the_ways_to_a_peer_are_in_order_and_lead_to_nobody_else(direct, relays, hint, offered):
    paths, _ = paths_of(Card.make(ALICE, 1, direct, relays=relays))
    if offered:
        paths.offered = Offered()

    ways = paths.ways(Contact(ALICE.peer_id, hint))

    kinds = [way.kind for way in ways]
    assert kinds == sorted(kinds)
    assert offered == (PathKind.PUNCHED in kinds)
    places = [place for way in ways if (place := place_of(way)) is not None]
    assert len(set(places)) == len(places)
    named = [place for place in places if place != hint]
    assert OURS not in named
    assert all(scope_of(place.host) is Scope.PUBLIC for place in named)
    assert all(not place.circuit or place.circuit == ALICE.peer_id.raw for place in places)
    if hint.port and not hint.circuit:
        assert places[0] == hint
    families = [":" in place.host for place in named if not place.circuit]
    assert families == sorted(families, reverse=True)


def test_a_stranger_has_the_way_that_the_caller_knows():
    paths, _ = paths_of(None)

    assert paths.ways(Contact(ALICE.peer_id, PLACES[0])) == [DialledWay(NET, PLACES[0])]
    assert paths.ways(Contact(None, PLACES[0])) == [DialledWay(NET, PLACES[0])]
    assert paths.ways(Contact(ALICE.peer_id, NOWHERE)) == []


def test_a_claim_becomes_known_when_the_peer_was_found_there():
    paths, claims = paths_of(Card.make(ALICE, 1, PLACES[:2]))
    to = Contact(ALICE.peer_id, NOWHERE)
    assert [type(way) for way in paths.ways(to)] == [ClaimedWay, ClaimedWay]
    assert known_ways(paths.ways(to)) == paths.ways(to)

    claims.found(Contact(ALICE.peer_id, PLACES[1]), 0.0)

    assert known_ways(paths.ways(to)) == [DialledWay(NET, PLACES[1])]
    assert len(paths.ways(to)) == 2


def test_a_claim_that_led_nowhere_is_no_way_for_now():
    paths, claims = paths_of(Card.make(ALICE, 1, PLACES[:1]))
    claims.begin(Contact(ALICE.peer_id, PLACES[0]), 0.0)

    assert paths.ways(Contact(ALICE.peer_id, NOWHERE)) == []
    assert paths.ways(Contact(ALICE.peer_id, PLACES[0])) == [DialledWay(NET, PLACES[0])]
