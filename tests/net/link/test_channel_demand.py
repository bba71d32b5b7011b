"""Which bulk connections a link wants, and which may join."""

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.bulk.connection_count import BestCount
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.link.channel_demand import (
    AGAIN_S,
    NUMBERS_MAX,
    SIDE,
    ChannelDemand,
    goes_elsewhere,
)
from p2pswarm.net.link.events import BulkSpare, BulkWanted
from p2pswarm.net.link.path import Path, PathKind


def wishes(*, dialled: bool, **settings) -> ChannelDemand:
    return ChannelDemand(TransportConfig(**settings), dialled=dialled)


def test_each_number_joins_once_and_no_more_than_the_most():
    held = wishes(dialled=False, bulk_connections_max=2)

    assert [held.claim(number) for number in (7, 7, 9, 11)] == [True, False, True, False]
    held.on_loss(1.0)
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
        held.on_join(held.take_number(), now_s)

    held.on_loss(1.2)

    assert held.again_at_s == 1.1 + AGAIN_S
    assert held.missing() == 1
    assert held.again_at_s is None
    assert held.missing() == 1


def test_a_new_path_begins_without_any():
    held = wishes(dialled=True)
    held.want(0.0, 0.0)
    held.on_join(held.take_number(), 1.0)
    held.on_loss(5.0)

    held.on_path_change()

    assert held.wanted == 0
    assert held.again_at_s is held.by_s is None


def test_a_connection_that_the_peer_has_ended_does_not_join_any_more():
    """Its answer may still be on the way, with chunks behind it that are sent again elsewhere."""
    ours, theirs = wishes(dialled=True), wishes(dialled=False)
    number = ours.take_number()
    assert ours.may_join(number)

    assert ours.withdraw(number)

    assert not ours.may_join(number)
    assert not ours.withdraw(number + 1), "it was never dialled"
    assert not ours.withdraw(SIDE), "it is the peer's to tell"
    assert not theirs.withdraw(number)
    assert theirs.claim(number)
    assert theirs.may_join(number)


def test_of_a_punched_path_the_first_connection_alone_may_go_by_the_relay():
    relay = Address("192.0.2.1", 4000)
    circuit = relay.through(PeerId(b"p" * 32))
    punched, relayed = (Path(kind, relay, None) for kind in (PathKind.PUNCHED, PathKind.RELAYED))

    assert not goes_elsewhere(punched, circuit, 0)
    assert goes_elsewhere(punched, circuit, 1)
    assert not goes_elsewhere(punched, relay, 1)
    assert not goes_elsewhere(relayed, circuit, 1)


def test_what_carries_more_is_dialled_and_what_does_not_is_given_up():
    held, now_s, carried = wishes(dialled=True), 0.0, 0
    held.on_path(16, best := BestCount())
    for _ in range(held.want(0.1, now_s)):
        held.on_join(held.take_number(), now_s)
    news = []
    while now_s < 38.0:
        held.on_work(carried, now_s)
        now_s = held.measure_at_s
        carried += 1000 * min(held.live, 4)
        if (one := held.measure(carried, now_s, busy=True)) is None:
            continue
        news.append(one)
        for _ in range(one.connections):
            if isinstance(one, BulkWanted):
                held.on_join(held.take_number(), now_s)
            else:
                held.on_loss(now_s)

    assert news == [BulkWanted(2), BulkWanted(4), BulkSpare(4)]
    assert held.live == held.wanted == best.count == 4
    assert held.missing() == 0


def test_near_peers_keep_what_they_have():
    held = wishes(dialled=True)
    held.want(0.0001, 0.0)

    assert not held.on_work(0, 0.0)
    assert held.measure_at_s is None


def test_one_that_cannot_be_made_beside_others_is_not_asked_for_again_at_once():
    held = wishes(dialled=True)
    held.want(0.1, 0.0)
    held.on_join(held.take_number(), 1.0)

    held.on_failure(2.0)

    assert held.again_at_s is None
    assert held.wanted == 1


def test_while_another_connection_is_on_its_way_there_is_hope():
    held = wishes(dialled=True)
    first, second = held.take_number(), held.take_number()

    held.withdraw(first)
    assert not held.is_hopeless
    held.withdraw(second)

    assert held.is_hopeless
