"""A download: whom to ask, what for, and what an offer means."""

import pytest

from p2pswarm.errors import BadMessage
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.state.download_plan import AHEAD, RETRY_S, DownloadPlan
from p2pswarm.state.pieces import StatePiece
from p2pswarm.swarm.messages.state import FetchPiece, StateOffer

DONORS = tuple(Contact(PeerId(bytes([n]) * 32), Address("10.0.0.1", n)) for n in range(1, 4))
OFFER = StateOffer(3, b"d3", 100)


def plan(offer=OFFER, **limits):
    one = DownloadPlan(100, piece_bytes=30, **limits)
    one.offered(offer)
    return one


def all_of(one):
    pieces = []
    while (piece := one.ask()) is not None:
        pieces.append(piece)
    return pieces


def test_donors_are_asked_in_turn_and_a_pause_follows_the_last():
    one = DownloadPlan(100)

    turns = [(one.donor(DONORS), one.pause_s) for _ in range(4)]

    first, second, third = DONORS
    assert turns == [(first, 0.0), (second, 0.0), (third, RETRY_S), (first, 0.0)]


def test_a_lone_donor_is_not_asked_without_a_pause():
    one = DownloadPlan(100)

    one.donor(DONORS[:1])

    assert one.pause_s == RETRY_S


@pytest.mark.parametrize("answer", [None, FetchPiece(0, 1, 1), StateOffer(3, b"d3", 99)])
def test_an_answer_that_is_no_fitting_offer_is_refused(answer):
    with pytest.raises(BadMessage, match="an offer of 100 bytes"):
        DownloadPlan(100).offered(answer)


def test_so_many_pieces_are_under_way_at_once():
    one = plan()

    first, _ = all_of(one)
    assert one.ask() is None
    one.came(first)

    assert AHEAD == 2
    assert all_of(one) == [StatePiece(60, 30)]


def test_a_piece_is_put_where_it_belongs():
    one = plan(ahead=9)
    for piece in all_of(one):
        one.memory(piece)[:] = bytes([piece.offset]) * piece.nbytes
        assert not one.complete
        one.came(piece)

    snapshot = one.snapshot()

    assert one.complete
    assert (snapshot.version, snapshot.digest) == (3, b"d3")
    assert bytes(snapshot.data) == b"".join(
        bytes([at]) * n for at, n in ((0, 30), (30, 30), (60, 30), (90, 10))
    )


def test_the_same_snapshot_goes_on_with_what_is_missing():
    one = plan()
    first, second = all_of(one)
    one.came(first)
    one.stopped()

    one.offered(OFFER)

    assert all_of(one) == [second, StatePiece(60, 30)]


@pytest.mark.parametrize("other", [StateOffer(4, b"d3", 100), StateOffer(3, b"other", 100)])
def test_another_snapshot_starts_over(other):
    one = plan()
    first, _ = all_of(one)
    one.memory(first)[:] = b"x" * first.nbytes
    one.came(first)
    one.stopped()

    one.offered(other)

    assert one.ask() == first
    assert bytes(one.memory(first)) == bytes(first.nbytes)
