"""Tests of `trainer/members/membership.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.trainer.members.membership import AnswerLimits, Membership
from p2pswarm.trainer.reports.actions import MemberChange

FIRST, SECOND, THIRD = (bytes([number]) * 32 for number in (1, 2, 3))


def test_a_newcomer_that_may_serve_anywhere_waits_in_the_stage_it_was_given():
    """A reduction names those who wait in a stage: who is missing there never receives it."""
    members = Membership(2)

    first = members.admit(FIRST, "10.0.0.1:1", None, 0)
    second = members.admit(SECOND, "10.0.0.2:1", None, 0)

    assert members.waiting(0) == [first]
    assert members.waiting(1) == [second]
    assert members.waiting() == [first, second]


def test_a_full_stage_is_refused_to_one_that_was_told_to_serve_it():
    members = Membership(2, group_max=1)
    members.admit(FIRST, "h:1", 1, 0)

    with pytest.raises(Unusable, match=r"stage 1 has all the 1 servers .* leave out `stage`"):
        members.admit(SECOND, "h:1", 1, 0, pinned=True)
    assert members.of_peer(SECOND) is None


def test_one_that_may_move_goes_to_a_stage_with_a_place():
    members = Membership(3, group_max=1)
    members.make_ready(members.admit(FIRST, "h:1", 0, 0).incarnation)

    assert members.admit(SECOND, "h:1", 0, 0).stage == 1
    assert members.admit(THIRD, "h:1", None, 0).stage == 2


def test_when_every_stage_is_full_a_server_is_told_so():
    members = Membership(2, group_max=1)
    members.admit(FIRST, "h:1", None, 0)
    gone = members.admit(SECOND, "h:1", None, 0)

    with pytest.raises(Unusable, match=r"every stage has all the 1 servers .* another run"):
        members.admit(THIRD, "h:1", None, 0)
    members.end(gone.incarnation)
    assert members.admit(THIRD, "h:1", None, 0).stage == 1


def test_changes_are_told_once_and_in_order():
    members = Membership(1)
    ann = members.admit(FIRST, "h:1", None, 0)
    ready = members.make_ready(ann.incarnation)
    members.end(ann.incarnation)
    members.end(ann.incarnation)

    assert members.changes() == (
        MemberChange(ann.record),
        MemberChange(ready.record),
        MemberChange(ready.record, gone=True),
    )
    assert members.changes() == ()


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.integers(1, 6))
def test_what_is_kept_is_what_a_count_over_all_members_would_say(rng, stages, group_max):
    members, alive = Membership(stages, group_max), {}
    for _ in range(40):
        peer = rng.randrange(20).to_bytes(32)
        member = alive.get(peer)
        if member is None:
            try:
                alive[peer] = members.admit(peer, "h:1", rng.choice([None, *range(stages)]), 0)
            except Unusable:
                assert len(alive) == stages * group_max
        elif member.ready or rng.random() < 0.3:
            members.end(alive.pop(peer).incarnation)
        else:
            alive[peer] = members.make_ready(member.incarnation)

        everybody = [alive[peer] for peer in sorted(alive)]
        ready = [m for m in everybody if m.ready]
        assert members.ready() == ready
        assert members.waiting() == [m for m in everybody if not m.ready]
        assert members.ready_count() == len(ready)
        assert members.records() == tuple(m.record for m in everybody)
        for stage in range(stages):
            group = members.group(stage)
            assert group.members == [m for m in ready if m.stage == stage]
            assert group.observers == [m for m in everybody if m.stage == stage and not m.ready]
            assert members.ready_count(stage) == len(group.members)
            assert len(group.members) + len(group.observers) <= group_max
        for at_least in (1, 2):
            short = [s for s in range(stages) if len(members.ready(s)) < at_least]
            assert members.unserved_stages(at_least) == short


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
