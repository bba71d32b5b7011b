"""Tests of `server/commit_log.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from server.commits import average, commit, holder, make, newcomer, reduce, reduced

from p2pswarm.base.errors import NotServing
from p2pswarm.run.averaging.round import RoundId
from p2pswarm.run.messages.membership import HeldReduction
from p2pswarm.server.commit_log import SILENT_S, STEPS_KEPT, CommitDecision, ObserverPatience


@pytest.fixture
def patience():
    return ObserverPatience()


def test_a_reduction_that_is_not_decided_is_waited_for_without_end(patience):
    patience.piece_began(3)
    patience.piece_ended(3, now_s=1.0, came=True)

    assert patience.give_up_s(3) is None


def test_one_that_is_decided_and_of_which_nothing_comes_is_given_up(patience):
    patience.decided(3, now_s=10.0)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


def test_a_later_decision_tells_of_the_earlier_ones_as_well(patience):
    patience.decided(5, now_s=10.0)
    patience.decided(4, now_s=20.0)

    assert patience.give_up_s(3) == patience.give_up_s(4) == 10.0 + SILENT_S
    assert patience.give_up_s(6) is None


def test_a_piece_on_its_way_takes_as_long_as_it_takes(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(3)
    assert patience.give_up_s(3) is None

    patience.piece_ended(3, now_s=400.0, came=True)

    assert patience.give_up_s(3) == 400.0 + SILENT_S


def test_pieces_of_a_later_step_that_wait_for_their_order_say_nothing_of_this_one(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(4)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


def test_announcements_that_come_to_nothing_neither_lengthen_nor_shorten_the_wait(patience):
    patience.decided(3, now_s=10.0)
    patience.piece_began(3)
    patience.piece_ended(3, now_s=12.0, came=True)

    for step in (3, *range(1000, 1000 + 2 * STEPS_KEPT)):
        patience.piece_began(step)
        patience.piece_ended(step, now_s=14.0, came=False)

    assert patience.give_up_s(3) == 12.0 + SILENT_S


def test_the_same_decision_twice_gives_no_more_time(patience):
    patience.decided(3, now_s=10.0)
    patience.decided(3, now_s=14.0)

    assert patience.give_up_s(3) == 10.0 + SILENT_S


STEP = st.integers(0, 200)
INPUT = st.tuples(st.sampled_from(("began", "came", "failed", "decided")), STEP)


@given(st.lists(INPUT, max_size=300), STEP)
def test_whatever_comes_a_reduction_is_given_up_only_when_decided_silent_and_alone(inputs, step):
    patience, under_way, decided_s, heard_s = ObserverPatience(), {}, {}, {}

    for now_s, (kind, number) in enumerate(inputs):
        if kind == "began":
            patience.piece_began(number)
            under_way[number] = under_way.get(number, 0) + 1
        elif kind == "decided":
            patience.decided(number, now_s)
            decided_s.setdefault(number, now_s)
        elif under_way.get(number):
            patience.piece_ended(number, now_s, came=kind == "came")
            under_way[number] -= 1
            if kind == "came":
                heard_s[number] = now_s

    give_up_s = patience.give_up_s(step)
    if not any(one >= step for one in decided_s) or under_way.get(step):
        assert give_up_s is None
    elif len(decided_s) <= STEPS_KEPT and len(heard_s) <= STEPS_KEPT:
        first_s = min(at_s for one, at_s in decided_s.items() if one >= step)
        assert give_up_s == max(first_s, heard_s.get(step, 0.0)) + SILENT_S
    sizes = len(patience._heard_s), len(patience._decided_s)
    assert max(sizes) <= STEPS_KEPT
    assert len(patience._under_way) <= sum(under_way.values())


def test_a_commit_applies_its_reduction_once():
    log = holder(3)
    average(log, 3)

    assert log.committed(commit(3)) is CommitDecision.APPLY
    assert log.take(commit(3)) == "sums of step 3, generation 1"
    assert not log.holds(3)
    log.applied(commit(3))

    assert (log.version, log.digest) == (4, b"")
    log.hashed(b"w4")
    assert (log.version, log.digest) == (4, b"w4")
    assert log.committed(commit(3)) is CommitDecision.APPLIED
    assert log.holds(3)


def test_the_newest_version_is_one_that_only_its_commit_lacks():
    log = holder(3)
    assert (log.newest, newcomer().newest) == (3, None)
    average(log, 4)
    assert log.newest == 3

    average(log, 3)

    assert (log.version, log.newest) == (3, 4)


def test_a_reduction_that_comes_before_the_digest_is_held_with_it():
    log = holder(3)
    log.became(3)
    average(log, 3)

    log.hashed(b"w3")

    assert (log.held.digest, log.held.reductions) == (b"w3", (HeldReduction(3, 1, b"d"),))


def test_a_commit_that_is_sent_again_later_is_applied_already():
    log = holder(3)
    for step in (3, 4, 5):
        make(log, step)

    assert log.committed(commit(3)) is CommitDecision.APPLIED
    assert log.holds(3)
    assert log.version == 6


def test_a_commit_of_a_step_that_another_generation_made_is_refused():
    log = holder(3)
    make(log, 3, generation=2)

    with pytest.raises(NotServing, match="step 3 was made here from generation 2, not 1"):
        log.committed(commit(3, generation=1))
    assert (log.version, log.digest) == (4, b"w4")


def test_of_commits_beyond_the_limit_the_generation_is_forgotten():
    log = holder(3, made_max=2)
    for step in (3, 4, 5):
        make(log, step)

    assert log.committed(commit(3, generation=9)) is CommitDecision.APPLIED
    with pytest.raises(NotServing):
        log.committed(commit(4, generation=9))


def test_a_commit_that_the_pieces_already_hold_is_not_applied():
    log = holder(3)

    assert log.committed(commit(2)) is CommitDecision.APPLIED
    assert log.committed(commit(1)) is CommitDecision.APPLIED
    assert (log.holds(2), log.holds(3)) == (True, False)


def test_a_commit_means_the_generation_it_names():
    log = holder(3)
    average(log, 3, generation=2)

    assert log.committed(commit(3, generation=1)) is CommitDecision.LOST
    assert log.committed(commit(3, generation=2)) is CommitDecision.APPLY


@pytest.mark.parametrize("log", [newcomer(), holder()], ids=["newcomer", "holder"])
def test_a_commit_that_overtakes_its_reduction_waits_for_it(log):
    assert log.committed(commit(3)) is CommitDecision.WAIT
    log.reduction_begun(reduce(3))
    assert log.committed(commit(3)) is CommitDecision.WAIT

    log.reduction_over(RoundId(3, 1), reduced(3))

    assert log.committed(commit(3)) in (CommitDecision.APPLY, CommitDecision.FOLLOW)


def test_a_commit_that_overtakes_the_commit_before_it_waits():
    log = holder(3)
    average(log, 4)

    assert log.committed(commit(4)) is CommitDecision.WAIT
    log.applied(commit(3))

    assert log.committed(commit(4)) is CommitDecision.APPLY


def follow(log, order):
    """A commit that the pieces follow which are here; returns the sums that it applies."""
    assert log.committed(order) is CommitDecision.FOLLOW
    return log.take(order)


def test_the_pieces_that_are_here_follow_each_commit():
    log = newcomer(3)
    followed = []
    for step in (3, 4, 5):
        average(log, step)
        followed.append(follow(log, commit(step)))

    assert followed == [f"sums of step {step}, generation 1" for step in (3, 4, 5)]
    assert log.needed == 6
    log.became(6)
    assert log.version == 6


def test_a_newcomer_that_missed_a_reduction_goes_on_with_the_next():
    log = newcomer(3)
    average(log, 3)
    follow(log, commit(3))
    average(log, 4, fails=True)

    assert log.committed(commit(4)) is CommitDecision.MISSED

    assert log.needed == 5
    average(log, 5)
    follow(log, commit(5))


@pytest.mark.parametrize("fails", [False, True])
def test_a_commit_of_a_slow_reduction_is_noted_until_that_is_over(fails):
    log = newcomer(3)
    log.reduction_begun(reduce(3))

    assert log.committed(commit(3), patient=False) is CommitDecision.LATER
    assert log.must_commit_before(4)
    log.reduction_over(RoundId(3, 1), None if fails else reduced(3))

    assert log.noted(RoundId(3, 1)) == commit(3)
    assert log.noted(RoundId(3, 1)) is None
    decision = log.committed(commit(3), patient=False)
    assert decision is (CommitDecision.MISSED if fails else CommitDecision.FOLLOW)
    if not fails:
        log.take(commit(3))
    assert not log.must_commit_before(4)


def test_a_noted_commit_is_not_that_of_another_reduction():
    log = holder(3)
    log.reduction_begun(reduce(3, 2))
    assert log.committed(commit(3, 2), patient=False) is CommitDecision.LATER
    log.reduction_over(RoundId(3, 1), None)

    assert log.noted(RoundId(3, 1)) is None
    assert log.noted(RoundId(3, 2)) == commit(3, 2)


def test_a_new_session_forgets_what_was_noted():
    log = newcomer(3)
    log.reduction_begun(reduce(3))
    log.committed(commit(3), patient=False)

    log.begin(3, keep=False)

    assert log.noted(RoundId(3, 1)) is None


def test_a_newcomer_whose_reduction_has_not_begun_is_not_held_up_by_it():
    log = newcomer(3)

    assert log.committed(commit(3), patient=False) is CommitDecision.MISSED

    assert not log.must_commit_before(4)


def test_what_a_missed_commit_leaves_of_a_later_step_stays():
    log = newcomer(3)
    average(log, 3, fails=True)
    average(log, 4)
    log.reduction_begun(reduce(5))

    assert log.committed(commit(3)) is CommitDecision.MISSED

    follow(log, commit(4))
    assert log.must_commit_before(6)


def test_a_reduction_that_is_too_late_for_its_commit_is_dropped():
    log = newcomer(3)
    average(log, 3)
    average(log, 4, fails=True)

    assert log.committed(commit(4)) is CommitDecision.MISSED

    assert not log.must_commit_before(9)


def test_weights_cannot_follow_a_commit_whose_reduction_does_not_come():
    late, ahead = holder(3), holder(3)
    average(ahead, 4)

    assert late.committed(commit(3), patient=False) is CommitDecision.LOST
    assert ahead.committed(commit(4), patient=False) is CommitDecision.LOST


def test_a_commit_that_pieces_have_followed_may_come_again():
    log = newcomer(3)
    for step in (3, 4):
        average(log, step)
        follow(log, commit(step))

    assert log.committed(commit(3)) is CommitDecision.KEPT
    assert log.committed(commit(4)) is CommitDecision.KEPT
    assert log.committed(commit(4, generation=9)) is CommitDecision.MISSED
    log.became(5)
    with pytest.raises(NotServing, match="generation 1, not 9"):
        log.committed(commit(4, generation=9))


def test_a_commit_that_a_newcomer_has_missed_may_come_again():
    log = newcomer(3)
    average(log, 3, fails=True)
    assert log.committed(commit(3)) is CommitDecision.MISSED
    average(log, 4)
    follow(log, commit(4))

    assert log.committed(commit(3)) is CommitDecision.MISSED


def test_a_reduction_whose_commit_is_still_to_come_is_held_with_the_weights():
    log = newcomer(3)
    average(log, 3)

    log.became(3)

    assert log.held.reductions == (HeldReduction(3, 1, b"d"),)
    assert log.committed(commit(3)) is CommitDecision.APPLY


def test_a_reduction_waits_for_the_commit_of_the_step_before():
    log = newcomer(3)
    assert not log.must_commit_before(3)
    log.reduction_begun(reduce(3))
    assert not log.must_commit_before(3)
    assert log.must_commit_before(4)

    log.reduction_over(RoundId(3, 1), reduced(3))
    assert log.must_commit_before(4)
    follow(log, commit(3))

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
)
def test_pieces_follow_every_commit_once_and_in_order_or_are_told_of_the_gap(since, steps):
    """Whatever comes again, and whatever is missed on the way."""
    log, told = newcomer(since), []
    for step, fate in enumerate(steps, since):
        if fate == "late":
            assert log.committed(commit(step)) is CommitDecision.WAIT
        average(log, step, fails=fate == "lost")
        for again in range(since, step + 1):
            decision = log.committed(commit(again))
            if decision is CommitDecision.FOLLOW:
                told.append(log.take(commit(again)))
            elif again == step:
                assert decision is CommitDecision.MISSED
                told.append(None)

    wanted = [
        None if fate == "lost" else f"sums of step {step}, generation 1"
        for step, fate in enumerate(steps, since)
    ]
    assert told == wanted
    assert log.needed == since + len(steps)
