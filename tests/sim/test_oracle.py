"""The optimum that a simulated day is measured against: attainable, and never above the bound."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.sim.oracle import best_arrangement, best_rate, bound

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


@settings(max_examples=150, deadline=None)
@given(speeds_of, shares_of)
def test_it_is_attainable_and_near_the_best(speeds: list[float], shares: list[float]):
    found, best = best_rate(speeds, shares), exact(speeds, shares)

    assert found <= best + 1e-9
    assert found >= 0.8 * best
    assert best <= bound(speeds, shares) + 1e-9


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
