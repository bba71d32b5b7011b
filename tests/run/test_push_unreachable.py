"""A push that reaches no server of its stage: given up soon, so that it takes another path."""

from run.test_push import FIRST, NOBODY, SECOND, asked, router

from p2pswarm.base.errors import Busy, DialFailed, NotServing
from p2pswarm.run.push import UNREACHABLE_S, PushProgress, PushState
from p2pswarm.run.router import AVOID_FIRST_S


def test_a_push_that_reaches_nobody_is_given_up_soon():
    """Another server of the sender's stage may reach one: the coordinator takes another path."""
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    asked(progress)
    progress.failed(DialFailed("nothing comes from it"), 1.0)
    assert progress.choose(1.0) is None
    assert progress.next_deadline_s() == 1.0 + AVOID_FIRST_S
    asked(progress, 1.0 + AVOID_FIRST_S)
    progress.failed(DialFailed("nothing comes from it"), 1.0 + AVOID_FIRST_S)

    assert progress.choose(2.0) is None
    assert progress.choose(1.0 + UNREACHABLE_S) is None

    assert progress.state is PushState.GIVEN_UP
    assert progress.reason == "nothing comes from it"


def test_a_push_is_given_up_as_soon_where_others_have_found_that_nobody_is_reached():
    servers, now_s = router(FIRST), 0.0
    for _ in range(5):  # the pause is long by now
        servers.lost(FIRST.peer, now_s)
        now_s = servers.free_at_s()
    servers.lost(FIRST.peer, now_s)
    progress = PushProgress(servers, NOBODY, now_s)

    assert progress.choose(now_s) is None
    assert progress.next_deadline_s() == now_s + UNREACHABLE_S < servers.free_at_s()
    assert progress.choose(now_s + UNREACHABLE_S) is None
    assert progress.state is PushState.GIVEN_UP


def test_a_push_waits_while_one_server_is_lost_and_another_is_busy():
    servers = router(FIRST, SECOND)
    servers.lost(FIRST.peer, 0.0)
    servers.busy(SECOND.peer, 0.0, 4.0)
    progress = PushProgress(servers, NOBODY, 0.0)

    assert progress.choose(0.0) is None
    assert progress.choose(AVOID_FIRST_S) == FIRST


def test_a_push_is_not_given_up_soon_while_somebody_answers():
    progress = PushProgress(router(FIRST), NOBODY, 0.0)
    asked(progress)
    progress.failed(DialFailed("no route"), 1.0)
    asked(progress, 2.0)
    progress.failed(Busy("full", 4.0), 2.0)

    assert progress.choose(2.0 + UNREACHABLE_S) is None
    assert not progress.over
    assert progress.choose(7.0) == FIRST


def test_a_push_is_given_up_as_soon_if_one_is_not_reached_and_the_other_is_cut_off_itself():
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    asked(progress)
    progress.failed(DialFailed("nothing comes from it"), 0.0)
    now_s = 0.0
    while now_s < UNREACHABLE_S and not progress.over:
        if progress.choose(now_s) is not None:
            progress.failed(NotServing("nothing comes from the servers of the next stage"), now_s)
        now_s += 0.05

    progress.choose(UNREACHABLE_S)
    assert progress.state is PushState.GIVEN_UP


def test_a_push_waits_for_one_that_is_busy_though_another_is_cut_off():
    progress = PushProgress(router(FIRST, SECOND), NOBODY, 0.0)
    for tick in range(100):
        now_s = 0.1 * tick
        if (member := progress.choose(now_s)) is not None:
            refusal = NotServing("cut off") if member == FIRST else Busy("full", 1.0)
            progress.failed(refusal, now_s)

    assert not progress.over
