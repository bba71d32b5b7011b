"""Tests of `sim/day_record.py`."""

import itertools

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.sim.day_record import (
    DayRecord,
    FleetSample,
    StepSample,
    best_arrangement,
    best_rate,
)

speeds_of = st.lists(st.sampled_from([0.5, 1.0, 2.0, 4.0]), min_size=1, max_size=7)
shares_of = st.lists(st.sampled_from([0.5, 1.0, 1.5]), min_size=1, max_size=3)


def exact(speeds: list[float], shares: list[float]) -> float:
    """Of all arrangements."""
    best = 0.0
    for stages in itertools.product(range(len(shares)), repeat=len(speeds)):
        sums = [0.0] * len(shares)
        for stage, speed in zip(stages, speeds, strict=True):
            sums[stage] += speed
        best = max(best, min(a / b for a, b in zip(sums, shares, strict=True)))
    return best


@settings(max_examples=examples(150), deadline=None)
@given(speeds_of, shares_of)
def test_it_is_attainable_and_near_the_best(speeds: list[float], shares: list[float]):
    found, best = best_rate(speeds, shares), exact(speeds, shares)

    assert found <= best + 1e-9
    assert found >= 0.8 * best


@given(st.integers(0, 60), st.integers(1, 8))
def test_it_is_exact_where_all_are_alike(servers: int, stages: int):
    assert best_rate([2.0] * servers, [1.0] * stages) == 2.0 * (servers // stages)


@given(speeds_of, shares_of)
def test_every_server_has_a_stage(speeds: list[float], shares: list[float]):
    stages = best_arrangement(speeds, shares)

    assert len(stages) == len(speeds)
    assert all(0 <= stage < len(shares) for stage in stages)


def test_an_exchange_mends_what_the_longest_first_leaves():
    assert best_rate([3.0, 3.0, 2.0, 2.0, 2.0], [1.0, 1.0]) == pytest.approx(6.0)


def record() -> DayRecord:
    """100 s; 2 microbatches/s possible, then 1; 10 microbatches each 10 s, but for a gap."""
    day = DayRecord(2, 10)
    day.fleets += [FleetSample(0.0, 4, 2.0), FleetSample(50.0, 2, 1.0)]
    for at_s in (10.0, 20.0, 30.0, 40.0, 50.0, 80.0, 90.0, 100.0):
        day.step(StepSample(at_s, 10, (1, 1)))
    day.ended_s = 100.0
    return day


def test_the_share_is_what_was_done_of_what_was_possible():
    assert record().possible(0.0, 100.0) == 150.0
    assert record().done(0.0, 100.0) == 80.0
    assert record().share() == pytest.approx(80 / 150)
    assert record().share(0.0, 50.0) == pytest.approx(0.5)
    assert record().share(50.0, 100.0) == pytest.approx(30 / 50)


def test_a_step_counts_evenly_over_its_time():
    assert record().done(50.0, 65.0) == pytest.approx(5.0)
    assert sum(rate for _, rate, _ in record().series(10.0)) * 10 == pytest.approx(80.0)


def test_machines_and_stalls():
    assert record().machines_mean == 3.0
    assert record().longest_stall_s == 30.0


def test_a_stall_at_the_end_counts():
    day = record()
    day.ended_s = 200.0

    assert day.longest_stall_s == 100.0


@pytest.mark.parametrize(("every", "again"), [(5, 30), (3, 20), (None, 80), (8, 0)])
def test_what_was_lost_with_the_weights_is_taken_off(every: int | None, again: int):
    day = record()
    day.on_run_loss(100.0, every)

    assert day.done_again == again
    assert day.share() == pytest.approx((80 - again) / 150)


def test_a_day_on_which_nothing_was_possible_has_no_share():
    day = DayRecord(2, 10)
    day.fleets.append(FleetSample(0.0, 1, 0.0))
    day.ended_s = 100.0

    assert day.share() == 0.0
