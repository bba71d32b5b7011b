"""Tests of `trainer/members/probation.py`."""

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import Play

from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.trainer.coordinator.silence import NEWCOMER_SILENT_S, SILENT_S
from p2pswarm.trainer.members.probation import (
    NEWCOMER_SHARE,
    PAUSE_FIRST_S,
    PAUSE_MAX_S,
    Probation,
)
from p2pswarm.trainer.reports.reports import MemberReady


def peer(name: int) -> bytes:
    return name.to_bytes(32, "big")


FOUR = [peer(number) for number in range(4)]
NEW, LATER = peer(100), peer(101)


def wary(deaths: int = 1) -> Probation:
    probation = Probation(FOUR)
    for number in range(deaths):
        probation.on_death(peer(200 + number), now_s=0.0)
    return probation


def test_nobody_waits_while_no_newcomer_has_died():
    probation = Probation(FOUR)
    probation.on_death(FOUR[0], 0.0)

    assert not probation.holds(NEW, FOUR, counted=0.9, now_s=0.0)


def test_after_a_death_newcomers_wait_for_a_pause_that_doubles():
    for deaths in range(1, 12):
        pause_s = min(PAUSE_MAX_S, PAUSE_FIRST_S * 2.0 ** (deaths - 1))
        probation = wary(deaths)

        assert probation.holds(NEW, FOUR, counted=0.0, now_s=pause_s - 0.1)
        assert not probation.holds(NEW, FOUR, counted=0.0, now_s=pause_s)


def test_then_one_comes_at_a_time_and_early_in_a_step():
    probation = wary()

    assert not probation.holds(NEW, FOUR, counted=0.25, now_s=9.0)
    assert probation.holds(NEW, FOUR, counted=0.3, now_s=9.0)
    assert probation.holds(NEW, [*FOUR, LATER], counted=0.0, now_s=9.0)


@given(st.integers(0, 40), st.integers(0, 12))
def test_a_stage_has_one_newcomer_for_each_few_proven_servers(proven, newcomers):
    servers = [peer(number) for number in range(proven)]
    probation = Probation(servers)
    probation.on_death(LATER, 0.0)
    ready = [*servers, *(peer(100 + number) for number in range(newcomers))]

    held = probation.holds(peer(99), ready, counted=0.0, now_s=9.0)

    assert held == (newcomers >= max(1, proven // NEWCOMER_SHARE))


def test_a_newcomer_that_proves_itself_ends_the_caution():
    probation = wary(5)
    probation.prove([NEW])

    assert not probation.holds(LATER, FOUR, counted=0.9, now_s=0.0)


def test_servers_that_were_proven_before_do_not_end_it():
    probation = wary(5)
    probation.prove(FOUR)

    assert probation.holds(LATER, FOUR, counted=0.0, now_s=0.0)


def test_one_that_comes_back_once_does_not_wait():
    probation = wary()
    probation.on_death(NEW, 0.0)
    assert not probation.holds(NEW, FOUR, counted=0.9, now_s=0.0)

    probation.on_death(NEW, 1.0)
    assert probation.holds(NEW, FOUR, counted=0.9, now_s=1.0)


def test_a_run_that_many_came_to_remembers_the_last():
    probation = Probation()
    probation.prove(peer(number) for number in range(MEMBERS_MAX + 1))
    for number in range(MEMBERS_MAX + 1):
        probation.on_death(peer(10**6 + number), 0.0)

    assert not probation.proven(peer(0))
    assert probation.proven(peer(MEMBERS_MAX))
    assert probation.holds(peer(10**6), FOUR, counted=0.0, now_s=0.0)
    assert not probation.holds(peer(10**6 + MEMBERS_MAX), FOUR, counted=0.0, now_s=0.0)


def test_a_newcomer_waits_in_a_run_where_another_has_died():
    play = Play()
    ann = play.serve("a")
    bob = play.serve("b")
    play.lose(bob)
    play.seen(MemberReady)

    carl = play.serve("c")

    assert play.seen(MemberReady) == []
    play.lose(ann)
    play.wait(0.1)
    assert [one.incarnation for one in play.seen(MemberReady)] == [carl]


def test_a_server_of_the_last_step_may_be_silent_for_longer_than_a_newcomer():
    play = Play()
    ann = play.serve("a")
    bob = play.serve("b")
    silence = play.coordinator.silence

    assert silence.limit_s(ann.peer) == SILENT_S
    assert silence.limit_s(bob.peer) == NEWCOMER_SILENT_S
