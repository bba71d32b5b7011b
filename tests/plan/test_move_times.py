"""What moves take is learnt from those that were made."""

import pytest

from p2pswarm.plan.move_times import (
    AWAY_MAX_S,
    AWAY_PRIOR_S,
    NEWEST,
    NO_MOVES,
    PREPARED_PRIOR_S,
    UNDER_WAY_MAX,
    WAIT_PRIOR,
    MoveMeter,
)

ONE, OTHER = b"one", b"other"


def stepping(step_s: float = 10.0) -> MoveMeter:
    """A run whose steps take so long."""
    meter = MoveMeter()
    for step in range(3):
        meter.on_commit(step * step_s)
    return meter


def test_before_any_move_a_prior_counts_and_nobody_waits_while_no_step_was_seen():
    assert MoveMeter().times == NO_MOVES
    assert NO_MOVES.waits_s == 0.0
    assert stepping(10.0).times.waits_s == pytest.approx(WAIT_PRIOR * 10.0)


def test_moves_that_were_prepared_and_those_that_left_first_are_learnt_apart():
    meter = stepping()
    meter.on_order(ONE, 4.0, 100.0, prepared=True)
    meter.on_order(OTHER, 4.0, 100.0, prepared=False)

    meter.on_leave(ONE, 114.0)
    meter.on_ready(ONE, 114.2)
    meter.on_ready(OTHER, 104.5)

    times = meter.times
    assert (times.prepared, times.unprepared) == (1, 1)
    assert times.prepared_s == pytest.approx(PREPARED_PRIOR_S + NEWEST * (0.2 - PREPARED_PRIOR_S))
    assert times.unprepared_s == pytest.approx(AWAY_PRIOR_S + NEWEST * (0.5 - AWAY_PRIOR_S))
    assert times.waits_s == pytest.approx(10.0 * (WAIT_PRIOR + NEWEST * (1.0 - WAIT_PRIOR)))


def test_after_some_moves_the_prior_is_forgotten():
    meter = stepping()
    for move in range(12):
        meter.on_order(ONE, 4.0, 100.0 * move, prepared=True)
        meter.on_leave(ONE, 100.0 * move + 64.0)
        meter.on_ready(ONE, 100.0 * move + 64.02)

    assert meter.times.prepared_s == pytest.approx(0.02, abs=0.01)
    assert meter.times.waits_s == pytest.approx(60.0, rel=0.01)


def test_waits_are_learnt_in_steps_so_that_they_follow_the_steps_length():
    meter = stepping(10.0)
    for step in range(40):
        meter.on_commit(20.0 + 2.0 * step)

    assert meter.times.waits_s == pytest.approx(WAIT_PRIOR * 2.0, rel=0.01)


def test_a_link_that_was_faster_than_thought_is_no_time_gained():
    meter = stepping()
    meter.on_order(ONE, 40.0, 0.0, prepared=False)

    meter.on_ready(ONE, 10.0)

    assert meter.times.unprepared_s == pytest.approx(AWAY_PRIOR_S * (1 - NEWEST))


def test_a_move_that_ends_otherwise_tells_nothing():
    meter = stepping()
    meter.on_order(ONE, 4.0, 0.0, prepared=False)
    meter.on_end(ONE)
    meter.on_ready(ONE, 500.0)
    meter.on_order(OTHER, 4.0, 0.0, prepared=True)  # it never changed: it was told to stop
    meter.on_ready(OTHER, 500.0)
    meter.on_leave(b"nobody", 500.0)

    assert (meter.times.prepared, meter.times.unprepared) == (0, 0)
    assert meter.times.waits_s == pytest.approx(WAIT_PRIOR * 10.0)


def test_a_change_before_any_step_was_seen_tells_no_wait():
    meter = MoveMeter()
    meter.on_order(ONE, 4.0, 0.0, prepared=True)
    meter.on_leave(ONE, 50.0)

    assert meter.times == NO_MOVES


def test_one_that_is_away_for_ever_counts_for_an_hour_at_most():
    meter = stepping()
    meter.on_order(ONE, 0.0, 0.0, prepared=False)

    meter.on_ready(ONE, 1e6)

    assert meter.times.unprepared_s <= AWAY_PRIOR_S + NEWEST * AWAY_MAX_S


def test_no_more_moves_are_remembered_than_a_run_has_servers():
    meter = stepping()
    for number in range(UNDER_WAY_MAX + 1):
        meter.on_order(number.to_bytes(4), 1.0, 0.0, prepared=False)

    meter.on_ready(UNDER_WAY_MAX.to_bytes(4), 2.0)

    assert meter.times.unprepared == 0
