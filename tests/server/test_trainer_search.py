"""How long a server that is out of the run waits before it asks a trainer again."""

import pytest

from p2pswarm.server.trainer_search import (
    ANSWERS_S,
    ELECTION_S,
    KNOCK_FIRST_S,
    KNOCK_S,
    REJOIN_FIRST_S,
    REJOIN_MAX_S,
    SEEK_S,
    STEADY_S,
    JoinPauses,
)

REJOIN_S = 20.0


def failed(pauses, now_s, *, several=False, elsewhere=False):
    """The wait after a try that fails at once."""
    pauses.tried_s = now_s
    return pauses.next_s(now_s, met=False, several=several, elsewhere=elsewhere)


def lost(pauses, begun_s, now_s, *, several=False):
    """The wait after a session."""
    pauses.tried_s = begun_s
    pauses.in_run(now_s)
    return pauses.next_s(now_s, met=True, several=several, elsewhere=False)


def test_pauses_double_to_two_seconds():
    pauses = JoinPauses(1e9, 0.0)

    waits_s = [failed(pauses, 0.0) for _ in range(8)]

    assert waits_s[:3] == [REJOIN_FIRST_S, 2 * REJOIN_FIRST_S, 4 * REJOIN_FIRST_S]
    assert max(waits_s) == waits_s[-1] == REJOIN_MAX_S == 2.0


def test_a_long_session_makes_the_next_pause_short_again():
    pauses = JoinPauses(REJOIN_S, 0.0)
    failed(pauses, 0.0)
    failed(pauses, 1.0)

    assert lost(pauses, 2.0, 2.0 + STEADY_S) == 4 * REJOIN_FIRST_S
    assert lost(pauses, 2.0, 2.0 + STEADY_S + 0.1) == REJOIN_FIRST_S


def test_whom_to_ask_next_is_asked_at_once_and_costs_no_longer_pause():
    pauses = JoinPauses(REJOIN_S, 0.0)

    assert failed(pauses, 100.0, elsewhere=True) == 0.0
    assert failed(pauses, 1.0) == REJOIN_FIRST_S


@pytest.mark.parametrize(("several", "wait_s"), [(True, 0.0), (False, REJOIN_FIRST_S)])
def test_after_a_good_session_another_trainer_is_asked_at_once_if_there_is_one(several, wait_s):
    pauses = JoinPauses(REJOIN_S, 0.0)

    assert lost(pauses, 0.0, STEADY_S + 1.0, several=several) == wait_s


def test_who_is_thrown_out_again_and_again_pauses_though_there_are_several_trainers():
    pauses = JoinPauses(REJOIN_S, 0.0)

    waits_s = [lost(pauses, now_s, now_s + 1.0, several=True) for now_s in (0.0, 2.0, 4.0)]

    assert waits_s == [REJOIN_FIRST_S, 2 * REJOIN_FIRST_S, 4 * REJOIN_FIRST_S]


def test_while_another_trainer_may_be_taking_over_the_pauses_stay_short():
    pauses = JoinPauses(REJOIN_S, 0.0)
    pauses.in_run(100.0)

    waits_s = [failed(pauses, 100.0 + s, several=True) for s in range(int(ELECTION_S))]

    assert waits_s == [REJOIN_FIRST_S] * int(ELECTION_S)
    later_s = [failed(pauses, 100.0 + ELECTION_S + s, several=True) for s in range(2)]
    assert later_s == [REJOIN_FIRST_S, 2 * REJOIN_FIRST_S]


def test_a_trainer_that_is_gone_for_long_is_looked_for_seldom_until_it_is_back():
    pauses = JoinPauses(REJOIN_S, 0.0)
    pauses.in_run(50.0)
    assert not pauses.gone(50.0 + REJOIN_S - 0.1)

    assert pauses.gone(50.0 + REJOIN_S)
    assert [failed(pauses, 1000.0 + s, several=True) for s in (0.0, 86_400.0)] == [SEEK_S] * 2

    pauses.in_run(100_000.0)
    assert not pauses.gone(100_000.0)
    assert pauses.gone_s(100_001.0) == 1.0


def test_a_trainer_that_answers_again_is_asked_often_for_as_long_as_one_that_was_just_lost():
    """It was away, and leads once a majority of the voters has found it."""
    pauses = JoinPauses(REJOIN_S, 0.0)
    pauses.in_run(50.0)
    assert failed(pauses, 1000.0, several=True) == SEEK_S

    pauses.on_answer(1010.0)

    assert failed(pauses, 1010.0, several=True) < SEEK_S
    pauses.on_answer(1010.0 + REJOIN_S)
    assert failed(pauses, 1010.0 + REJOIN_S, several=True) == SEEK_S


def test_a_trainer_that_does_not_answer_is_soon_given_up_for_one_that_did():
    pauses = JoinPauses(REJOIN_S, 0.0)
    assert pauses.knock_s(others=False) is None

    pauses.on_answer(1010.0)
    pauses.tried_s = 1010.0

    assert pauses.knock_s(others=False) == KNOCK_S
    pauses.tried_s = 1010.0 + 2 * ANSWERS_S
    assert pauses.knock_s(others=False) is None


def test_who_was_just_in_the_run_tries_to_reach_a_trainer_anew_soon():
    pauses = JoinPauses(REJOIN_S, 0.0)
    assert pauses.knock_s(others=False) is None  # its first dial may take its time
    assert pauses.knock_s(others=True) == KNOCK_S

    lost(pauses, 0.0, 1.0)
    assert [pauses.knock_s(others=False) for _ in range(4)] == [1.0, 2.0, 4.0, None]

    lost(pauses, 2.0, 3.0)
    assert [pauses.knock_s(others=True) for _ in range(3)] == [KNOCK_FIRST_S, KNOCK_S, KNOCK_S]
