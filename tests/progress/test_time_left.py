"""When a run is done: right for a steady one, wide for a fickle one, and never more than known."""

from random import Random

import pytest

from p2pswarm.progress.time_left import (
    LATEST,
    RECENT_PARTS,
    RECENT_S,
    SLOT_S,
    SLOTS_MAX,
    EndEstimate,
    TimeLeft,
)

HOUR_S = 3_600.0


def steady(step_s: float, steps: int) -> TimeLeft:
    """A run whose steps all take as long."""
    run = TimeLeft()
    run.begin(0.0, 0)
    for step in range(1, steps + 1):
        run.on_step(step * step_s, step)
    return run


def found(run: TimeLeft, at: float, steps: int) -> EndEstimate:
    estimate = run.estimate(at, steps)
    assert estimate is not None
    assert 0 < estimate.earliest_s < estimate.left_s < estimate.latest_s
    return estimate


def test_nothing_is_said_before_there_is_anything_to_go_by():
    run = TimeLeft()
    assert run.estimate(5.0, 100) is None

    run.begin(0.0, 0)
    run.on_step(1.0, 1)

    assert run.estimate(1.0, 100) is None


def test_a_clock_that_was_set_forward_by_years_begins_the_history_anew():
    """A machine without a clock of its own begins in 1970."""
    run = steady(1.0, 100)
    now = 1_764_000_000.0
    run.on_step(now, 101)
    for step in range(102, 202):
        run.on_step(now + step - 101, step)

    assert found(run, now + 100.0, 301).left_s == pytest.approx(100.0, rel=0.1)


def test_nothing_is_said_of_a_run_that_has_done_all_its_steps():
    assert steady(1.0, 10).estimate(10.0, 10) is None


@pytest.mark.parametrize("step_s", [0.05, 1.0, 30.0, 900.0])
def test_a_steady_run_ends_when_its_steps_say(step_s):
    run = steady(step_s, 400)

    estimate = found(run, 400 * step_s, 800)

    assert estimate.left_s == pytest.approx(400 * step_s, rel=0.02)
    assert estimate.spread_s < 0.15 * estimate.left_s


def test_a_long_steady_history_narrows_the_spread():
    short, long = steady(30.0, 60), steady(30.0, 2_400)

    narrow = found(long, 2_400 * 30.0, 4_800).spread_s / (2_400 * 30.0)
    wide = found(short, 60 * 30.0, 120).spread_s / (60 * 30.0)

    assert narrow < wide


def test_a_run_that_has_lost_servers_is_held_to_be_fickle():
    calm, hurt = steady(10.0, 100), steady(10.0, 100)

    hurt.on_loss()

    assert found(hurt, 1_000.0, 300).spread_s > 2 * found(calm, 1_000.0, 300).spread_s


def test_the_next_hour_is_guessed_by_the_last_one_and_what_is_far_by_the_whole_history():
    run = TimeLeft()
    run.begin(0.0, 0)
    at, step = 0.0, 0
    for step_s, _hours in ((10.0, 10), (40.0, 1)):
        while at < (10 if step_s == 10.0 else 11) * HOUR_S:
            at, step = at + step_s, step + 1
            run.on_step(at, step)

    near, far = found(run, at, step + 10), found(run, at, step + 10_000)

    assert near.left_s / 10 > 35.0
    assert 10.0 < far.left_s / 10_000 < 13.0


def test_a_run_that_stands_still_is_later_each_minute():
    run = steady(10.0, 360)

    ends = [at + found(run, at, 720).left_s for at in (3_600.0, 4_200.0, 4_800.0, 20_000.0)]

    assert ends == sorted(ends)


def test_after_a_return_to_a_checkpoint_more_is_left():
    run = steady(10.0, 300)
    before = found(run, 3_000.0, 600).left_s

    run.on_step(3_001.0, 100)

    assert found(run, 3_001.0, 600).left_s > 1.5 * before


def test_the_latest_end_is_a_statement_however_wild_the_speed():
    run = TimeLeft()
    run.begin(0.0, 0)
    run.on_loss()
    at, step, rng = 0.0, 0, Random("wild")
    for _ in range(40):
        at, step = at + rng.choice((1.0, 4_000.0)), step + 1
        run.on_step(at, step)

    estimate = found(run, at, 1_000)

    assert estimate.latest_s <= (LATEST + 1e-9) * estimate.left_s


def test_what_is_remembered_is_bounded():
    run = TimeLeft()
    run.begin(0.0, 0)
    for step in range(1, 200_000):
        run.on_step(step * 20.0, step)

    assert len(run._slots) <= SLOTS_MAX
    assert len(run._recent) <= RECENT_PARTS + 2


@pytest.mark.parametrize("jump_s", [-1e9, 1e12, SLOTS_MAX * SLOT_S * 3, -RECENT_S])
def test_a_clock_that_was_set_ends_nothing(jump_s):
    run = steady(10.0, 500)

    run.on_step(5_000.0 + jump_s, 501)
    run.on_step(5_010.0 + jump_s, 502)

    estimate = run.estimate(5_020.0 + jump_s, 1_000)
    assert estimate is None or estimate.left_s > 0
