"""What is known of a server: means that forget, errors that tell noise from change, costs."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.wire.message import decode, encode
from p2pswarm.plan.capacity import (
    LINE_TRANSFERS,
    TELLING_BYTES,
    CapacityMeter,
    LineMeter,
    Measured,
    RecentMean,
    StageCosts,
    Transfer,
)
from p2pswarm.run.messages.balance import NOT_MEASURED, Capacity
from p2pswarm.run.messages.membership import Load

samples = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=50)


def measured(**changes) -> Measured:
    return Measured(**({"forward_s": 0.1, "backward_s": 0.2, "error_s": 0.03} | changes))


def test_nothing_is_known_before_the_first_sample():
    mean = RecentMean()

    assert (mean.value, mean.error) == (None, None)
    assert CapacityMeter().measured() == Measured()
    assert Measured().seconds(last=False) is None
    assert NOT_MEASURED.measured == Measured()


@given(samples, st.floats(0, 100))
def test_a_mean_lies_among_its_samples_and_its_error_below_their_range(values, pause_s):
    mean = RecentMean()
    for number, value in enumerate(values):
        mean.add(value, number * pause_s)

    assert min(values) * (1 - 1e-9) <= mean.value <= max(values) * (1 + 1e-9)
    assert mean.error is None or mean.error <= (max(values) - min(values)) * (1 + 1e-9) + 1e-9


def test_one_sample_tells_no_error_and_equal_ones_tell_none():
    mean = RecentMean()
    mean.add(1.0, 0.0)
    assert mean.error is None

    for second in range(1, 10):
        mean.add(1.0, float(second))

    assert mean.error == 0.0


def test_the_error_is_that_of_independent_samples():
    """Of 400 means over jitter of 20 %, some two thirds lie within one error of the truth."""
    rng, within = random.Random(1), 0
    for _ in range(400):
        mean = RecentMean(60.0)
        for second in range(200):
            mean.add(rng.uniform(0.8, 1.2), float(second))
        within += abs(mean.value - 1.0) <= mean.error

    assert 0.6 < within / 400 < 0.75


def test_a_server_that_has_slowed_down_is_known_as_slow_within_three_windows():
    mean = RecentMean(60.0)
    for second in range(1000):
        mean.add(1.0, float(second))
    for second in range(1000, 1180):
        mean.add(2.0, float(second))

    assert mean.value > 1.9


def test_a_clock_that_went_back_does_no_harm():
    mean = RecentMean()
    mean.add(1.0, 100.0)
    mean.add(3.0, 50.0)

    assert mean.value == 2.0


@pytest.mark.parametrize("window_s", [0.0, -1.0, math.nan])
def test_a_window_is_positive(window_s):
    with pytest.raises(ValueError, match="a window of"):
        RecentMean(window_s)


def test_the_longest_of_computing_and_transfers_limits_a_server():
    assert measured().seconds(last=False) == pytest.approx(0.3)
    slow_in = measured(in_bytes=8e6, link_bytes_per_s=1e7)
    assert slow_in.seconds(last=False) == pytest.approx(0.8)
    slow_out = measured(in_bytes=1e6, out_bytes=9e6, link_bytes_per_s=1e7)
    assert slow_out.seconds(last=False) == pytest.approx(0.9)
    assert slow_out.relative_error(last=False) == pytest.approx(0.03 / 0.9)
    assert measured(in_bytes=8e6).seconds(last=False) == pytest.approx(0.3), "no link is known"


def test_the_last_stage_has_no_backward_of_its_own():
    one = measured(backward_s=None)

    assert one.seconds(last=True) == pytest.approx(0.1)
    assert one.seconds(last=False) is None
    assert one.relative_error(last=False) is None


@pytest.mark.parametrize("forward_s", [0.0, math.inf])
def test_a_time_that_no_server_can_have_is_not_known(forward_s):
    assert Measured(forward_s=forward_s, backward_s=0.0).seconds(last=False) is None


def test_a_meter_tells_what_it_was_told():
    meter = CapacityMeter()
    for second in range(4):
        meter.on_wait(0.5, second)
        meter.on_input(100)
        meter.on_compute(1.0, second, backward=False)
        meter.on_input(50)
        meter.on_compute(2.0, second, backward=True)
        meter.on_output(300)
    meter.on_averaging(0.0)
    assert meter.measured().link_bytes_per_s is None, "too little was averaged to tell"
    meter.on_averaging(5e6)

    assert meter.measured(free_bytes=7, state_bytes=8) == Measured(
        forward_s=pytest.approx(1.0),
        backward_s=pytest.approx(2.0),
        error_s=pytest.approx(0.0, abs=1e-6),
        queue_s=pytest.approx(0.5),
        in_bytes=150,
        out_bytes=300,
        link_bytes_per_s=5e6,
        free_bytes=7,
        state_bytes=8,
    )


def line(*transfers: tuple[float, float], nbytes: int = 100_000, grant_s: float = 0.0) -> float:
    """What a line carries by transfers, each by its start and how long it took."""
    meter = LineMeter()
    for started_s, took_s in transfers:
        meter.on_transfer(Transfer(b"p", nbytes, started_s, took_s, grant_s))
    assert meter.bytes_per_s is not None
    return meter.bytes_per_s


def test_a_line_carries_its_bytes_in_the_time_in_which_any_are_on_their_way():
    apart, together = line((0.0, 0.1), (5.0, 0.1)), line((0.0, 0.2), (0.0, 0.2))

    assert apart == pytest.approx(1e6)
    assert together == pytest.approx(1e6)


def test_a_line_far_away_is_not_a_slow_one():
    assert line((0.0, 0.3), (5.0, 0.3), grant_s=0.2) == pytest.approx(1e6)


def test_one_slow_receiver_does_not_make_a_line_slow():
    assert line((0.0, 0.1), (1.0, 0.1), (2.0, 30.0)) == pytest.approx(1e6)


def test_a_line_that_was_throttled_is_known_as_slow_after_as_many_transfers_as_are_kept():
    fast = [(float(i), 0.01) for i in range(LINE_TRANSFERS)]
    slow = [(100.0 + i, 0.5) for i in range(LINE_TRANSFERS)]

    assert line(*fast, *slow) == pytest.approx(2e5)


def test_small_transfers_tell_nothing_of_a_line():
    meter = LineMeter()
    meter.on_transfer(Transfer(b"p", TELLING_BYTES - 1, 0.0, 1.0, 0.0))

    assert meter.bytes_per_s is None


def test_a_slow_line_that_is_fast_again_is_known_by_small_transfers_too():
    """Codecs that the slow line needs may make all pushes small."""
    meter = LineMeter()
    for number in range(2 * LINE_TRANSFERS):
        nbytes, took_s = (100_000, 1.0) if number < LINE_TRANSFERS else (10_000, 0.001)
        meter.on_transfer(Transfer(b"p", nbytes, 2.0 * number, took_s, 0.0))

    assert meter.bytes_per_s is not None
    assert meter.bytes_per_s > 5e5


def test_what_was_measured_survives_the_wire():
    one = measured(queue_s=0.5, free_bytes=10**12, link_bytes_per_s=1e9)
    load = Load(0, 0.0, 0.0, 0.0, 0, capacity=Capacity.of(one))

    assert decode(encode(load)).capacity.measured == one
    assert len(encode(load)) < 150


def test_stages_cost_the_same_until_a_server_has_served_two():
    costs = StageCosts(3, 10)
    costs.on_time(b"a", 0, 1.0)
    costs.on_time(b"b", 1, 2.0)

    assert costs.costs() == (1.0, 1.0, 1.0)


def test_a_stage_costs_more_if_servers_that_moved_there_became_slower():
    costs = StageCosts(2, 100)
    for number in range(8):
        costs.on_time(bytes([number]), 0, 1.0 + number)
        costs.on_time(bytes([number]), 1, 2.0 * (1.0 + number))

    cheap, dear = costs.costs()

    assert 1.8 < dear / cheap < 2.1


def test_stages_of_a_chosen_cut_cost_what_their_blocks_do_until_servers_tell_otherwise():
    costs = StageCosts(2, 100, (0.5, 1.5))
    assert costs.costs() == (0.5, 1.5)
    costs.on_time(b"a", 0, 1.0)
    assert costs.costs() == (0.5, 1.5)

    for number in range(8):
        costs.on_time(bytes([number]), 0, 1.0)
        costs.on_time(bytes([number]), 1, 1.0)

    one, other = costs.costs()
    assert 1.0 <= other / one < 1.2


def test_stages_that_cost_what_was_expected_stay_so():
    costs = StageCosts(2, 100, (0.5, 1.5))
    for number in range(4):
        costs.on_time(bytes([number]), 0, 1.0 + number)
        costs.on_time(bytes([number]), 1, 3.0 + 3.0 * number)

    one, other = costs.costs()

    assert other / one == pytest.approx(3.0)


@pytest.mark.parametrize("expected", [(1.0,), (0.0, 2.0), (1.0, float("inf"))])
def test_costs_that_no_stages_have_are_refused(expected):
    with pytest.raises(ValueError, match="expected costs"):
        StageCosts(2, 10, expected)


def test_memory_of_times_is_bounded():
    costs = StageCosts(20, 5)
    for number in range(100):
        for stage in range(20):
            costs.on_time(bytes([number]), stage, 1.0)

    assert len(costs._times_s) <= 5
    assert len(costs._last) <= 5
    assert max(len(times) for times in costs._times_s.values()) <= 8
