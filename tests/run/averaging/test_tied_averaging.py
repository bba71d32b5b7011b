"""The tensor of both ends of a model: who averages it, and what its digest covers."""

import pytest

from p2pswarm.net.wire.message import decode, encode
from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.stage_averaging import joined, tied_order
from p2pswarm.run.messages.step import Reduce, TiedGroup

A, B, C, D = (bytes([n]) * 32 for n in range(4))
TIED = TiedGroup((A, B, C), (D,), (1, 2, 3))
ORDER = Reduce(b"r" * 16, 7, 2, 1, b"", (A, B), (), (1, 1), tied=TIED)


def test_the_second_averaging_is_of_the_members_of_both_ends():
    second = tied_order(ORDER, TIED)

    assert (second.group, second.observers, second.shares) == ((A, B, C), (D,), (1, 2, 3))
    assert (second.step, second.generation, second.tied) == (7, 2, None)


def test_an_order_says_with_whom_its_receiver_averages_in_all():
    assert ORDER.partners == (A, B, C)
    assert tied_order(ORDER, TIED).partners == (A, B, C)
    assert Reduce(b"r" * 16, 7, 2, 1, b"", (A, B), ()).partners == (A, B)


@pytest.mark.parametrize("shares", [(1, 2), (0, 0, 0)])
def test_shares_that_do_not_fit_both_ends_are_refused(shares):
    with pytest.raises(ValueError, match="for 3 members"):
        TiedGroup((A, B, C), (), shares)


def test_an_order_for_the_largest_stages_fits_a_message():
    many = tuple(n.to_bytes(32) for n in range(256))
    tied = TiedGroup(many, many, (1 << 20,) * 256)
    largest = Reduce(b"r" * 16, 7, 2, 1, bytes(8192), many[:128], many[:128], tied=tied)

    assert decode(encode(largest)) == largest


@pytest.mark.parametrize(("rest", "tied"), [(b"x", b"b"), (b"a", b"x")])
def test_the_digest_is_of_both_and_the_norm_is_not(rest, tied):
    both = joined(AveragedGradient(b"a", 1.0), AveragedGradient(b"b", 2.0), 15.0)
    other = joined(AveragedGradient(rest, 1.0), AveragedGradient(tied, 2.0))

    assert (both.squared_norm, both.bytes_per_s) == (1.0, 15.0)
    assert both.tied == AveragedGradient(b"b", 2.0)
    assert both.digest != other.digest
