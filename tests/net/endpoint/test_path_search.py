"""Tests of `net/endpoint/path_search.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import DialFailed, LinkLost, NobodyThere, UnknownLink
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card
from p2pswarm.net.cards.card_book import CardBook
from p2pswarm.net.cards.card_claims import CardClaims
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.path_search import (
    CLIMB_S_MAX,
    HOST_REFUSES_S,
    PAUSE_S,
    PAUSE_S_MAX,
    PEER_COMES_S,
    CardCandidates,
    PathClimb,
    PathSearch,
    better,
    was_refused,
)
from p2pswarm.net.link.path import (
    ClaimedCandidate,
    DialledCandidate,
    Path,
    PathKind,
    address_of,
    telling_candidates,
)
from p2pswarm.net.os.addresses import Scope, scope_of
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
    def candidates(self, to):
        del to
        return (Punched(),)


def paths_of(card: Card | None, heard_at: str = "1.1.1.1") -> tuple[CardCandidates, CardClaims]:
    book, claims = CardBook(US.peer_id), CardClaims()
    if card is not None:
        book.learn(card, heard_at)
    return CardCandidates(NET, book, claims, lambda: (OURS,), lambda: 0.0), claims


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

    ways = paths.candidates(Contact(ALICE.peer_id, hint))

    kinds = [way.kind for way in ways]
    assert kinds == sorted(kinds)
    assert offered == (PathKind.PUNCHED in kinds)
    places = [place for way in ways if (place := address_of(way)) is not None]
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

    assert paths.candidates(Contact(ALICE.peer_id, PLACES[0])) == [DialledCandidate(NET, PLACES[0])]
    assert paths.candidates(Contact(None, PLACES[0])) == [DialledCandidate(NET, PLACES[0])]
    assert paths.candidates(Contact(ALICE.peer_id, NOWHERE)) == []


def test_a_claim_becomes_known_when_the_peer_was_found_there():
    paths, claims = paths_of(Card.make(ALICE, 1, PLACES[:2]))
    to = Contact(ALICE.peer_id, NOWHERE)
    assert [type(way) for way in paths.candidates(to)] == [ClaimedCandidate, ClaimedCandidate]
    assert telling_candidates(paths.candidates(to)) == paths.candidates(to)

    claims.confirm(Contact(ALICE.peer_id, PLACES[1]), 0.0)

    assert telling_candidates(paths.candidates(to)) == [DialledCandidate(NET, PLACES[1])]
    assert len(paths.candidates(to)) == 2


def test_a_claim_that_led_nowhere_is_no_way_for_now():
    paths, claims = paths_of(Card.make(ALICE, 1, PLACES[:1]))
    claims.begin(Contact(ALICE.peer_id, PLACES[0]), 0.0)

    assert paths.candidates(Contact(ALICE.peer_id, NOWHERE)) == []
    assert paths.candidates(Contact(ALICE.peer_id, PLACES[0])) == [DialledCandidate(NET, PLACES[0])]


DIRECT, RELAYED = PathKind.DIRECT, PathKind.RELAYED


def rounds(search: PathSearch, ways: int, refused: list[PathKind]) -> list[float]:
    """When each round begins from 100.0 on, if a round takes no time."""
    begun = [now_s := 100.0]
    while (at_s := search.next_round_s(ways, refused, now_s)) is not None:
        assert at_s > now_s
        begun.append(now_s := at_s)
    return begun


def test_who_dialled_gives_up_at_once_if_every_way_is_refused():
    search = PathSearch(100.0, 10.0, peer_may_come=False)

    assert rounds(search, 2, [DIRECT, RELAYED]) == [100.0]
    assert PathSearch(100.0, 10.0, peer_may_come=False).next_round_s(0, [], 100.0) is None


@pytest.mark.parametrize(
    ("refused", "wait_s"),
    [
        ([], PEER_COMES_S),
        ([RELAYED, RELAYED], PEER_COMES_S),
        ([DIRECT], HOST_REFUSES_S),
        ([RELAYED, DIRECT], HOST_REFUSES_S),
    ],
)
def test_who_was_dialled_waits_a_little_for_the_peer_to_come(refused, wait_s):
    search = PathSearch(100.0, 10.0, peer_may_come=True)

    assert rounds(search, len(refused), refused)[-1] == 100.0 + wait_s


def test_while_one_way_is_only_silent_all_are_tried_as_long_as_the_link_is_kept():
    begun = rounds(PathSearch(100.0, 10.0, peer_may_come=False), 2, [DIRECT])

    assert begun[1] - begun[0] == PAUSE_S or abs(begun[1] - begun[0] - PAUSE_S) < 1e-9
    assert begun[-1] == 110.0


@given(st.floats(0, 1e6), st.lists(st.tuples(st.integers(0, 3), st.floats(0, 5)), max_size=40))
def test_pauses_grow_to_a_second_and_no_round_begins_after_the_end(begun_s: float, results):
    search, now_s = PathSearch(begun_s, 10.0, peer_may_come=True), begun_s
    for refused, took_s in results:
        now_s += took_s
        at_s = search.next_round_s(3, [RELAYED] * refused, now_s)
        if at_s is None:
            assert now_s >= begun_s + min(PEER_COMES_S, 10.0)
            return
        assert now_s <= at_s <= min(now_s + PAUSE_S_MAX, begun_s + 10.0) + 1e-6
        now_s = at_s


def test_who_says_that_nobody_is_there_refuses_and_who_says_nothing_does_not():
    for error in (NobodyThere("x"), UnknownLink("x")):
        assert was_refused(error)
    for error in (DialFailed("no answer"), LinkLost("closed")):
        assert not was_refused(error)


def test_better_ways_are_tried_soon_and_then_every_few_seconds():
    climb = PathClimb()

    tries = [climb.next_try_s(0.0) for _ in range(12)]

    assert tries == sorted(tries)
    assert tries[0] < 0.5
    assert tries[-1] == CLIMB_S_MAX


def test_only_who_took_a_way_looks_for_a_better_one():
    direct = DialledCandidate(SocketNet(), Address("192.0.2.1", 4001))
    relay = DialledCandidate(SocketNet(), Address("192.0.2.2", 4001, circuit=b"p" * 32))
    by_relay = Path(relay.kind, relay.to, relay)

    assert better([direct, relay], by_relay) == [direct]
    assert better([relay], by_relay) == []
    assert better([direct, relay], Path(direct.kind, direct.to, direct)) == []
    assert better([direct], Path(None, relay.to, None)) == better([direct], None) == []
