"""Who may leave, when several members are asked to at once."""

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.members.departures import AnswerLeave, Departures, LastLeaves
from p2pswarm.trainer.members.membership import Membership


def answers(play: Play) -> dict:
    return {a.incarnation: a.may for a in play.seen(AnswerLeave)}


def leave(play: Play, member, grace_s: float = 20.0) -> None:
    play.coordinator.will_leave(member, grace_s, play.now_s)


def test_a_member_may_leave_while_another_of_its_stage_stays():
    play = Play()
    ann, _bob = play.serve("a"), play.serve("b")

    leave(play, ann)

    assert answers(play) == {ann: True}


def test_of_two_that_leave_at_once_the_second_stays_and_people_are_told():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    leave(play, ann, 20.0)
    play.coordinator.actions()

    leave(play, bob, 30.0)

    actions = play.coordinator.actions()
    assert [a for a in actions if isinstance(a, AnswerLeave)] == [AnswerLeave(bob, False)]
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
    departures.asked(ann, 30.0)
    departures.asked(bob, 20.0)

    told = [a for a in departures.actions(0, 0.0) if isinstance(a, AnswerLeave)]

    assert told == [AnswerLeave(ann, False), AnswerLeave(bob, True)]


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
            departures.asked(member.incarnation, until_s)
        elif what == "end" and member is not None:
            members.end(member.incarnation)
            departures.end(member.incarnation)
        for action in departures.actions(0, 0.0):
            if isinstance(action, AnswerLeave):
                told[action.incarnation] = action.may

        here = [m.incarnation for m in members.ready(0)]
        assert not here or any(not told.get(one, False) for one in here)
        assert set(members.leaving) <= set(here)
