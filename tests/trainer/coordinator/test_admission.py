"""After the decision: who is held to it, and who may skip it."""

from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.coordinator.admission import COMMIT_MAX_S, COMMIT_S, SKIPS_MAX, Commits

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)


def test_only_who_added_to_the_gradient_is_held_to_its_commit():
    commits = Commits()
    commits.on_decision(7, [ANN], 1.0)

    assert commits.on_failure(ANN, 7)
    assert not commits.on_failure(BOB, 7)


def test_an_answer_counts_for_its_own_step():
    commits = Commits()
    commits.on_decision(7, [ANN], 1.0)
    commits.on_decision(8, [ANN], 2.0)

    assert commits.on_answer(ANN, 7, 1.0)
    assert not commits.on_answer(ANN, 7, 1.0)
    assert commits.overdue(1.5 + COMMIT_S) == []
    assert commits.next_deadline_s() == 2.0 + COMMIT_S


def test_who_does_not_answer_is_overdue():
    commits = Commits()
    commits.on_decision(7, [ANN, BOB], 1.0)
    commits.on_answer(ANN, 7, 1.0)

    assert commits.overdue(0.9 + COMMIT_S) == []
    assert commits.overdue(1.0 + COMMIT_S) == [BOB]


def test_an_incarnation_that_ended_owes_nothing():
    commits = Commits()
    commits.on_decision(7, [ANN, BOB], 1.0)
    commits.on_end(BOB)
    commits.on_answer(ANN, 7, 1.0)

    assert commits.next_deadline_s() is None
    assert commits.overdue(1e9) == []


def test_a_newcomer_may_skip_commits_but_not_for_ever():
    commits = Commits()

    assert [commits.on_failure(BOB, step) for step in range(SKIPS_MAX)] == [False] * (
        SKIPS_MAX - 1
    ) + [True]


def test_skips_before_a_newcomer_caught_up_or_kept_a_commit_are_forgotten():
    commits = Commits()
    for forget in (lambda: commits.on_catch_up(BOB), lambda: commits.on_answer(BOB, 1, 1.0)):
        for step in range(SKIPS_MAX - 1):
            assert not commits.on_failure(BOB, step)
        forget()

    assert not commits.on_failure(BOB, 9)


def test_who_was_too_slow_has_twice_as_long_the_next_time_up_to_a_limit():
    """An optimizer's step that takes longer than the usual limit would else cost each step."""
    commits, now_s, limit_s = Commits(), 0.0, COMMIT_S
    for step in range(10):
        commits.on_decision(step, [ANN], now_s)
        assert commits.overdue(now_s + limit_s - 0.1) == []
        now_s += limit_s
        assert commits.overdue(now_s) == [ANN]
        commits.on_end(ANN)
        limit_s = min(COMMIT_MAX_S, 2 * limit_s)

    assert limit_s == COMMIT_MAX_S


def test_a_limit_that_was_is_not_the_next_ones():
    commits = Commits()
    commits.on_decision(7, [ANN], 1.0)
    commits.on_answer(ANN, 7, 2.0)

    commits.on_decision(8, [ANN], 500.0)

    assert commits.next_deadline_s() == 500.0 + COMMIT_S
