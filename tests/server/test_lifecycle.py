"""A stage server from its first try to join to its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadMessage, LinkLost
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.run.member_view import view_parts
from p2pswarm.run.messages.membership import Assigned, Leaving, MayLeave, MoveTo
from p2pswarm.run.messages.run import Finished
from p2pswarm.server.lifecycle import MOVES, Lifecycle, ServerEnd, ServerState
from p2pswarm.server.trainer_search import REJOIN_FIRST_S, SEEK_S

ASSIGNED = Assigned(1, 7, 0, keep=False)
(VIEW,) = view_parts(1, ())
REJOIN_S = 20.0
GRACE_S = 3.0
TRAINER, STANDBY, THIRD = (
    Contact(PeerId(bytes([n]) * 32), Address(f"10.0.0.{n}", 4000)) for n in (1, 2, 3)
)


def server(*trainers):
    return Lifecycle(trainers or (TRAINER,), REJOIN_S, 0.0)


def joining(now_s=0.0):
    one = server()
    one.joining(now_s)
    return one


def preparing():
    one = joining()
    assert one.answered(ASSIGNED) == ASSIGNED
    return one


def loading():
    one = preparing()
    one.prepared()
    return one


def serving():
    one = loading()
    one.loaded()
    return one


def finishing():
    one = serving()
    one.leave(50.0, GRACE_S)
    one.on_message(MayLeave(may=True))
    return one


def staying():
    one = serving()
    one.leave(50.0, GRACE_S)
    one.on_message(MayLeave(may=False))
    return one


def leaving():
    one = loading()
    one.leave(1.0, GRACE_S)
    return one


BY_STATE = {
    ServerState.OUT: server,
    ServerState.JOINING: joining,
    ServerState.PREPARING: preparing,
    ServerState.LOADING: loading,
    ServerState.SERVING: serving,
    ServerState.STAYING: staying,
    ServerState.FINISHING: finishing,
    ServerState.LEAVING: leaving,
}


def test_a_server_joins_prepares_loads_and_serves():
    for state, make in BY_STATE.items():
        assert make().state is state
    assert server().may_join


def test_orders_wait_from_the_first_word_until_there_is_memory():
    waiting = [state for state, make in BY_STATE.items() if make().orders_wait]

    assert waiting == [ServerState.JOINING, ServerState.PREPARING]


def test_a_run_that_is_over_takes_nobody():
    one = joining()

    assert one.answered(Finished("all steps are done")) is None
    assert one.end == ServerEnd("all steps are done")


@pytest.mark.parametrize("answer", [None, VIEW])
def test_another_answer_to_join_is_a_lost_session(answer):
    with pytest.raises(LinkLost, match="the trainer answered"):
        joining().answered(answer)


def test_a_session_hears_views_until_the_run_ends():
    one = serving()

    assert one.on_message(VIEW) is VIEW
    assert one.on_message(Finished("done")) is None
    assert one.end == ServerEnd("done")


def test_a_trainer_that_ends_the_stream_has_dismissed_the_server():
    with pytest.raises(LinkLost, match="ended this server's part"):
        serving().on_message(None)


def test_another_word_of_the_trainer_breaks_the_protocol():
    with pytest.raises(BadMessage, match="a Leaving from the trainer"):
        serving().on_message(Leaving())


def test_a_serving_server_leaves_when_its_step_ends():
    one = finishing()
    assert not one.must_say_goodbye

    one.step_ended()

    assert one.must_say_goodbye
    assert one.next_deadline_s() is None
    one.said_goodbye()
    assert one.end == ServerEnd("left")


def test_a_serving_server_does_not_wait_for_the_step_for_ever():
    one = finishing()
    assert one.next_deadline_s() == 50.0 + GRACE_S

    one.on_deadline(50.0 + GRACE_S - 0.1)
    assert not one.must_say_goodbye
    one.on_deadline(50.0 + GRACE_S)

    assert one.must_say_goodbye


def test_the_end_of_a_step_is_nothing_to_a_server_that_stays():
    one = serving()

    one.step_ended()

    assert one.state is ServerState.SERVING


def test_the_last_server_of_a_stage_computes_on_until_another_has_its_weights():
    one = staying()
    assert not one.closing
    (remark,) = one.remarks()
    assert "no other server has the weights of this stage" in remark
    one.step_ended()
    assert one.state is ServerState.STAYING

    one.on_message(MayLeave(may=True))

    assert one.closing
    assert one.state is ServerState.FINISHING
    one.step_ended()
    assert one.must_say_goodbye


def test_the_last_server_of_a_stage_leaves_when_its_time_is_over():
    one = staying()
    one.remarks()

    one.on_deadline(50.0 + GRACE_S)

    assert one.must_say_goodbye
    (remark,) = one.remarks()
    assert "they are lost with this process" in remark


def test_a_server_whose_successor_goes_away_stays():
    one = finishing()

    one.on_message(MayLeave(may=False))

    assert one.state is ServerState.STAYING
    assert one.next_deadline_s() == 50.0 + GRACE_S


def test_a_server_that_was_not_asked_to_leave_needs_no_successor():
    one = serving()

    one.on_message(MayLeave(may=False))

    assert one.state is ServerState.SERVING
    assert not one.leaving


@pytest.mark.parametrize("make", [preparing, loading])
def test_a_server_without_weights_leaves_at_once(make):
    one = make()

    one.leave(1.0, GRACE_S)

    assert one.must_say_goodbye
    one.prepared()
    one.loaded()
    assert one.must_say_goodbye


@pytest.mark.parametrize("make", [server, joining])
def test_a_server_out_of_the_run_leaves_without_a_word(make):
    one = make()

    one.leave(1.0, GRACE_S)

    assert one.end == ServerEnd("left")


def test_an_assignment_that_comes_after_leaving_is_not_taken():
    one = joining()
    one.leave(1.0, GRACE_S)

    assert one.answered(ASSIGNED) is None


def test_to_leave_twice_is_to_leave_once():
    one = finishing()

    one.leave(99.0, GRACE_S)

    assert one.next_deadline_s() == 50.0 + GRACE_S


@pytest.mark.parametrize("make", [finishing, staying, leaving])
def test_a_server_that_is_leaving_does_not_join_again(make):
    one = make()

    one.session_lost("the link was lost", 60.0)

    assert one.end == ServerEnd("left")


def test_a_session_that_ends_after_the_run_has_changes_nothing():
    one = serving()
    one.on_message(Finished("done"))

    one.session_lost("the link was lost", 60.0)

    assert one.end == ServerEnd("done")


def test_a_server_keeps_how_many_steps_the_trainer_says_are_done():
    newcomer, member = joining(), serving()

    newcomer.answered(Finished("all steps are done", 100))
    member.on_message(Finished("all steps are done", 100))

    assert newcomer.end == member.end == ServerEnd("all steps are done", version=100)


@pytest.mark.parametrize("make", [server, joining])
def test_a_proof_that_the_run_is_over_ends_a_server_that_seeks_its_trainer(make):
    one = make()

    one.on_run_over("all steps are done", 100)

    assert one.end == ServerEnd("all steps are done", version=100, proved=True)
    assert one.next_deadline_s() is None


def test_a_server_in_a_session_hears_of_the_end_from_its_trainer_alone():
    one = serving()

    one.on_run_over("all steps are done", 100)

    assert one.end is None


def test_a_lost_session_is_followed_by_another_after_a_pause():
    one = serving()

    one.session_lost("the link was lost", 100.0)

    assert one.remarks() == ["out of the run, joining again: the link was lost"]
    assert one.state is ServerState.OUT
    assert not one.may_join
    assert one.next_deadline_s() == 100.0 + REJOIN_FIRST_S
    one.on_deadline(100.0 + REJOIN_FIRST_S)
    assert one.may_join


def test_a_move_is_told_as_one_and_not_as_a_loss():
    one = serving()
    with pytest.raises(LinkLost) as lost:
        one.on_message(MoveTo(1, "+10 %"))

    one.session_lost(str(lost.value), 100.0)

    assert one.remarks() == ["leaving this stage: it moves to stage 1: +10 %"]


def fail(one, now_s):
    """One try that fails at once."""
    one.on_deadline(now_s)
    one.joining(now_s)
    one.session_lost("nobody is there", now_s)


def test_a_trainer_that_is_gone_for_long_is_looked_for_less_often_and_for_ever():
    one = server()
    fail(one, REJOIN_S - 0.1)
    assert one.remarks() == []
    assert one.look_again_s(REJOIN_S - 0.1) == 1.0

    fail(one, REJOIN_S + 5.0)

    assert one.end is None
    assert one.next_deadline_s() == REJOIN_S + 5.0 + SEEK_S
    assert one.look_again_s(REJOIN_S + 5.0) == SEEK_S
    assert one.remarks() == [
        "the trainer at 10.0.0.1:4000 is gone for 25 s (nobody is there): looking for it every 10 s"
    ]
    fail(one, 86_400.0)
    assert one.remarks() == []
    one.on_deadline(86_400.0 + SEEK_S)
    one.joining(86_400.0 + SEEK_S)
    one.answered(ASSIGNED)
    assert one.remarks() == ["the trainer at 10.0.0.1:4000 is there again"]


def test_the_time_without_a_trainer_counts_from_the_end_of_the_session():
    one = serving()
    one.session_lost("the link was lost", 1000.0)

    fail(one, 1000.0 + REJOIN_S - 0.1)
    assert not one.may_change_run(1000.0 + REJOIN_S - 0.1)
    fail(one, 1000.0 + REJOIN_S)

    assert one.may_change_run(1000.0 + REJOIN_S)


def test_a_server_whose_trainer_never_answered_may_go_to_another_run_at_once():
    one = joining()
    assert one.may_change_run(0.5)

    one.give_up("another run was found")

    assert one.end == ServerEnd("another run was found", gave_up=True)


def test_a_server_with_a_session_gives_nothing_up():
    one = serving()

    one.give_up("another run was found")

    assert not one.may_change_run(1e9)
    assert one.end is None


def test_a_deadline_that_is_not_due_does_nothing():
    one = server()

    one.on_deadline(1e9)

    assert one.may_join


INPUTS = {
    "joining": lambda one, now_s: one.may_join and one.joining(now_s),
    "assigned": lambda one, now_s: (
        one.state is ServerState.JOINING and one.answered(ASSIGNED) and None
    ),
    "prepared": lambda one, now_s: one.prepared(),
    "loaded": lambda one, now_s: one.loaded(),
    "leave": lambda one, now_s: one.leave(now_s, GRACE_S),
    "may leave": lambda one, now_s: one.on_message(MayLeave(may=True)),
    "may not leave": lambda one, now_s: one.on_message(MayLeave(may=False)),
    "found": lambda one, now_s: one.found([STANDBY], now_s),
    "give up": lambda one, now_s: one.give_up("another run"),
    "step": lambda one, now_s: one.step_ended(),
    "goodbye": lambda one, now_s: one.must_say_goodbye and one.said_goodbye(),
    "deadline": lambda one, now_s: one.on_deadline(now_s),
    "lost": lambda one, now_s: one.state is not ServerState.OUT and one.session_lost("lost", now_s),
}


@given(st.lists(st.tuples(st.sampled_from(sorted(INPUTS)), st.floats(0.0, 10.0)), max_size=60))
def test_whatever_happens_a_server_moves_along_its_table_and_stays_over_once_it_is(inputs):
    one, now_s = server(), 0.0
    for name, later_s in inputs:
        before, now_s = one.state, now_s + later_s
        INPUTS[name](one, now_s)
        assert one.state is before or one.state in MOVES[before]
        assert (one.end is not None) == (one.state is ServerState.OVER)
        if one.state is ServerState.OUT:
            assert one.may_join or one.next_deadline_s() is not None
