"""What wrong bytes cost: a path each, the link when there are too many; their ways come last."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.net.link.path import DialledCandidate
from p2pswarm.net.link.path_state import (
    CANDIDATES_MAX,
    LAST_S,
    PATHS_MAX,
    WITHIN_S,
    CorruptCandidates,
    PathState,
)
from p2pswarm.net.os.sockets import SocketNet

NET = SocketNet()
A, B, C = (DialledCandidate(NET, Address("192.0.2.1", port)) for port in (1, 2, 3))


def test_a_link_bears_so_many_paths_in_a_minute_and_no_more():
    state = PathState(dialled=True)

    verdicts = [bool(state.on_corruption("link", float(n))) for n in range(PATHS_MAX)]

    assert verdicts == [False] * (PATHS_MAX - 1) + [True]


def test_a_link_bears_any_number_of_paths_if_they_come_slowly():
    state = PathState(dialled=True)

    pause_s = (WITHIN_S + 0.1) / (PATHS_MAX - 1)
    assert not any(state.on_corruption("link", n * pause_s) for n in range(1000))
    assert state.altered == 1000


@given(st.lists(st.floats(0, 20), max_size=100))
def test_a_forger_has_fewer_tries_in_any_minute_than_would_end_the_link(pauses):
    """Whenever he comes, no minute has as many paths as end the link, unless it has ended."""
    state, now_s, tries = PathState(dialled=True), 0.0, []
    for pause_s in pauses:
        now_s += pause_s
        tries.append(now_s)
        ended = state.on_corruption("link", now_s) is not None
        recent = [at_s for at_s in tries if now_s - at_s < WITHIN_S]
        assert ended is (len(recent) >= PATHS_MAX)
        if ended:
            break


def test_the_way_of_a_path_that_altered_bytes_comes_last_for_some_minutes():
    marks = CorruptCandidates()
    for number, way in ((0, A), (1, B), (2, None)):
        marks.on_path(number, way)

    marks.on_corruption(0, 10.0)

    assert marks.in_order([A, B, C], 11.0) == [B, C, A]
    assert marks.sound([A, B, C], 11.0) == [B, C]
    assert marks.in_order([A, B, C], 10.0 + LAST_S) == [A, B, C]


def test_when_all_ways_alter_bytes_they_are_tried_in_their_order():
    marks = CorruptCandidates()
    for number, way in ((0, A), (1, B)):
        marks.on_path(number, way)
        marks.on_corruption(number, 0.0)

    assert marks.in_order([B, A], 1.0) == [B, A]
    assert marks.sound([B, A], 1.0) == []


def test_a_peer_that_blames_paths_which_we_did_not_choose_says_nothing():
    marks = CorruptCandidates()
    marks.on_path(4, A)
    for number in range(4):
        marks.on_corruption(number, 0.0)

    assert marks.in_order([A, B], 1.0) == [A, B]


def test_few_ways_are_remembered_whatever_a_peer_blames():
    marks = CorruptCandidates()
    for number in range(1000):
        marks.on_path(number, DialledCandidate(NET, Address("192.0.2.1", 1 + number)))
        marks.on_corruption(number, float(number))

    assert len(marks._taken) <= CANDIDATES_MAX
    assert len(marks._marked) <= CANDIDATES_MAX
