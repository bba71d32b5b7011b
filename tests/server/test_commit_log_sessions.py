"""What a server holds from one session to the next."""

import pytest
from server.commits import average, commit, holder, newcomer

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.run.chain.record import first_number
from p2pswarm.run.messages.membership import REDUCTIONS_MAX, HeldReduction
from p2pswarm.server.commit_log import (
    ClosedSum,
    CommitDecision,
    CommitLog,
    FirstWeights,
    NamedWeights,
)


def test_the_first_weights_of_a_run_are_drawn():
    assert CommitLog().begin(0, keep=False) is FirstWeights.DRAWN


def test_weights_of_the_trainers_version_are_kept():
    log = holder(3)

    assert log.begin(3, keep=True) is FirstWeights.KEPT
    assert (log.version, log.digest) == (3, b"w3")


def test_weights_of_another_version_cannot_be_kept():
    with pytest.raises(NotServing, match="version 3, not 4"):
        holder(3).begin(4, keep=True)


def test_weights_that_are_too_old_are_kept_until_a_piece_takes_their_place():
    log = holder(3)
    average(log, 3)

    assert log.begin(5, keep=False) is FirstWeights.FETCHED
    assert (log.version, log.needed) == (None, 5)
    assert log.held.reductions == (HeldReduction(3, 1, b"d"),)
    average(log, 5)
    assert log.held.reductions == (HeldReduction(3, 1, b"d"),)

    log.overwritten()
    assert (log.held, log.version, log.digest) == (None, None, b"")
    log.became(6)

    assert (log.version, log.held.reductions) == (6, ())


def test_weights_one_commit_behind_go_on_if_its_reduction_is_here():
    """Their commit was decided and did not come: it is sent again."""
    log = holder(3)
    average(log, 3, generation=7)
    assert log.held.reductions == (HeldReduction(3, 7, b"d"),)

    assert log.begin(4, keep=True) is FirstWeights.KEPT

    assert log.version == 3
    assert log.must_commit_before(4)
    assert log.committed(commit(3, 8)) is CommitDecision.WAIT  # its reduction may still come
    assert log.committed(commit(3, 7)) is CommitDecision.APPLY
    assert log.take(commit(3, 7)) == "sums of step 3, generation 7"
    log.applied(commit(3, 7))
    assert not log.must_commit_before(4)


def test_weights_one_commit_behind_without_its_reduction_are_not_kept():
    log = holder(3)
    average(log, 3, fails=True)

    with pytest.raises(NotServing, match="version 3, not 4"):
        log.begin(4, keep=True)
    assert log.version == 3


def test_weights_two_commits_behind_are_not_kept():
    log = holder(3)
    average(log, 3)

    with pytest.raises(NotServing, match="version 3, not 5"):
        log.begin(5, keep=True)


def test_nothing_is_kept_where_nothing_is():
    with pytest.raises(NotServing, match="version None, not 3"):
        CommitLog().begin(3, keep=True)


def test_a_reduction_outlives_several_sessions_until_a_later_generation():
    log = holder(3)
    average(log, 3, generation=1)
    for _ in range(3):
        log.begin(3, keep=True)
    assert log.held.reductions == (HeldReduction(3, 1, b"d"),)

    average(log, 3, generation=2, fails=True)
    assert log.held.reductions[-1].generation == 1
    average(log, 3, generation=3)

    assert log.held.reductions[-1].generation == 3
    assert log.committed(commit(3, 1), patient=False) is CommitDecision.LOST


def test_drawing_takes_the_place_of_what_was_here():
    log = holder(3)
    log.begin(0, keep=False)

    assert log.held is None


def test_weights_that_were_not_changed_to_the_end_are_of_no_version():
    log = holder(3)

    with log.changing():
        log.applied(commit(3))
    assert log.version == 4

    with pytest.raises(BadMessage), log.changing():
        raise BadMessage("of the weights")
    assert (log.version, log.held, log.digest) == (None, None, b"")


def test_kept_weights_that_have_changed_by_themselves_are_found_out():
    log = holder(3)
    log.begin(3, keep=True)

    log.unchanged(b"w3")
    with pytest.raises(NotServing, match="changed by themselves"):
        log.unchanged(b"another")
    assert log.held is None


def test_after_a_change_that_failed_the_weights_are_here_still_if_their_digest_is():
    log = holder(3)
    before = log.held
    with pytest.raises(BadMessage), log.changing():
        raise BadMessage("of the weights")

    log.untouched(before, b"another")
    assert log.held is None
    log.untouched(before, b"w3")
    assert log.held is before


def test_a_new_session_forgets_the_reductions_and_commits_of_the_one_before():
    log = newcomer(3)
    average(log, 3)
    log.committed(commit(3))
    average(log, 4)

    log.begin(3, keep=False)

    assert not log.must_commit_before(9)
    assert log.committed(commit(4)) is CommitDecision.WAIT
    assert log.needed == 3


