"""How long the sums of incarnations that are over are waited for."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.run.view import Incarnation
from p2pswarm.trainer.members.suspensions import (
    ANSWERED_S,
    REDO_SHARE,
    SUSPENDED_MAX_S,
    SUSPENDED_S,
    TIMES_MAX,
    Suspensions,
)

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)


def served(*stages: int):
    return stages.__contains__


def test_it_is_waited_for_as_long_as_nobody_else_serves_its_stage():
    suspensions = Suspensions()
    assert suspensions.begin(ANN, 3, silent=False)

    suspensions.watch(served(), 10.0)
    assert suspensions.next_deadline_s() is None
    assert suspensions.overdue(1000.0) == []

    suspensions.watch(served(3), 1000.0)
    assert suspensions.next_deadline_s() == 1000.0 + SUSPENDED_S
    assert suspensions.overdue(1000.0) == []
    assert suspensions.overdue(1000.0 + SUSPENDED_S) == [ANN]

    suspensions.watch(served(), 1000.5)
    suspensions.watch(served(3), 1000.6)
    assert suspensions.next_deadline_s() == 1000.6 + SUSPENDED_S


def test_one_that_answers_has_longer_and_one_that_was_silent_has_no_time():
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=False)
    suspensions.begin(BOB, 0, silent=True)
    suspensions.watch(served(0), 5.0)

    assert suspensions.overdue(5.0) == [BOB]
    suspensions.answered(ANN)
    suspensions.answered(Incarnation(ANN.peer, 7))
    assert suspensions.end(BOB) == 0
    assert suspensions.overdue(5.0 + ANSWERED_S - 0.1) == []
    assert suspensions.overdue(5.0 + ANSWERED_S) == [ANN]


@given(st.integers(1, 20))
def test_no_peer_is_suspended_more_often_than_that_in_one_step(tries: int):
    suspensions = Suspensions()

    def tried(number: int) -> bool:
        one = Incarnation(ANN.peer, number)
        begun = suspensions.begin(one, 0, silent=False)
        if begun:
            assert one in suspensions
            assert suspensions.of_peer(ANN.peer) == (one, 0)
            suspensions.end(one)
        return begun

    assert sum(map(tried, range(tries))) == min(tries, TIMES_MAX)
    suspensions.next_step()
    assert tried(99)


@given(st.floats(0.0, 100.0))
def test_it_is_waited_for_as_long_as_its_work_would_take_within_limits(redo_s: float):
    suspensions = Suspensions()
    suspensions.begin(ANN, 0, silent=False, redo_s=redo_s)
    suspensions.begin(BOB, 0, silent=True, redo_s=redo_s)
    suspensions.watch(served(0), 5.0)

    assert suspensions.overdue(5.0) == [BOB]
    suspensions.end(BOB)
    waits_s = suspensions.next_deadline_s() - 5.0
    assert waits_s + 1e-9 >= SUSPENDED_S
    assert waits_s - 1e-9 <= SUSPENDED_MAX_S
    assert waits_s >= min(REDO_SHARE * redo_s, SUSPENDED_MAX_S) - 1e-9
    suspensions.answered(ANN)
    assert suspensions.next_deadline_s() >= 5.0 + max(ANSWERED_S, waits_s) - 1e-9
