"""Tests of `trainer/members/probation.py`."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, Play

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import MEMBERS_MAX
from p2pswarm.settings.config import BatchConfig
from p2pswarm.trainer.coordinator.silence import NEWCOMER_SILENT_S, SILENT_S
from p2pswarm.trainer.members.probation import (
    NEWCOMER_SHARE,
    START_S,
    STAY_LEARNED,
    STAY_MAX_S,
    STAY_S,
    WARY_S,
    Probation,
)
from p2pswarm.trainer.reports.reports import MemberReady


def peer(name: int) -> bytes:
    return name.to_bytes(32, "big")


FOUR = [peer(number) for number in range(4)]
NEW, LATER = peer(100), peer(101)
LONG_S = STAY_MAX_S


def wary(life_s: float = 0.0) -> Probation:
    """A run in which a newcomer has died at 0 s."""
    probation = Probation(FOUR)
    probation.on_death(peer(200), life_s, now_s=0.0)
    return probation


def test_a_newcomer_has_no_work_in_its_first_seconds():
    probation = Probation(FOUR)

    assert probation.holds(NEW, STAY_S - 0.1, FOUR, counted=0.0, now_s=7.0)
    assert probation.next_deadline_s(7.0) == pytest.approx(7.1)
    assert not probation.holds(NEW, STAY_S, FOUR, counted=0.9, now_s=7.1)
    assert probation.next_deadline_s(7.1) is None


def test_whoever_comes_with_the_first_is_no_newcomer():
    probation = Probation()
    early = probation.holds(NEW, 0.0, FOUR, counted=0.0, now_s=1.0)

    probation.begin(FOUR, now_s=1.0)

    assert not early
    assert not probation.holds(NEW, 1.0, FOUR, counted=0.0, now_s=2.0 + START_S)
    assert probation.holds(LATER, 0.9, FOUR, counted=0.0, now_s=2.0 + START_S)


def test_the_death_of_one_that_is_no_newcomer_costs_nobody_a_wait():
    probation = Probation(FOUR)
    probation.prove([NEW])
    probation.on_death(FOUR[0], 0.0, now_s=0.0)
    probation.on_death(NEW, STAY_MAX_S, now_s=0.0)

    assert not probation.holds(LATER, STAY_S, FOUR, counted=0.9, now_s=0.0)


@given(st.floats(0.0, 100.0))
def test_others_wait_for_twice_as_long_as_a_newcomer_lived(life_s):
    wait_s = min(STAY_MAX_S, max(STAY_S, STAY_LEARNED * life_s))
    probation = wary(life_s)

    assert probation.holds(NEW, wait_s - 0.1, FOUR, counted=0.0, now_s=1.0)
    assert not probation.holds(NEW, wait_s, FOUR, counted=0.0, now_s=1.0)


def test_a_server_that_was_in_a_step_and_dies_young_makes_others_wait_too():
    probation = Probation(FOUR)
    probation.prove([NEW])
    probation.on_death(NEW, 20.0, now_s=0.0)

    assert probation.holds(LATER, 39.0, FOUR, counted=0.0, now_s=1.0)


def test_a_server_that_came_with_the_run_and_was_in_a_step_costs_nobody_a_wait():
    probation = Probation(FOUR)
    probation.begin(FOUR, now_s=0.0)
    probation.on_first_word(NEW, START_S)
    probation.prove([NEW])
    probation.on_death(NEW, 20.0, now_s=20.0)

    assert not probation.holds(LATER, STAY_S, FOUR, counted=0.9, now_s=30.0)


def test_the_longest_of_the_lives_counts():
    probation = wary(20.0)
    probation.on_death(peer(201), 3.0, now_s=1.0)

    assert probation.holds(NEW, 39.0, FOUR, counted=0.0, now_s=2.0)


def test_then_one_comes_at_a_time_and_early_in_a_step():
    probation = wary()

    assert not probation.holds(NEW, LONG_S, FOUR, counted=0.25, now_s=9.0)
    assert probation.holds(NEW, LONG_S, FOUR, counted=0.3, now_s=9.0)
    assert probation.holds(NEW, LONG_S, [*FOUR, LATER], counted=0.0, now_s=9.0)


@given(st.integers(0, 40), st.integers(0, 12))
def test_a_stage_has_one_newcomer_for_each_few_proven_servers(proven, newcomers):
    servers = [peer(number) for number in range(proven)]
    probation = Probation(servers)
    probation.prove([LATER])
    probation.on_death(LATER, 0.0, now_s=0.0)
    ready = [*servers, *(peer(1000 + number) for number in range(newcomers))]

    held = probation.holds(peer(999), LONG_S, ready, counted=0.0, now_s=9.0)

    assert held == (newcomers >= max(1, proven // NEWCOMER_SHARE))


def test_the_caution_ends_some_time_after_the_last_death():
    probation = wary(30.0)
    probation.on_death(peer(201), 0.0, now_s=5.0)

    assert probation.holds(NEW, STAY_S, FOUR, counted=0.0, now_s=WARY_S + 4.9)
    assert not probation.holds(NEW, STAY_S, FOUR, counted=0.9, now_s=WARY_S + 5.0)
    probation.on_death(peer(202), 0.0, now_s=WARY_S + 5.0)
    assert not probation.holds(NEW, STAY_S, FOUR, counted=0.0, now_s=WARY_S + 5.0)


def test_one_that_comes_back_once_does_not_wait():
    probation = wary()
    probation.on_death(NEW, 0.0, now_s=0.0)
    assert not probation.holds(NEW, 0.0, FOUR, counted=0.9, now_s=0.0)

    probation.on_death(NEW, 0.0, now_s=1.0)
    assert probation.holds(NEW, 0.0, FOUR, counted=0.9, now_s=1.0)


def test_a_run_that_many_came_to_remembers_the_last():
    probation = Probation()
    probation.prove(peer(number) for number in range(MEMBERS_MAX + 1))
    for number in range(MEMBERS_MAX + 1):
        probation.on_death(peer(10**6 + number), 0.0, now_s=0.0)

    assert not probation.proven(peer(0))
    assert probation.proven(peer(MEMBERS_MAX))
    assert probation.holds(peer(10**6), 0.0, FOUR, counted=0.0, now_s=0.0)
    assert not probation.holds(peer(10**6 + MEMBERS_MAX), 0.0, FOUR, counted=0.0, now_s=0.0)


def test_a_stage_without_anybody_has_nothing_to_lose_by_a_newcomer():
    for probation in (Probation(FOUR), wary()):
        assert not probation.holds(NEW, 0.0, [], counted=0.9, now_s=9.0)


def newcomer(play: Play, name: str) -> Incarnation:
    """One whose words are counted, as the coordinator's shell does."""
    one = play.join(name)
    play.coordinator.silence.on_word(one, play.now_s)
    play.ready(one, play.coordinator.step, b"w%d" % play.coordinator.step)
    return one


