"""After the decision: who is held to it, and who may skip it."""

from p2pswarm.swarm.view import Incarnation
from p2pswarm.trainer.commits import COMMIT_S, SKIPS_MAX, Commits

ANN, BOB = Incarnation(b"a" * 32, 1), Incarnation(b"b" * 32, 2)


def test_only_who_added_to_the_gradient_is_held_to_its_commit():
    commits = Commits()
    commits.decided(7, [ANN], 1.0)

    assert commits.failed(ANN, 7)
    assert not commits.failed(BOB, 7)


def test_an_answer_counts_for_its_own_step():
    commits = Commits()
    commits.decided(7, [ANN], 1.0)
    commits.decided(8, [ANN], 2.0)

    assert commits.answered(ANN, 7)
    assert not commits.answered(ANN, 7)
    assert commits.next_deadline_s() == 2.0 + COMMIT_S


def test_who_does_not_answer_is_overdue():
    commits = Commits()
    commits.decided(7, [ANN, BOB], 1.0)
    commits.answered(ANN, 7)

    assert commits.overdue(0.9 + COMMIT_S) == []
    assert commits.overdue(1.0 + COMMIT_S) == [BOB]


def test_an_incarnation_that_ended_owes_nothing():
    commits = Commits()
    commits.decided(7, [ANN, BOB], 1.0)
    commits.end(BOB)
    commits.answered(ANN, 7)

    assert commits.next_deadline_s() is None
    assert commits.overdue(1e9) == []


def test_a_newcomer_may_skip_commits_but_not_for_ever():
    commits = Commits()

    assert [commits.failed(BOB, step) for step in range(SKIPS_MAX)] == [False] * (SKIPS_MAX - 1) + [
        True
    ]


def test_skips_before_a_newcomer_caught_up_or_kept_a_commit_are_forgotten():
    commits = Commits()
    for forget in (lambda: commits.caught_up(BOB), lambda: commits.answered(BOB, 1)):
        for step in range(SKIPS_MAX - 1):
            assert not commits.failed(BOB, step)
        forget()

    assert not commits.failed(BOB, 9)
