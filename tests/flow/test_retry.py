"""Backoff: doubling, jittered, bounded, and the same for the same seed."""

import random

import pytest

from p2pswarm.flow.retry import Backoff

BACKOFF = Backoff(first_s=0.1, most_s=2.0, tries_max=8)


def delays_s(seed: int) -> list[float | None]:
    rng = random.Random(seed)
    return [BACKOFF.delay_s(tried, rng) for tried in range(BACKOFF.tries_max)]


@pytest.mark.parametrize("seed", range(20))
def test_delays_double_up_to_the_ceiling_and_keep_half_of_themselves(seed: int):
    ceilings_s = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0]

    for delay_s, ceiling_s in zip(delays_s(seed), ceilings_s, strict=True):
        assert delay_s is not None
        assert ceiling_s / 2 <= delay_s <= ceiling_s


def test_peers_that_failed_together_do_not_come_back_together():
    assert len({delays_s(seed)[0] for seed in range(100)}) > 90
    assert delays_s(7) == delays_s(7)


def test_after_the_last_try_one_gives_up():
    assert BACKOFF.delay_s(8, random.Random(0)) is None
    assert Backoff(first_s=1.0, most_s=1.0, tries_max=0).delay_s(0, random.Random(0)) is None


def test_thousandth_try_is_as_patient_as_the_ceiling():
    patient = Backoff(first_s=0.1, most_s=60.0, tries_max=10_000)

    delay_s = patient.delay_s(5_000, random.Random(0))

    assert delay_s is not None
    assert 30.0 <= delay_s <= 60.0


@pytest.mark.parametrize(
    ("first_s", "most_s", "tries_max"), [(0.0, 1.0, 1), (2.0, 1.0, 1), (1.0, 1.0, -1)]
)
def test_schedule_out_of_order_is_refused(first_s: float, most_s: float, tries_max: int):
    with pytest.raises(ValueError, match="no schedule"):
        Backoff(first_s, most_s, tries_max)


def test_negative_number_of_tries_is_our_own_mistake():
    with pytest.raises(ValueError, match="-1"):
        BACKOFF.delay_s(-1, random.Random(0))
