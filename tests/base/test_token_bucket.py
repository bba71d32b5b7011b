"""Bursts and the average of what may be done only so often."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.token_bucket import TokenBucket

EVERY_S, BURST = 10.0, 3


def test_a_burst_and_then_one_at_a_time():
    allowance = TokenBucket(EVERY_S, BURST)

    assert [allowance.take(5.0) for _ in range(4)] == [True, True, True, False]
    assert allowance.next_s() == 5.0 + EVERY_S
    assert not allowance.take(4.9 + EVERY_S)
    assert allowance.left(5.0 + EVERY_S)
    assert allowance.take(5.0 + EVERY_S)
    assert not allowance.take(5.0 + EVERY_S)


def test_what_is_not_used_is_kept_up_to_the_burst():
    allowance = TokenBucket(EVERY_S, BURST)
    for _ in range(BURST):
        allowance.take(0.0)

    assert [allowance.take(1000.0) for _ in range(4)] == [True, True, True, False]


def test_to_ask_uses_nothing():
    allowance = TokenBucket(EVERY_S, 1)

    assert allowance.left(0.0)
    assert allowance.left(0.0)
    assert allowance.take(0.0)
    assert not allowance.left(0.0)


@given(st.lists(st.integers(0, 40), max_size=200))
def test_no_time_has_more_uses_than_the_burst_and_its_share(pauses_s):
    allowance, now_s = TokenBucket(EVERY_S, BURST), 0
    taken_s: list[int] = []
    for pause_s in pauses_s:
        now_s += pause_s
        if allowance.take(now_s):
            taken_s.append(now_s)
    for first, begin_s in enumerate(taken_s):
        for count, end_s in enumerate(taken_s[first:], start=1):
            assert count <= BURST + (end_s - begin_s) / EVERY_S


def test_several_uses_at_once_pay_for_each():
    allowance = TokenBucket(EVERY_S, BURST)

    assert not allowance.take(5.0, BURST + 1)
    assert allowance.next_s(BURST + 1) == float("inf")
    assert allowance.take(5.0, 2)
    assert not allowance.take(5.0, 2)
    assert allowance.left(5.0)
    assert allowance.next_s(2) == 5.0 + EVERY_S
    assert allowance.take(5.0 + EVERY_S, 2)
