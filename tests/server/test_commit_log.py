"""Which weights a server holds, and what a commit means for them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.allreduce.base import AveragedGradient
from p2pswarm.allreduce.round import RoundId
from p2pswarm.errors import BadMessage, NotServing
from p2pswarm.server.commit_log import (
    CommitDecision,
    CommitLog,
    FirstWeights,
    ReducedGradient,
)
from p2pswarm.swarm.messages.step import Commit, Reduce

RUN = b"r" * 16
OUTCOME = AveragedGradient(b"d", 1.0)


def reduce(step, generation=1):
    return Reduce(RUN, step, generation, 5, b"", (), ())


def commit(step, generation=1):
    return Commit(RUN, step, generation, 5, 1.0, 0.1)


def reduced(step, generation=1):
    round_ = RoundId(step, generation)
    return ReducedGradient(round_, f"sums of {round_}", OUTCOME)


def average(log, step, generation=1, *, fails=False):
    """A whole reduction, from its order to its end."""
    log.reduction_begun(reduce(step, generation))
    result = None if fails else reduced(step, generation)
    log.reduction_over(RoundId(step, generation), result)


def newcomer(since=3, **limits):
    log = CommitLog(**limits)
    log.begin(since, keep=False)
    return log


def holder(version=3):
    log = newcomer(version)
    log.became(version, b"w%d" % version)
    return log


def test_the_first_weights_of_a_run_are_drawn():
    assert CommitLog().begin(0, keep=False) is FirstWeights.DRAWN


def test_weights_of_the_trainers_version_are_kept():
    log = holder(3)

    assert log.begin(3, keep=True) is FirstWeights.KEPT
    assert (log.version, log.digest) == (3, b"w3")


def test_weights_of_another_version_cannot_be_kept():
    with pytest.raises(NotServing, match="version 3, not 4"):
        holder(3).begin(4, keep=True)


def test_a_new_session_forgets_weights_that_are_too_old():
    log = holder(3)

    assert log.begin(5, keep=False) is FirstWeights.FETCHED
    assert log.version is None
    assert log.needed == 5


def test_a_commit_applies_its_reduction_once():
    log = holder(3)
    average(log, 3)

    assert log.committed(commit(3)) is CommitDecision.APPLY
    assert log.take() == "sums of step 3, generation 1"
    log.became(4, b"w4")

    with pytest.raises(NotServing, match="a commit of step 3 to version 4"):
        log.committed(commit(3))


def test_a_commit_means_the_generation_it_names():
    log = holder(3)
    average(log, 3, generation=2)

    assert log.committed(commit(3, generation=1)) is CommitDecision.LOST
    assert log.committed(commit(3, generation=2)) is CommitDecision.APPLY


def test_a_commit_of_a_former_step_is_refused():
    log = holder(3)
    average(log, 2)

    with pytest.raises(NotServing, match="a commit of step 2 to version 3"):
        log.committed(commit(2))


@pytest.mark.parametrize("log", [newcomer(), holder()], ids=["newcomer", "holder"])
def test_a_commit_that_overtakes_its_reduction_waits_for_it(log):
    assert log.committed(commit(3)) is CommitDecision.WAIT
    log.reduction_begun(reduce(3))
    assert log.committed(commit(3)) is CommitDecision.WAIT

    log.reduction_over(RoundId(3, 1), reduced(3))

    assert log.committed(commit(3)) in (CommitDecision.APPLY, CommitDecision.KEPT)


def test_a_commit_that_overtakes_the_commit_before_it_waits():
    log = holder(3)
    average(log, 4)

    assert log.committed(commit(4)) is CommitDecision.WAIT
    log.became(4, b"w4")

    assert log.committed(commit(4)) is CommitDecision.APPLY


def test_a_snapshot_is_followed_by_the_commits_since():
    log = newcomer(3)
    for step in (3, 4, 5):
        average(log, step)
        assert log.committed(commit(step)) is CommitDecision.KEPT

    following = log.follow(4)

    assert [kept.order.step for kept in following] == [4, 5]
    assert [kept.sums for kept in following] == [
        "sums of step 4, generation 1",
        "sums of step 5, generation 1",
    ]


def test_a_newcomer_that_missed_a_reduction_needs_a_later_snapshot():
    log = newcomer(3)
    average(log, 3)
    log.committed(commit(3))
    average(log, 4, fails=True)

    assert log.committed(commit(4)) is CommitDecision.MISSED

    assert log.needed == 5
    assert log.follow(4) is None
    assert log.follow(5) == []


def test_a_newcomer_that_lost_patience_is_not_held_up_by_the_reduction():
    log = newcomer(3)
    log.reduction_begun(reduce(3))

    assert log.committed(commit(3), patient=False) is CommitDecision.MISSED

    assert not log.must_commit_before(4)


def test_what_a_missed_commit_leaves_of_a_later_step_stays():
    log = newcomer(3)
    average(log, 3, fails=True)
    average(log, 4)
    log.reduction_begun(reduce(5))

    assert log.committed(commit(3)) is CommitDecision.MISSED

    assert log.committed(commit(4)) is CommitDecision.KEPT
    assert log.must_commit_before(6)


def test_a_reduction_that_is_too_late_for_its_commit_is_dropped():
    log = newcomer(3)
    average(log, 3)
    average(log, 4, fails=True)

    assert log.committed(commit(4)) is CommitDecision.MISSED

    assert not log.must_commit_before(9)


def test_weights_cannot_follow_a_commit_whose_reduction_does_not_come():
    late, ahead = holder(3), holder(3)
    late.reduction_begun(reduce(3))
    average(ahead, 4)

    assert late.committed(commit(3), patient=False) is CommitDecision.LOST
    assert ahead.committed(commit(4), patient=False) is CommitDecision.LOST


def test_a_backlog_beyond_the_limit_is_given_up_for_a_later_snapshot():
    log = newcomer(3, backlog_max=2)
    for step in (3, 4):
        average(log, step)
        assert log.committed(commit(step)) is CommitDecision.KEPT
    average(log, 5)

    assert log.committed(commit(5)) is CommitDecision.MISSED
    assert log.follow(6) == []


def test_commits_that_do_not_follow_the_snapshot_are_an_error():
    log = newcomer(3)
    average(log, 5)
    log.committed(commit(5))

    with pytest.raises(BadMessage, match="weights of version 3, commits from 5 on"):
        log.follow(3)


def test_a_reduction_waits_for_the_commit_of_the_step_before():
    log = newcomer(3)
    assert not log.must_commit_before(3)
    log.reduction_begun(reduce(3))
    assert not log.must_commit_before(3)
    assert log.must_commit_before(4)

    log.reduction_over(RoundId(3, 1), reduced(3))
    assert log.must_commit_before(4)
    log.committed(commit(3))

    assert not log.must_commit_before(4)


def test_the_end_of_an_overtaken_reduction_leaves_the_newer_one():
    log = newcomer(3)
    log.reduction_begun(reduce(3, 1))
    log.reduction_begun(reduce(3, 2))
    log.reduction_over(RoundId(3, 1), None)

    assert log.must_commit_before(4)
    assert log.committed(commit(3, 2)) is CommitDecision.WAIT


@given(
    st.integers(0, 5),
    st.lists(st.sampled_from(["whole", "late", "lost"]), min_size=1, max_size=8),
    st.integers(0, 8),
)
def test_a_newcomer_applies_every_commit_since_its_snapshot_once_and_in_order(
    since, steps, donors_lead
):
    """Whatever it misses on the way: the weights it ends with are those of the stage."""
    log = newcomer(since)
    for step, fate in enumerate(steps, since):
        if fate == "late":
            assert log.committed(commit(step)) is CommitDecision.WAIT
        average(log, step, fails=fate == "lost")
        decision = log.committed(commit(step))
        assert decision is (CommitDecision.MISSED if fate == "lost" else CommitDecision.KEPT)

    version = min(since + donors_lead, since + len(steps))
    following = log.follow(version)

    missed = [step for step, fate in enumerate(steps, since) if fate == "lost"]
    if following is None:
        assert version <= max(missed)
    else:
        assert all(step < version for step in missed)
        wanted = list(range(version, since + len(steps)))
        assert [kept.order.step for kept in following] == wanted


def test_weights_that_were_not_changed_to_the_end_are_of_no_version():
    log = holder(3)

    with log.changing():
        log.became(4, b"w4")
    assert log.version == 4

    with pytest.raises(BadMessage), log.changing():
        raise BadMessage("of the weights")
    assert log.version is None


def test_an_old_reduction_that_ends_late_does_not_bring_back_what_is_over():
    log = newcomer(3)
    average(log, 4, fails=True)

    log.reduction_over(RoundId(3, 1), None)

    assert log.committed(commit(4)) is CommitDecision.MISSED


def test_a_new_session_forgets_the_reductions_and_commits_of_the_one_before():
    log = newcomer(3)
    average(log, 3)
    log.committed(commit(3))
    average(log, 4)

    log.begin(3, keep=False)

    assert not log.must_commit_before(9)
    assert log.committed(commit(4)) is CommitDecision.WAIT
    assert log.follow(3) == []


def test_a_reduction_that_a_snapshot_already_holds_delays_no_later_step():
    log = newcomer(since=3)
    average(log, 3)

    log.became(4, b"a snapshot taken after the commit of step 3")

    assert not log.must_commit_before(4)
