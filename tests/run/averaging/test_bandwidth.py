"""What a member's links carry."""

import pytest

from p2pswarm.run.averaging.bandwidth import MEASURED_S, Bandwidth, BothWays

A, B = b"a" * 32, b"b" * 32


def test_the_peers_rates_are_added_because_they_share_the_link():
    both = Bandwidth()
    both.began(A, 10.0)
    both.began(B, 10.0)
    both.ended(A, 100, 12.0)
    both.ended(B, 300, 14.0)

    assert both.bytes_per_s == 50 + 75


def test_pieces_side_by_side_take_their_time_once():
    one = Bandwidth()
    one.began(A, 0.0)
    one.began(A, 1.0)
    one.ended(A, 100, 3.0)
    one.ended(A, 100, 4.0)

    assert one.bytes_per_s == pytest.approx(200 / 4)


def test_the_time_between_two_pieces_does_not_count():
    one = Bandwidth()
    one.began(A, 0.0)
    one.ended(A, 100, 1.0)
    one.began(A, 50.0)
    one.ended(A, 100, 51.0)

    assert one.bytes_per_s == 100


def test_what_took_no_time_or_is_not_over_is_not_measured():
    one = Bandwidth()
    one.began(A, 0.0)
    one.ended(A, 1_000_000, MEASURED_S / 2)
    one.began(B, 0.0)

    assert one.bytes_per_s == 0.0


def test_of_both_ways_the_slower_counts():
    links = BothWays()
    for one, took_s in ((links.sent, 1.0), (links.received, 4.0)):
        one.began(A, 0.0)
        one.ended(A, 100, took_s)

    assert links.bytes_per_s == pytest.approx(25.0)
