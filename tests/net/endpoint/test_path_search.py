"""When a link that lost its path tries again, and when it gives up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import DialFailed, LinkLost, NobodyThere, UnknownLink
from p2pswarm.base.ids import Address
from p2pswarm.net.endpoint.path_search import (
    CLIMB_S_MAX,
    HOST_REFUSES_S,
    PAUSE_S,
    PAUSE_S_MAX,
    PEER_COMES_S,
    PathClimb,
    PathSearch,
    better,
    was_refused,
)
from p2pswarm.net.link.path import DialledWay, Path, PathKind
from p2pswarm.net.os.sockets import SocketNet

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
    direct = DialledWay(SocketNet(), Address("192.0.2.1", 4001))
    relay = DialledWay(SocketNet(), Address("192.0.2.2", 4001, circuit=b"p" * 32))
    by_relay = Path(relay.kind, relay.to, relay)

    assert better([direct, relay], by_relay) == [direct]
    assert better([relay], by_relay) == []
    assert better([direct, relay], Path(direct.kind, direct.to, direct)) == []
    assert better([direct], Path(None, relay.to, None)) == better([direct], None) == []
