"""`bench/papers/dtfm_program.py`: what DT-FM's program does in an iteration, and its log."""

import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture(scope="module")
def program():
    """The module, beside those that it imports."""
    sys.path.insert(0, str(BENCH))
    try:
        from papers import dtfm_program  # noqa: PLC0415

        yield dtfm_program
    finally:
        sys.path.remove(str(BENCH))


def test_a_barrier_of_two_takes_one_round_trip(program):
    delay_s_nn = np.array([[0.0, 0.1], [0.1, 0.0]])

    assert program.barrier_s(delay_s_nn) == pytest.approx(0.2)


def test_a_barrier_of_four_takes_two_round_trips_where_all_are_as_far(program):
    assert program.barrier_s(np.full((4, 4), 0.1)) == pytest.approx(0.4)


def test_averaging_is_as_slow_as_the_slowest_link_of_the_ring_there_and_back(program):
    gbps_nn, delay_s_nn = np.full((64, 64), 2.0), np.zeros((64, 64))
    gbps_nn[16, 24] = 0.5  # from the third pipeline to the fourth

    assert program.averaging_s(delay_s_nn, gbps_nn, 0, 1.0) == pytest.approx(4.0)


def test_a_turn_is_what_was_measured_and_below_that_what_transfers_take(program):
    assert program.turn_s(2.0) == pytest.approx((10.69 - 14 * 0.005) / 103)
    slower = program.turn_s(0.5) - program.turn_s(1.0)
    assert slower == pytest.approx(2 * program.MICROBATCH_GBIT)


def test_the_logged_runs_are_met_within_what_was_asked(program):
    pytest.importorskip("ortools")
    pytest.importorskip("numba")
    from papers import dtfm  # noqa: PLC0415

    errors = [abs(row["error"]) for row in dtfm.logged()]

    assert len(errors) == 27
    assert np.mean(errors) < 0.03
    assert max(errors) < 0.12
