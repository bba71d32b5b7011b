"""The token bucket: a burst at once, a rate in the long run."""

import random

import pytest

from p2pswarm.flow.token_bucket import TokenBucket


def test_full_bucket_lets_a_burst_pass_and_no_more():
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=0.0)

    assert bucket.take(100.0, now_s=0.0)
    assert not bucket.take(1.0, now_s=0.0)


def test_refusal_takes_nothing():
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=0.0)
    bucket.take(60.0, now_s=0.0)

    assert not bucket.take(50.0, now_s=0.0)
    assert bucket.take(40.0, now_s=0.0)


def test_bucket_tells_when_the_rest_is_there():
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=0.0)
    bucket.take(100.0, now_s=0.0)

    assert bucket.wait_s(50.0, now_s=1.0) == 4.0
    assert not bucket.take(50.0, now_s=4.9)
    assert bucket.take(50.0, now_s=5.0)
    assert bucket.wait_s(0.0, now_s=5.0) == 0.0


def test_idle_time_is_saved_up_to_the_burst_only():
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=0.0)
    bucket.take(100.0, now_s=0.0)

    assert bucket.available(now_s=5.0) == 50.0
    assert bucket.available(now_s=1_000.0) == 100.0


def test_clock_that_steps_back_gives_and_costs_nothing():
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=50.0)
    bucket.take(100.0, now_s=50.0)

    assert bucket.available(now_s=40.0) == 0.0
    assert bucket.take(0.0, now_s=40.0)
    assert bucket.available(now_s=51.0) == 10.0


@pytest.mark.parametrize("seed", range(10))
def test_long_run_never_exceeds_rate_and_burst(seed: int):
    rng = random.Random(seed)
    bucket = TokenBucket(rate_per_s=100.0, burst=50.0, now_s=0.0)
    now_s, passed = 0.0, 0.0
    for _ in range(2_000):
        now_s += rng.random() * 0.1
        amount = rng.random() * 50.0
        if bucket.take(amount, now_s):
            passed += amount

    assert passed <= 50.0 + 100.0 * now_s + 1e-6
    assert passed >= 0.5 * 100.0 * now_s


def test_rate_and_burst_may_be_fractions():
    bucket = TokenBucket(rate_per_s=0.25, burst=0.5, now_s=0.0)
    bucket.take(0.5, now_s=0.0)

    assert bucket.wait_s(0.5, now_s=0.0) == 2.0


@pytest.mark.parametrize("amount", [-1.0, 100.1])
def test_amount_that_can_never_be_there_is_our_own_mistake(amount: float):
    bucket = TokenBucket(rate_per_s=10.0, burst=100.0, now_s=0.0)

    with pytest.raises(ValueError, match="never"):
        bucket.take(amount, now_s=0.0)
    with pytest.raises(ValueError, match="never"):
        bucket.wait_s(amount, now_s=0.0)


@pytest.mark.parametrize(("rate_per_s", "burst"), [(0.0, 1.0), (1.0, 0.0), (-1.0, 1.0)])
def test_bucket_that_lets_nothing_pass_is_refused(rate_per_s: float, burst: float):
    with pytest.raises(ValueError, match="nothing"):
        TokenBucket(rate_per_s, burst, now_s=0.0)
