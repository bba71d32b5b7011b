"""Which bulk connections a link wants, and which may join."""

from p2pswarm.transport.bulk.bulk_wishes import AGAIN_S, NUMBERS_MAX, SIDE, BulkWishes
from p2pswarm.transport.config import TransportConfig


def wishes(*, dialled: bool, **settings) -> BulkWishes:
    return BulkWishes(TransportConfig(**settings), dialled=dialled)


def test_each_number_joins_once_and_no_more_than_the_most():
    held = wishes(dialled=False, bulk_connections_max=2)

    assert [held.claim(number) for number in (7, 7, 9, 11)] == [True, False, True, False]
    held.lost(1.0)
    assert [held.claim(number) for number in (7, 11)] == [False, True]
    held.unclaim()
    assert held.live == 1


def test_a_number_of_our_own_side_is_refused():
    """Our own join, sent back to us, joins nothing."""
    ours, theirs = wishes(dialled=True), wishes(dialled=False)

    assert not ours.claim(ours.take_number())
    assert not theirs.claim(theirs.take_number())
    assert theirs.claim(ours.take_number())
    assert ours.claim(theirs.take_number())
    assert theirs.take_number() >= SIDE


def test_a_number_from_long_ago_is_refused_and_few_are_remembered():
    held = wishes(dialled=False)
    for number in range(3 * NUMBERS_MAX):
        if number != 5:
            assert held.claim(number)
            held.unclaim()

    assert not held.claim(5)
    assert len(held._numbers) <= NUMBERS_MAX


def test_what_ended_is_missing_after_a_pause():
    held = wishes(dialled=True, bulk_connections=2, bulk_connections_far=2)
    assert held.want(0.0, 0.0) == 2
    for now_s in (1.0, 1.1):
        held.joined(held.take_number(), now_s)

    held.lost(1.2)

    assert held.again_at_s == 1.1 + AGAIN_S
    assert held.missing() == 1
    assert held.again_at_s is None
    assert held.missing() == 1


def test_a_new_path_begins_without_any():
    held = wishes(dialled=True)
    held.want(0.0, 0.0)
    held.joined(held.take_number(), 1.0)
    held.lost(5.0)

    held.path_changed()

    assert held.wanted == 0
    assert held.again_at_s is held.by_s is None


def test_a_connection_that_the_peer_has_ended_does_not_join_any_more():
    """Its answer may still be on the way, with chunks behind it that are sent again elsewhere."""
    ours, theirs = wishes(dialled=True), wishes(dialled=False)
    number = ours.take_number()
    assert ours.may_join(number)

    assert ours.given_up(number)

    assert not ours.may_join(number)
    assert not ours.given_up(number + 1), "it was never dialled"
    assert not ours.given_up(SIDE), "it is the peer's to tell"
    assert not theirs.given_up(number)
    assert theirs.claim(number)
    assert theirs.may_join(number)


def test_while_another_connection_is_on_its_way_there_is_hope():
    held = wishes(dialled=True)
    first, second = held.take_number(), held.take_number()

    held.given_up(first)
    assert not held.hopeless
    held.given_up(second)

    assert held.hopeless