def test_a_newcomer_waits_in_a_run_where_another_has_died():
    play = Play()
    ann = play.serve("a")
    bob = newcomer(play, "b")
    play.lose(bob)
    play.seen(MemberReady)

    carl = newcomer(play, "c")
    play.wait(0.1)

    assert play.seen(MemberReady) == []
    play.lose(ann)
    play.wait(0.1)
    assert [one.incarnation for one in play.seen(MemberReady)] == [carl]


def test_a_newcomer_is_ready_in_the_midst_of_a_step_once_it_was_here_for_long_enough():
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.coordinator.on_decision(0, play.now_s)
    play.commit(ann, b"w1")
    play.wait(2.0 * START_S)
    bob = newcomer(play, "b")
    play.seen(MemberReady)

    for _ in range(9):
        play.wait(0.5)
        play.coordinator.silence.on_word(bob, play.now_s)
    early = play.seen(MemberReady)
    play.wait(0.5)
    play.coordinator.silence.on_word(bob, play.now_s)
    play.wait(0.5)
    play.promise(ann)  # what was launched is late by now

    assert early == []
    assert [one.incarnation for one in play.seen(MemberReady)] == [bob]


def test_a_newcomer_from_which_nothing_comes_has_no_work():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.coordinator.silence.on_word(bob, play.now_s)
    play.wait(NEWCOMER_SILENT_S)
    play.ready(bob)
    play.count(ann, 0)
    silent = play.coordinator.members.alive(bob).ready

    play.coordinator.silence.on_word(bob, play.now_s)
    play.ready(bob)

    assert not silent
    assert play.coordinator.members.alive(bob).ready


def test_a_server_of_the_last_step_may_be_silent_for_longer_than_a_newcomer():
    play = Play()
    ann = play.serve("a")
    bob = play.serve("b")
    silence = play.coordinator.silence

    assert silence.limit_s(ann.peer) == SILENT_S
    assert silence.limit_s(bob.peer) == NEWCOMER_SILENT_S


def test_one_that_came_with_the_run_may_be_silent_for_as_long_before_it_was_in_a_step():
    play = Play()
    play.serve("a")
    silence = play.coordinator.silence
    bob = play.join("b")
    silence.on_word(bob, play.now_s)
    play.wait(2.0 * START_S)
    carl = play.join("c")
    silence.on_word(carl, play.now_s)

    assert silence.limit_s(bob.peer) == SILENT_S
    assert silence.limit_s(carl.peer) == NEWCOMER_SILENT_S


def test_a_newcomer_does_not_wait_for_a_server_that_is_silent():
    """Its death is not known yet, and there is work that was never launched."""
    play = Play(replace(CONFIG, batch=BatchConfig(microbatches=9, evaluate_every=0, window=1)))
    ann = play.serve("a")
    play.count(ann, *range(9))
    play.reduce(ann)
    play.coordinator.on_decision(0, play.now_s)
    play.commit(ann, b"w1")
    play.wait(2.0 * START_S)
    play.coordinator.silence.on_word(ann, play.now_s)
    bob = newcomer(play, "b")

    def ready_within(seconds: float) -> bool:
        for _ in range(round(2 * seconds)):
            play.wait(0.5)
            play.coordinator.silence.on_word(bob, play.now_s)
        return play.coordinator.members.alive(bob).ready

    assert not ready_within(SILENT_S - 0.5)
    assert ready_within(1.0)
    assert play.coordinator.members.alive(ann)
