"""What a day's record says: shares of the optimum, stalls, and what was lost with weights."""

import pytest

from p2pswarm.sim.day_record import DayRecord, StepSample


def record() -> DayRecord:
    """100 s; 2 microbatches/s possible, then 1; 10 microbatches each 10 s, but for a gap."""
    day = DayRecord(2, 10)
    day.fleet(0.0, 4, 2.0)
    day.fleet(50.0, 2, 1.0)
    for at_s in (10.0, 20.0, 30.0, 40.0, 50.0, 80.0, 90.0, 100.0):
        day.step(StepSample(at_s, 10, (1, 1)))
    day.end(100.0)
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
    day.end(200.0)

    assert day.longest_stall_s == 100.0


@pytest.mark.parametrize(("every", "again"), [(5, 30), (3, 20), (None, 80), (8, 0)])
def test_what_was_lost_with_the_weights_is_taken_off(every: int | None, again: int):
    day = record()
    day.run_lost(100.0, every)

    assert day.done_again == again
    assert day.share() == pytest.approx((80 - again) / 150)


def test_a_day_on_which_nothing_was_possible_has_no_share():
    day = DayRecord(2, 10)
    day.fleet(0.0, 1, 0.0)
    day.end(100.0)

    assert day.share() == 0.0
