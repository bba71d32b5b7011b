"""Tests of `run/averaging/piece_delivery.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Busy, DialFailed, Late, LinkLost, Refused
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.run.averaging.piece_delivery import (
    BUSY_MAX_S,
    MEASURED_S,
    AveragingRoadLost,
    Bandwidth,
    DeliveryState,
    LinkBandwidth,
    PieceDelivery,
)

PEER = b"p" * 32
TO = Contact(PeerId(PEER), Address("h", 1))
S = DeliveryState


def delivery() -> PieceDelivery:
    return PieceDelivery(PEER, 10.0, piece_s=20.0, view_s=5.0)


def test_a_piece_goes_where_a_view_says():
    piece = delivery()
    piece.located(None)
    assert (piece.state, piece.next_deadline_s()) == (S.SEEKING, 15.0)

    piece.located(TO)
    assert (piece.state, piece.to, piece.next_deadline_s()) == (S.SENDING, TO, 30.0)
    piece.sent()
    assert (piece.state, piece.failure) == (S.SENT, None)


def test_a_receiver_that_no_view_names_is_given_up_by_name():
    piece = delivery()
    piece.on_deadline(14.9)
    assert piece.failure is None

    piece.on_deadline(15.0)

    assert str(piece.failure) == f"averaging with {PeerId(PEER).short} failed: no view names it"


def test_a_busy_receiver_is_asked_again_when_it_said():
    piece = delivery()
    piece.located(TO)
    piece.failed(Busy("full", 0.25), 11.0)
    piece.located(TO)
    assert (piece.state, piece.next_deadline_s()) == (S.WAITING, 11.25)

    piece.on_deadline(11.2)
    assert piece.state is S.WAITING
    piece.on_deadline(11.25)

    assert piece.state is S.SENDING


def test_a_receiver_that_says_never_is_asked_all_the_same():
    piece = delivery()
    piece.located(TO)
    piece.failed(Busy("full", 1e6), 11.0)

    assert piece.next_deadline_s() == 11.0 + BUSY_MAX_S


def test_a_receiver_that_stays_busy_is_given_up():
    piece = delivery()
    piece.located(TO)
    piece.failed(Busy("full", 0.5), 29.8)
    assert piece.next_deadline_s() == 30.0

    piece.on_deadline(30.0)

    assert "no memory granted within 20 s" in str(piece.failure)


def test_a_piece_that_is_being_sent_is_cut_off_at_the_end_of_its_time():
    piece = delivery()
    piece.located(TO)

    piece.on_deadline(29.0)
    assert piece.state is S.SENDING
    piece.on_deadline(30.0)
    assert piece.state is S.FAILED


def test_after_a_lost_link_another_is_tried_once():
    piece = delivery()
    piece.located(TO)
    piece.failed(LinkLost("replaced"), 12.0)
    assert (piece.state, piece.failure) == (S.SENDING, None)

    piece.failed(LinkLost("gone"), 12.0)

    assert (piece.state, str(piece.failure)[-4:]) == (S.FAILED, "gone")


@pytest.mark.parametrize(("error", "why"), [(DialFailed("gone"), "gone"), (Late(), "Late")])
def test_any_other_failure_is_the_end(error, why):
    piece = delivery()
    piece.located(TO)
    piece.failed(error, 12.0)

    assert (piece.state, str(piece.failure)[-len(why) :]) == (S.FAILED, why)


@pytest.mark.parametrize(("error", "lost"), [(DialFailed("gone"), True), (Refused("no"), False)])
def test_a_road_that_carries_nothing_is_told_apart_from_a_peer_that_says_no(error, lost):
    piece = delivery()
    piece.located(TO)
    piece.failed(error, 12.0)

    assert isinstance(piece.failure, AveragingRoadLost) is lost
    assert not lost or piece.failure.peer == piece.peer


@given(st.lists(st.floats(0.0, 1e9), max_size=60))
def test_every_piece_is_over_in_its_time_however_busy_its_receiver(pauses):
    piece, now_s = delivery(), 10.0
    piece.located(TO)
    for pause_s in pauses:
        if piece.state is S.SENDING:
            piece.failed(Busy("full", pause_s), now_s)
        assert piece.next_deadline_s() <= 30.0
        now_s = max(now_s, piece.next_deadline_s())
        piece.on_deadline(now_s)
        if piece.state is S.FAILED:
            break

    assert now_s <= 30.0


A, B = b"a" * 32, b"b" * 32


def test_the_peers_rates_are_added_because_they_share_the_link():
    both = Bandwidth()
    both.begin(A, 10.0)
    both.begin(B, 10.0)
    both.end(A, 100, 12.0)
    both.end(B, 300, 14.0)

    assert both.bytes_per_s == 50 + 75


def test_pieces_side_by_side_take_their_time_once():
    one = Bandwidth()
    one.begin(A, 0.0)
    one.begin(A, 1.0)
    one.end(A, 100, 3.0)
    one.end(A, 100, 4.0)

    assert one.bytes_per_s == pytest.approx(200 / 4)


def test_the_time_between_two_pieces_does_not_count():
    one = Bandwidth()
    one.begin(A, 0.0)
    one.end(A, 100, 1.0)
    one.begin(A, 50.0)
    one.end(A, 100, 51.0)

    assert one.bytes_per_s == 100


def test_what_took_no_time_or_is_not_over_is_not_measured():
    one = Bandwidth()
    one.begin(A, 0.0)
    one.end(A, 1_000_000, MEASURED_S / 2)
    one.begin(B, 0.0)

    assert one.bytes_per_s == 0.0


def test_of_both_ways_the_slower_counts():
    links = LinkBandwidth()
    for one, took_s in ((links.sent, 1.0), (links.received, 4.0)):
        one.begin(A, 0.0)
        one.end(A, 100, took_s)

    assert links.bytes_per_s == pytest.approx(25.0)
