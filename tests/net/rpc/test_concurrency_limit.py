"""How many handlers may run: one peer cannot take all places, and nobody is counted for ever."""

import pytest

from p2pswarm.base.errors import Busy
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.concurrency_limit import ConcurrencyLimit, HandlerLimits

ALICE, BOB = PeerId(b"a" * 32), PeerId(b"b" * 32)


def test_a_limit_stops_one_peer_and_lets_another_in() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=3))
    limit.enter(ALICE)
    limit.enter(ALICE)

    with pytest.raises(Busy, match="2 calls of yours"):
        limit.enter(ALICE)
    limit.enter(BOB)
    assert limit.count == 3


def test_a_limit_stops_all_at_its_total() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=1))
    limit.enter(ALICE)

    with pytest.raises(Busy, match="1 in all"):
        limit.enter(BOB)


def test_who_leaves_makes_room_and_is_forgotten() -> None:
    limit = ConcurrencyLimit(HandlerLimits(per_peer=2, total=2))
    limit.enter(ALICE)
    limit.enter(ALICE)
    limit.leave(ALICE)
    limit.enter(BOB)

    limit.leave(ALICE)
    limit.leave(BOB)

    assert limit.count == 0


def entered(limit: ConcurrencyLimit, network: str, first: int) -> int:
    """How many handlers the ids of one network get, with as many ids as they like."""
    for n in range(first, first + 5000):
        try:
            limit.enter(PeerId(n.to_bytes(32)), network)
        except Busy:
            return n - first
    return 5000


def test_many_ids_of_one_network_leave_half_of_all_to_others():
    limit = ConcurrencyLimit(HandlerLimits())

    crowd = entered(limit, "192.0.2.0/24", 0)

    assert crowd == HandlerLimits().total // 2 + 1
    assert entered(limit, "198.51.100.0/24", 10_000) > 1000


def test_beside_three_greedy_networks_a_peer_has_all_that_it_may():
    limit = ConcurrencyLimit(HandlerLimits())
    for n in range(3):
        entered(limit, f"10.{n}.0.0/24", n * 10_000)

    for _ in range(HandlerLimits().per_peer):
        limit.enter(ALICE, "198.51.100.0/24")


def test_a_network_whose_handlers_have_ended_is_forgotten():
    limit = ConcurrencyLimit(HandlerLimits(total=2))
    peer = PeerId(b"p" * 32)
    for _ in range(5):
        limit.enter(peer, "192.0.2.0/24")
        limit.enter(peer, "192.0.2.0/24")
        limit.leave(peer, "192.0.2.0/24")
        limit.leave(peer, "192.0.2.0/24")

    assert limit.count == 0