def test_weights_of_another_era_are_forgotten_with_all_that_was_made_of_them():
    log = holder(3)
    average(log, 3)
    log.committed(commit(3))
    log.applied(commit(3))
    log.hashed(b"w4")

    log.other_era(keep=False)

    assert (log.held, log.version, log.digest) == (None, None, b"")
    assert log.begin(3, keep=False) is FirstWeights.FETCHED
    log.became(3)
    average(log, 3, 9)
    assert log.committed(commit(3, 9)) is CommitDecision.APPLY


def test_weights_that_the_run_has_gone_back_to_stay_and_the_reduction_after_them_goes():
    log = holder(3)
    average(log, 3)

    log.other_era(keep=True)

    assert (log.version, log.digest, log.held.reductions) == (3, b"w3", ())
    assert log.begin(3, keep=True) is FirstWeights.KEPT
    average(log, 3, 9)
    assert log.committed(commit(3, 9)) is CommitDecision.APPLY


LEFT = ClosedSum(5, 3, frozenset({24, 26}))


def test_the_sum_that_a_session_leaves_is_kept_once():
    log = holder(3)
    log.session_over(LEFT)
    assert log.held.sum == LEFT

    assert log.keep_sum(3) == LEFT
    log.begin(3, keep=True)

    assert log.held.sum is None
    with pytest.raises(NotServing, match="no sum of step 3"):
        log.keep_sum(3)


@pytest.mark.parametrize("left", [None, ClosedSum(5, 2, frozenset({16}))])
def test_a_sum_of_another_step_or_of_unknown_content_is_not_kept(left: ClosedSum | None):
    log = holder(3)
    log.session_over(left)

    assert log.held.sum is None
    with pytest.raises(NotServing, match="no sum of step 3"):
        log.keep_sum(3)


def test_a_sum_is_gone_with_its_commit():
    """The session ends while the optimizer works: that has emptied the sum."""
    log = holder(3)
    average(log, 3, generation=7)
    log.session_over(LEFT)
    assert log.committed(commit(3, 7)) is CommitDecision.APPLY
    log.take(commit(3, 7))
    log.applied(commit(3, 7))
    log.session_over(LEFT)

    assert log.held.sum is None


def test_a_sum_outlives_an_averaging_and_no_other_era():
    log = holder(3)
    log.session_over(LEFT)
    average(log, 3)
    log.hashed(b"w3")
    assert log.keep_sum(3) == LEFT

    log.other_era(keep=True)

    assert log.held.sum is None


def test_weights_that_are_not_hashed_yet_are_named_by_what_they_were_made_of():
    log = holder(3)
    average(log, 3, generation=7)
    reduction = (HeldReduction(3, 7, b"d"),)
    assert log.held.named == NamedWeights(3, b"w3", reduction)
    log.take(commit(3, 7))
    log.applied(commit(3, 7))

    assert log.held.version == 4
    assert log.held.named == NamedWeights(3, b"w3", reduction)
    log.hashed(b"w4")

    assert log.held.named == NamedWeights(4, b"w4", ())


def test_weights_with_a_sum_or_of_another_era_are_named_by_their_own_digest_alone():
    log = holder(3)
    average(log, 3)
    log.take(commit(3))
    log.applied(commit(3))
    log.session_over(ClosedSum(5, 4, frozenset({32})))
    assert log.held.named is None
    log.session_over(None)
    assert log.held.named is not None

    log.other_era(keep=True)

    assert log.held.named is None


def test_what_was_made_of_weights_that_nobody_had_hashed_has_no_name():
    log = holder(3)
    log.became(3)
    average(log, 3)
    log.take(commit(3))
    log.applied(commit(3))

    assert log.held.named is None


def test_the_last_reduction_of_each_term_stays_until_a_commit():
    """A leader may anchor the record of a coordinator that slept, after another averaged anew."""
    first, second = first_number(1) + 2, first_number(2) + 1
    log = holder(3)
    for generation in (first_number(1) + 1, first, second):
        average(log, 3, generation)

    assert [each.generation for each in log.held.reductions] == [first, second]
    log.begin(4, keep=True)
    assert log.committed(commit(3, first_number(1) + 1), patient=False) is CommitDecision.LOST
    assert log.committed(commit(3, first)) is CommitDecision.APPLY
    assert log.take(commit(3, first)) == f"sums of step 3, generation {first}"
    log.applied(commit(3, first))

    assert log.held.reductions == ()
    assert not log.must_commit_before(4)


def test_of_many_terms_the_latest_reductions_stay():
    log = holder(3)
    for term in range(1, REDUCTIONS_MAX + 3):
        average(log, 3, first_number(term))

    latest = [first_number(term) for term in range(3, REDUCTIONS_MAX + 3)]
    assert [each.generation for each in log.held.reductions] == latest
