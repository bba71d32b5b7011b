"""Estimates: right from the first sample, close to the truth, bounded in what they remember."""

import math
import random

import pytest

from p2pswarm.base.estimates import Ema, RoundTrip, Window


def test_deadline_is_the_initial_one_until_something_was_measured():
    assert RoundTrip(initial_s=0.7).deadline_s == 0.7


def test_first_sample_sets_mean_and_deviation():
    """RFC 6298, 2.2: SRTT = R, RTTVAR = R/2, RTO = SRTT + 4 RTTVAR."""
    trip = RoundTrip()

    trip.sample(0.1)

    assert trip.srtt_s == 0.1
    assert trip.rttvar_s == 0.05
    assert trip.deadline_s == pytest.approx(0.3)


def test_later_samples_follow_the_standard():
    """RFC 6298, 2.3, by hand: the deviation is updated first, from the old mean."""
    trip = RoundTrip()
    trip.sample(0.1)

    trip.sample(0.2)

    assert trip.rttvar_s == pytest.approx(0.75 * 0.05 + 0.25 * 0.1)
    assert trip.srtt_s == pytest.approx(0.875 * 0.1 + 0.125 * 0.2)


def test_steady_path_is_held_to_the_floor_and_a_hopeless_one_to_the_ceiling():
    trip = RoundTrip(initial_s=1.0, deadline_min_s=0.05, deadline_max_s=2.0)
    for _ in range(100):
        trip.sample(0.001)
    assert trip.deadline_s == 0.05

    trip.sample(50.0)
    assert trip.deadline_s == 2.0


def test_deadlines_may_coincide():
    trip = RoundTrip(initial_s=0.5, deadline_min_s=0.5, deadline_max_s=0.5)

    trip.sample(9.0)

    assert trip.deadline_s == 0.5


def test_round_trip_too_short_for_the_clock_counts_as_zero():
    trip = RoundTrip(deadline_min_s=0.2)
    trip.sample(0.0)

    assert trip.srtt_s == 0.0
    assert trip.deadline_s == 0.2


@pytest.mark.parametrize("rtt_s", [-0.1, math.nan, math.inf])
def test_impossible_round_trip_is_our_own_mistake(rtt_s: float):
    with pytest.raises(ValueError, match="round trip"):
        RoundTrip().sample(rtt_s)


@pytest.mark.parametrize(
    ("initial_s", "deadline_min_s", "deadline_max_s"),
    [(1.0, 0.0, 2.0), (0.01, 0.05, 2.0), (3.0, 0.05, 2.0)],
)
def test_deadlines_out_of_order_are_refused(initial_s, deadline_min_s, deadline_max_s):
    with pytest.raises(ValueError, match="is not in"):
        RoundTrip(initial_s, deadline_min_s, deadline_max_s)


def test_average_of_nothing_is_nothing():
    assert Ema(0.1).value is None


def test_average_is_right_from_the_first_sample():
    """Without the correction it would start at a tenth of it."""
    ema = Ema(0.1)

    ema.add(5.0)
    assert ema.value == pytest.approx(5.0)
    for _ in range(50):
        ema.add(5.0)
        assert ema.value == pytest.approx(5.0)


def test_average_of_two_weighs_the_newer_more():
    ema = Ema(0.5)
    ema.add(1.0)
    ema.add(4.0)

    assert ema.value == pytest.approx((0.25 * 1.0 + 0.5 * 4.0) / 0.75)


def test_average_follows_a_change():
    ema = Ema(0.1)
    for sample in [1.0] * 100 + [2.0] * 100:
        ema.add(sample)

    assert ema.value == pytest.approx(2.0, abs=1e-4)


def test_weight_of_one_remembers_the_newest_only():
    ema = Ema(1.0)
    ema.add(3.0)
    ema.add(7.0)

    assert ema.value == 7.0


@pytest.mark.parametrize("weight", [0.0, -0.1, 1.1])
def test_weight_outside_its_range_is_refused(weight: float):
    with pytest.raises(ValueError, match=str(weight)):
        Ema(weight)


def test_quantile_of_nothing_is_nothing():
    assert Window(8).quantile(0.5) is None


def test_quantiles_lie_between_samples():
    window = Window(8)
    for sample in (4.0, 1.0, 3.0, 2.0):
        window.add(sample)

    assert window.quantile(0.0) == 1.0
    assert window.quantile(0.5) == 2.5
    assert window.quantile(0.9) == pytest.approx(3.7)
    assert window.quantile(1.0) == 4.0


@pytest.mark.parametrize("seed", range(10))
def test_window_is_the_last_samples_and_nothing_else(seed: int):
    rng = random.Random(seed)
    size = rng.randint(1, 20)
    window = Window(size)
    samples = [rng.choice([1.0, 2.0, rng.random()]) for _ in range(100)]
    for count, sample in enumerate(samples, start=1):
        window.add(sample)

        last = sorted(samples[max(0, count - size) : count])
        assert len(window) == len(last) <= size
        assert [window.quantile(i / max(1, len(last) - 1)) for i in range(len(last))] == (
            pytest.approx(last)
        )


def test_impossible_windows_samples_and_shares_are_our_own_mistake():
    with pytest.raises(ValueError, match="not 0"):
        Window(0)
    with pytest.raises(ValueError, match="nan"):
        Window(1).add(math.nan)
    for share in (-0.1, 1.1):
        with pytest.raises(ValueError, match="share"):
            Window(1).quantile(share)
