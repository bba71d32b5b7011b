"""How many handlers may run: one peer cannot take all places, and nobody is counted for ever."""

import pytest

from p2pswarm.errors import Busy
from p2pswarm.ids import PeerId
from p2pswarm.rpc.concurrency_limit import ConcurrencyLimit, HandlerLimits

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
