"""What moves cost, against plans judged anew; what is judged at once, against one by one."""

from itertools import pairwise

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.plan.annealing import Cooling, anneal
from p2pswarm.plan.exchanges import (
    CHANCES,
    LOOK_MAX,
    LUCKS,
    cost_s,
    cross,
    exchange,
    guide_s,
    judged,
    likely_crossings,
    likely_far,
    likely_near,
    likely_own,
    planes_of,
    slowest_other,
)

pytestmark = pytest.mark.timeout(400)  # numba compiles at the first call, a minute in a new clone

SHAPES = [(2, 1), (2, 3), (3, 2), (4, 5), (6, 9), (2, 70), (70, 2)]
ALWAYS = 1e9  # dearer than any plan may become


def planes(chance, devices, levels=None):
    """Costs of both uses; few levels make ties, as within a region."""
    drawn = chance.integers(1, levels, (2, devices, devices)) if levels else None
    both = chance.uniform(0.1, 9.0, (2, devices, devices)) if drawn is None else drawn.astype(float)
    halves = [np.triu(each, 1) for each in both]
    return planes_of(*(half + half.T for half in halves))


@st.composite
def plans(draw, least_stages=2):
    shape = draw(st.sampled_from([each for each in SHAPES if each[0] >= least_stages]))
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    devices = shape[0] * shape[1]
    costs = planes(chance, devices, draw(st.sampled_from([None, 3])))
    return costs, chance.permutation(devices).reshape(shape), chance


def rule_of(parts, stages, limit, guide):
    return limit, guide / (len(parts) - 2), guide, slowest_other(parts, *stages)


def drawn_spots(chance, stages, width):
    one, other = (int(each) + 1 for each in chance.permutation(stages)[:2])
    return one, int(chance.integers(width)), other, int(chance.integers(width))


def by_definition(costs, device_sp):
    """The slowest group, the slowest link of each boundary, and the guide, in loops."""
    groups = [max(sum(costs[0, a, b] for b in row) for a in row) for row in device_sp]
    links = [[costs[1, a, b] for a, b in zip(*rows, strict=True)] for rows in pairwise(device_sp)]
    powers = [np.sqrt(np.mean(np.square(each))) for each in links]
    return max(groups) + sum(map(max, links)), np.mean(groups) + sum(powers)


def assert_as_judged_anew(costs, plan):
    anew = judged(costs, plan.device_tp[1:-1].copy())

    np.testing.assert_array_equal(plan.device_tp, anew.device_tp)
    np.testing.assert_allclose(plan.parts_tk, anew.parts_tk, atol=1e-9)
    np.testing.assert_allclose(plan.links_3tp, anew.links_3tp, atol=1e-9)


@settings(max_examples=examples(40), deadline=None)
@given(plans())
@pytest.mark.full
def test_plan_costs_what_its_slowest_group_and_links_do(drawn):
    costs, device_sp, _ = drawn

    parts = judged(costs, device_sp).parts_tk

    cost, guide = by_definition(costs, device_sp)
    assert cost_s(parts) == pytest.approx(cost)
    assert guide_s(parts) == pytest.approx(guide)


@settings(max_examples=examples(60), deadline=None)
@given(plans(), st.sampled_from([0.0, 1.0]))
def test_exchange_changes_the_cost_by_what_it_says(drawn, guide):
    costs, device_sp, chance = drawn
    plan = judged(costs, device_sp)
    for _ in range(5):
        spots = drawn_spots(chance, *device_sp.shape)
        was = cost_s(plan.parts_tk)
        rule = rule_of(plan.parts_tk, (spots[0], spots[2]), ALWAYS, guide)

        change = exchange(plan, spots, rule)

        assert cost_s(plan.parts_tk) == pytest.approx(was + change)
        assert_as_judged_anew(costs, plan)


@settings(max_examples=examples(60), deadline=None)
@given(plans(), st.sampled_from([0.0, 1.0]))
def test_exchange_is_made_if_cost_and_guide_together_stay_within_the_limit(drawn, guide):
    costs, device_sp, chance = drawn
    spots = drawn_spots(chance, *device_sp.shape)
    made = judged(costs, device_sp)
    was = cost_s(made.parts_tk) + guide * guide_s(made.parts_tk)
    exchange(made, spots, rule_of(made.parts_tk, (spots[0], spots[2]), ALWAYS, guide))
    dearer = cost_s(made.parts_tk) + guide * guide_s(made.parts_tk) - was

    for limit, is_made in ((dearer + 1e-6, True), (dearer - 1e-6, False)):
        plan = judged(costs, device_sp)
        rule = rule_of(plan.parts_tk, (spots[0], spots[2]), limit, guide)
        change = exchange(plan, spots, rule)
        assert (change < np.inf) == is_made
        assert_as_judged_anew(costs, plan)


@settings(max_examples=examples(60), deadline=None)
@given(plans())
def test_crossing_changes_the_cost_by_what_it_says(drawn):
    costs, device_sp, chance = drawn
    stages, width = device_sp.shape
    plan = judged(costs, device_sp)
    boundary = int(chance.integers(1, stages))
    one, other = (int(each) for each in chance.integers(width, size=2))
    was = cost_s(plan.parts_tk)

    change = cross(plan, (boundary, one, boundary + 1, other))

    assert cost_s(plan.parts_tk) == pytest.approx(was + change)
    assert_as_judged_anew(costs, plan)
    expected = device_sp.copy()
    expected[boundary:, [one, other]] = device_sp[boundary:, [other, one]]
    np.testing.assert_array_equal(plan.device_tp[1:-1], expected)


