"""How long each server may take to answer: what it learns from, and what it forgets."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.trainer.members.answer_limits import AnswerLimits

ANN, BOB, CAT = (bytes([name]) * 32 for name in b"abc")


def test_all_have_the_usual_limit_until_one_is_too_slow():
    limits = AnswerLimits(10.0, 60.0)

    limits.on_timeout(ANN)

    assert limits.limit_s(ANN) == 20.0
    assert limits.limit_s(BOB) == 10.0


def test_who_was_slow_but_in_time_keeps_twice_its_time_and_who_is_quick_has_the_usual():
    limits = AnswerLimits(10.0, 60.0)

    limits.on_answer(ANN, 8.0)
    assert limits.limit_s(ANN) == 16.0

    limits.on_answer(ANN, 0.1)
    assert limits.limit_s(ANN) == 10.0


def test_those_that_were_slow_the_longest_ago_are_forgotten_first():
    limits = AnswerLimits(10.0, 60.0, peers_max=2)
    for peer in (ANN, BOB, ANN, CAT):
        limits.on_timeout(peer)

    assert [limits.limit_s(peer) for peer in (ANN, BOB, CAT)] == [40.0, 10.0, 20.0]


@given(st.floats(0.0, 59.0))
def test_whoever_needs_less_than_the_most_is_let_finish_after_some_tries(takes_s):
    limits = AnswerLimits(10.0, 60.0)
    for _ in range(3):
        if limits.limit_s(ANN) <= takes_s:
            limits.on_timeout(ANN)

    assert takes_s < limits.limit_s(ANN) <= 60.0
