"""Tests of `trainer/balance/stage_coverage.py`."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.progress.events import Waiting
from p2pswarm.run.member_view import Incarnation
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.balance.stage_coverage import (
    AGAIN_S,
    MOVE_S,
    Departures,
    UnservedStages,
)
from p2pswarm.trainer.coordinator.admission import Newcomers
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.members.membership import Member, Membership
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import LastLeaves, WeightsSought

ANN = Incarnation(b"a" * 32, 1)


def told(unserved, stages, now_s=0.0, *, counting=True):
    return unserved.watch(stages, 7, now_s, counting=counting)


def test_people_are_told_once_of_every_change():
    unserved = UnservedStages("wait")

    reports = [told(unserved, stages) for stages in ([], [1], [1], [0, 1], [])]

    assert reports == [
        [],
        [Waiting((1,))],
        [],
        [Waiting((0, 1))],
        [Waiting(())],
    ]


def test_people_are_told_who_held_the_weights_last():
    unserved = UnservedStages("wait")
    unserved.on_end(Member(ANN, "h:1", 1, 0, ready=True))

    reports = told(unserved, [1])

    assert reports == [Waiting((1,)), WeightsSought(1, 7, ANN, "h:1")]


def test_a_run_that_ends_for_a_stage_does_so_after_a_while():
    unserved = UnservedStages("end")
    told(unserved, [1], 5.0)
    told(unserved, [1, 2], 9.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() == 35.0
    assert unserved.hopeless(34.9) is None
    assert unserved.hopeless(35.0) == "stage 1 has no server left that holds its weights"
    assert unserved.overdue(35.0, 7) == []


def test_a_run_that_waits_does_so_for_ever():
    unserved = UnservedStages("wait")
    told(unserved, [1], 5.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() is None
    assert unserved.hopeless(1e9) is None
    assert unserved.overdue(1e9, 7) == []


def test_a_run_that_goes_back_does_so_after_its_time_and_asks_again_if_it_could_not():
    unserved = UnservedStages("rewind", 20.0)
    told(unserved, [1], 5.0)
    unserved.overdue(10.0, 7)

    assert unserved.next_deadline_s() == 25.0
    asked = [unserved.overdue(s, 7) for s in (24.9, 25.0, 25.0, 44.9, 45.0)]
    assert asked == [[], [act.GoBack()], [], [], [act.GoBack()]]
    assert unserved.hopeless(1e9) is None


def test_people_are_told_once_what_can_be_done_when_a_stage_stays_away():
    unserved = UnservedStages("rewind", 20.0)
    told(unserved, [2], 5.0)
    told(unserved, [1, 2], 6.0)

    assert unserved.next_deadline_s() == 10.0
    assert unserved.overdue(9.9, 7) == []
    assert unserved.overdue(10.0, 7) == [act.SeekCopy((1, 2), 7, 15.0)]
    assert unserved.overdue(11.0, 7) == []
    told(unserved, [], 12.0)
    told(unserved, [1], 13.0)
    assert unserved.overdue(18.0, 7) == [act.SeekCopy((1,), 7, 15.0)]


def test_a_run_that_does_not_go_back_does_not_say_when():
    unserved = UnservedStages("wait")
    told(unserved, [1], 5.0)

    assert unserved.overdue(10.0, 7) == [act.SeekCopy((1,), 7, None)]


def test_a_stage_that_is_served_again_has_all_its_time_anew():
    unserved = UnservedStages("end")
    told(unserved, [1], 5.0)
    told(unserved, [], 6.0)
    told(unserved, [1], 7.0)
    unserved.overdue(12.0, 7)

    assert unserved.next_deadline_s() == 37.0


def test_a_run_that_still_gathers_gives_nothing_up():
    unserved = UnservedStages("end")
    told(unserved, [0], 5.0, counting=False)

    assert unserved.next_deadline_s() is None
    assert unserved.hopeless(1e9) is None


def test_candidates_are_taken_out_once_and_leave_with_their_incarnation():
    newcomers = Newcomers()
    newcomers.on_catch_up(ANN, b"w")

    assert newcomers.candidates() == [(ANN, b"w")]
    assert newcomers.candidates() == []
    newcomers.on_catch_up(ANN, b"w")
    newcomers.on_end(ANN)
    newcomers.on_end(ANN)
    assert newcomers.candidates() == []


def answers(play: Play) -> dict:
    return {a.incarnation: a.may for a in play.seen(act.AnswerLeave)}


def leave(play: Play, member, grace_s: float = 20.0) -> None:
    play.coordinator.on_leave_request(member, grace_s, play.now_s)


def test_a_member_may_leave_while_another_of_its_stage_stays():
    play = Play()
    ann, _bob = play.serve("a"), play.serve("b")

    leave(play, ann)

    assert answers(play) == {ann: True}


def test_of_two_that_leave_at_once_the_second_stays_and_people_are_told():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    leave(play, ann, 20.0)
    play.coordinator.drain()

    leave(play, bob, 30.0)

    actions = play.coordinator.drain()
    assert [a for a in actions if isinstance(a, act.AnswerLeave)] == [act.AnswerLeave(bob, False)]
    assert [a for a in actions if isinstance(a, LastLeaves)] == [LastLeaves(0, 0, bob, 30.0)]


def test_one_that_may_go_is_not_relied_on_even_if_it_has_more_time():
    """It may be gone already."""
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    leave(play, ann, 30.0)
    assert answers(play) == {ann: True}

    leave(play, bob, 20.0)

    assert answers(play) == {bob: False}


def test_of_two_that_are_told_together_the_one_with_more_time_stays():
    members = Membership(1)
    ann, bob = (members.admit(name * 32, "h:1", 0, 0).incarnation for name in (b"a", b"b"))
    members.make_ready(ann), members.make_ready(bob)
    departures = Departures(members)
    departures.on_request(ann, 30.0)
    departures.on_request(bob, 20.0)

    told = [a for a in departures.answers(0, 0.0) if isinstance(a, act.AnswerLeave)]

    assert told == [act.AnswerLeave(ann, False), act.AnswerLeave(bob, True)]


def test_one_that_may_go_is_called_back_when_the_one_that_stays_dies():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    leave(play, ann)
    play.seen(object)

    play.lose(bob)

    assert answers(play) == {ann: False}


def test_the_last_one_may_go_when_another_has_the_weights():
    play = Play()
    ann = play.serve("a")
    leave(play, ann)
    assert answers(play) == {ann: False}

    bob = play.join("b")
    assert answers(play) == {}
    play.ready(bob)

    assert answers(play) == {ann: True}


def test_a_newcomer_that_never_was_ready_may_go_and_one_without_anybody_else_stays():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    leave(play, bob)
    assert answers(play) == {bob: True}

    cid = play.join("c")
    play.lose(ann)
    leave(play, cid)

    assert answers(play) == {bob: False, cid: False}


def test_a_newcomer_gets_the_stage_whose_last_server_leaves():
    run = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=2, evaluate_every=0))
    play = Play(run)
    _ann, bob = play.serve("a"), play.serve("b")  # of stages 0 and 1
    leave(play, bob)

    play.join("c")

    assert play.coordinator.members.of_peer(b"c" * 32).stage == 1


def test_a_stranger_that_wants_to_leave_changes_nothing():
    play = Play(CONFIG)
    ann = play.serve("a")
    play.lose(ann)
    play.seen(object)

    leave(play, ann)

    assert answers(play) == {}


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["leave", "ready", "end"]), st.integers(0, 4), st.floats(0.0, 9.0)
        ),
        max_size=40,
    )
)
def test_somebody_who_was_not_told_that_it_may_go_is_always_here_if_anybody_is(inputs):
    members = Membership(1)
    departures, told = Departures(members), {}
    for what, number, until_s in inputs:
        peer = bytes([number]) * 32
        member = members.of_peer(peer)
        if what == "ready" and member is None:
            one = members.admit(peer, "h:1", 0, 0)
            members.make_ready(one.incarnation)
        elif what == "leave" and member is not None:
            departures.on_request(member.incarnation, until_s)
        elif what == "end" and member is not None:
            members.end(member.incarnation)
            departures.on_end(member.incarnation)
        for action in departures.answers(0, 0.0):
            if isinstance(action, act.AnswerLeave):
                told[action.incarnation] = action.may

        here = [m.incarnation for m in members.ready(0)]
        assert not here or any(not told.get(one, False) for one in here)
        assert set(members.leaving) <= set(here)


TWO_STAGES = RunConfig(
    stages=2, steps=9, on_stage_lost="wait", batch=BatchConfig(microbatches=2, evaluate_every=0)
)
BACK_AT_5 = CoordinatorStart(version=5, gathers=False, loads=True, states={0: b"w0", 1: b"w0"})


def lost_at_the_beginning() -> Play:
    """Servers a, c, e of stage 0 and b, d of stage 1; those of stage 1 are gone."""
    play = Play(TWO_STAGES)
    members = {name: play.serve(name) for name in "abcde"}
    play.lose(members["b"], members["d"])
    play.seen(object)
    return play


def pause(play: Play, seconds: float) -> None:
    """Time passes, in which every member is heard and answers fences."""
    end_s = play.now_s + seconds
    while play.now_s < end_s:
        play.wait(min(1.0, end_s - play.now_s))
        for member in play.coordinator.members.ready() + play.coordinator.members.waiting():
            play.coordinator.silence.on_word(member.incarnation, play.now_s)
            play.promise(member.incarnation)


def moved(play: Play) -> list[str]:
    evicted = [a for a in play.seen(act.Evict) if "it moves to stage 1" in a.reason]
    return [a.incarnation.peer[:1].decode() for a in evicted]


def back(play: Play, name: str, version: int = 0) -> int:
    """A server joins again with the weights of stage 0; which stage it is given."""
    play.join(name, stage=0, version=version, digest=b"w0")
    (assigned,) = (a.message for a in play.seen(act.Assign))
    assert assigned.keep == (assigned.stage == 0)
    return assigned.stage


def test_the_newest_of_the_best_served_stage_moves_when_nobody_else_came():
    play = lost_at_the_beginning()
    assert play.coordinator.next_deadline_s() <= MOVE_S
    pause(play, MOVE_S - 0.1)
    assert moved(play) == []

    pause(play, 0.1)

    assert moved(play) == ["e"]
    assert back(play, "e") == 1
    member = play.coordinator.members.of_peer(b"e" * 32)
    play.ready(member.incarnation)
    play.seen(object)
    assert play.coordinator.members.unserved_stages(1) == []
    pause(play, 10 * AGAIN_S)
    assert moved(play) == []


def test_before_the_first_step_a_stage_has_as_many_as_the_run_begins_with():
    play = Play(dataclasses.replace(TWO_STAGES, min_replicas=2))
    members = {name: play.join(name) for name in "abcdef"}
    for name in "aceb":
        play.ready(members[name])
    play.lose(members["d"], members["f"])
    play.seen(object)

    pause(play, MOVE_S)

    assert moved(play) == ["e"]
    assert back(play, "e") == 1
    pause(play, 10 * AGAIN_S)
    assert moved(play) == []


def test_a_newcomer_that_comes_first_takes_the_stage_and_nobody_moves():
    play = lost_at_the_beginning()
    pause(play, MOVE_S - 0.1)

    play.serve("x")
    pause(play, MOVE_S)

    assert moved(play) == []
    assert play.coordinator.members.unserved_stages(1) == []


def test_one_that_comes_back_when_another_has_taken_the_stage_keeps_its_own():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    play.join("x")
    play.seen(act.Assign)

    assert back(play, "e") == 0


def test_the_last_server_of_a_stage_stays():
    play = Play(TWO_STAGES)
    play.serve("a")
    play.lose(play.serve("b"))
    play.seen(object)

    pause(play, 10 * MOVE_S)

    assert moved(play) == []


def test_one_that_was_told_its_stage_or_leaves_stays():
    play = Play(TWO_STAGES)
    for name in "ac":
        join = dataclasses.replace(play.join_message(0), pinned=True)
        play.coordinator.on_join(name.encode() * 32, join, play.now_s)
        play.ready(play.coordinator.members.of_peer(name.encode() * 32).incarnation)
    gone = play.serve("b")
    play.lose(gone)
    play.seen(object)

    pause(play, 10 * MOVE_S)

    assert moved(play) == []


def test_weights_of_later_steps_come_back_only_with_who_has_them():
    play = Play(TWO_STAGES)
    members = {name: play.serve(name) for name in "abc"}
    for number in (0, 1):
        play.count(members["a"], number)
        play.count(members["b"], number)
    play.reduce(*members.values())
    for member in members.values():
        play.commit(member, b"w1")
    play.lose(members["b"])
    play.seen(object)

    pause(play, 100 * MOVE_S)

    assert moved(play) == []


@pytest.mark.parametrize("loads", [True, False])
def test_where_the_run_has_gone_back_to_a_spare_server_loads_the_lost_stage(loads):
    start = dataclasses.replace(BACK_AT_5, loads=loads)
    play = Play(TWO_STAGES, start=start)
    for name in "ac":
        play.join(name, stage=0, version=5, digest=b"w0")
    play.seen(object)

    pause(play, MOVE_S)

    assert moved(play) == (["c"] if loads else [])
    if loads:
        play.join("c", stage=0, version=5, digest=b"w0")
        (assigned,) = (a.message for a in play.seen(act.Assign))
        assert (assigned.stage, assigned.keep, assigned.loads) == (1, False, True)


def test_another_follows_when_the_one_that_moved_cannot_load_the_weights():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    assert back(play, "e") == 1
    pause(play, 2 * AGAIN_S - 1.0)
    assert moved(play) == []

    pause(play, 1.0)

    assert moved(play) == ["c"]
    assert back(play, "c") == 1
    pause(play, 100 * AGAIN_S)
    assert moved(play) == [], "a is the last one of its stage"


def test_one_that_moved_and_died_is_followed_soon():
    play = lost_at_the_beginning()
    pause(play, MOVE_S)
    assert moved(play) == ["e"]
    pause(play, 2 * MOVE_S - 1.0)
    assert moved(play) == []

    pause(play, 1.0)

    assert moved(play) == ["c"]
    assert back(play, "c") == 1
    pause(play, 100 * AGAIN_S)
    assert moved(play) == [], "a is the last one of its stage"