@settings(max_examples=examples(80), deadline=None)
@given(plans(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.01, 0.3, 3.0, 30.0]))
def test_no_exchange_that_luck_allows_is_overlooked(drawn, guide, heat):
    costs, device_sp, chance = drawn
    one, place, other, _ = drawn_spots(chance, *device_sp.shape)
    first = int(chance.integers((device_sp.shape[1] - 1) // LOOK_MAX + 1)) * LOOK_MAX
    luck = int(chance.integers(LUCKS))
    plan = judged(costs, device_sp)
    rule = rule_of(plan.parts_tk, (one, other), heat, guide)
    likely = likely_near if abs(one - other) == 1 else likely_far

    hits = likely(plan, (one, place, other, first, luck), rule)

    for turn in range(min(device_sp.shape[1] - first, LOOK_MAX)):
        limit = heat * CHANCES[luck + turn] - 1e-9  # but for rounding
        alone = judged(costs, device_sp)
        spots = one, place, other, first + turn
        if exchange(alone, spots, (limit, *rule[1:])) < np.inf:
            assert hits >> turn & 1


@settings(max_examples=examples(80), deadline=None)
@given(plans(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.01, 0.3, 3.0, 30.0]))
def test_no_exchange_within_a_pipeline_is_overlooked_but_with_stages_beside(drawn, guide, heat):
    costs, device_sp, chance = drawn
    stages = len(device_sp)
    one, place, other, _ = drawn_spots(chance, *device_sp.shape)
    first = int(chance.integers((stages - 1) // LOOK_MAX + 1)) * LOOK_MAX
    luck = int(chance.integers(LUCKS))
    plan = judged(costs, device_sp)
    where, rule = (one, place, other, first, luck), (heat, guide / stages, guide, 0.0)

    hits = likely_own(plan, where, rule)

    for turn in range(min(stages - first, LOOK_MAX)):
        other = first + turn + 1
        if abs(one - other) <= 1:
            assert not hits >> turn & 1
            continue
        limit = heat * CHANCES[luck + turn] - 1e-9  # but for rounding
        alone = judged(costs, device_sp)
        rule = rule_of(alone.parts_tk, (one, other), limit, guide)
        if exchange(alone, (one, place, other, place), rule) < np.inf:
            assert hits >> turn & 1


@settings(max_examples=examples(60), deadline=None)
@given(plans(), st.sampled_from([0.0, 1.0]), st.sampled_from([0.01, 0.3, 3.0, 30.0]))
def test_crossings_that_luck_allows_are_those_that_stay_within_its_limit(drawn, guide, heat):
    costs, device_sp, chance = drawn
    stages, width = device_sp.shape
    boundary, place = int(chance.integers(1, stages)), int(chance.integers(width))
    luck = int(chance.integers(LUCKS))
    plan = judged(costs, device_sp)
    rule = rule_of(plan.parts_tk, (boundary, boundary + 1), heat, guide)
    was = cost_s(plan.parts_tk) + guide * guide_s(plan.parts_tk)

    hits = likely_crossings(plan, (boundary, place, boundary + 1, 0, luck), rule)

    for turn in range(min(width, LOOK_MAX)):
        made = judged(costs, device_sp)
        cross(made, (boundary, place, boundary + 1, turn))
        dearer = cost_s(made.parts_tk) + guide * guide_s(made.parts_tk) - was
        margin = heat * CHANCES[luck + turn] - dearer
        if turn == place:
            assert not hits >> turn & 1
        elif abs(margin) > 1e-9:
            assert (hits >> turn & 1) == (margin > 0)


@settings(max_examples=examples(30), deadline=None)
@given(plans(), st.integers(1, 2**63 - 1))
def test_annealed_plan_has_every_device_once_and_costs_what_is_said(drawn, seed):
    costs, device_sp, _ = drawn
    devices = sorted(device_sp.ravel())
    was = cost_s(judged(costs, device_sp).parts_tk)
    best_sp, luck = device_sp.copy(), np.array([seed], dtype=np.uint64)

    least, guided, moves = anneal(
        costs, device_sp, best_sp, Cooling(2000, 5.0, 0.01, 0.3, 0.1, 1.0, 0.1), luck
    )

    assert sorted(best_sp.ravel()) == sorted(device_sp.ravel()) == devices
    assert least == pytest.approx(cost_s(judged(costs, best_sp).parts_tk))
    assert least <= was
    parts = judged(costs, device_sp).parts_tk
    assert guided == pytest.approx(cost_s(parts) + 0.1 * guide_s(parts))
    assert moves >= 2000


def test_way_out_of_the_slowest_group_pays_for_a_slower_link():
    """Devices 6 and 7 exchange for 10 s, and the last one's link to device 3 takes 5 s."""
    data_nn, pipeline_nn = np.ones((8, 8)) - np.eye(8), np.zeros((8, 8))
    data_nn[6, 7] = data_nn[7, 6] = 10.0
    pipeline_nn[7, 3] = pipeline_nn[3, 7] = 5.0
    costs = planes_of(data_nn, pipeline_nn)
    plan = judged(costs, np.arange(8).reshape(4, 2))
    where, rule = (1, 1, 4, 0, 0), (1e-6, 0.0, 0.0, 1.0)

    assert likely_own(plan, where, rule) >> 3 & 1
    assert likely_far(plan, where, rule) >> 1 & 1
    assert exchange(plan, (1, 1, 4, 1), rule) == pytest.approx(-4.0)


def test_luck_is_drawn_by_metropolis_rule():
    """An exponential distribution: the mean is 1, and half of it is over the logarithm of 2."""
    once = CHANCES[:LUCKS]

    assert once.mean() == pytest.approx(1.0, abs=1e-3)
    assert (once > np.log(2)).mean() == 0.5
    np.testing.assert_array_equal(CHANCES[LUCKS:], CHANCES[:LOOK_MAX])
