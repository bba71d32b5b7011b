"""The bound against every plan of small networks, and where it is known to be close."""

from functools import cache
from itertools import pairwise, permutations

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_dtfm import problems

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts
from p2pswarm.plan.dtfm_search import least_cost_s

SHAPES = [(2, 2), (2, 3), (3, 2), (4, 1), (4, 2), (2, 4), (1, 3), (5, 1)]


@cache
def plans_of(stages, pipelines):
    """Every plan up to names: stages as sets in order, one direction, pairings apart."""
    n = stages * pipelines

    def rest(left, before):
        if not left:
            return [before]
        found = []
        for order in permutations(left, pipelines):
            if list(order) == sorted(order):
                found += rest([each for each in left if each not in order], [*before, order])
        return found

    return [plan for plan in rest(list(range(n)), []) if plan <= plan[::-1]]


def cheapest_of(costs, task):
    """By a look at every plan and every pairing; what pairs of stages cost is kept."""
    groups, borders = {}, {}

    def group(one):
        if one not in groups:
            groups[one] = costs.data_s_nn[np.ix_(one, one)].sum(axis=1).max()
        return groups[one]

    def border(one, other):
        if (one, other) not in borders:
            links = costs.pipeline_s_nn
            borders[one, other] = min(
                max(links[a, b] for a, b in zip(one, pairs, strict=True))
                for pairs in permutations(other)
            )
        return borders[one, other]

    return min(
        max(map(group, plan)) + sum(border(one, other) for one, other in pairwise(plan))
        for plan in plans_of(task.stages, task.pipelines)
    )


def costs_of(data_nn, pipeline_nn):
    """Costs that are the same both ways, nothing to itself."""
    both = [np.triu(each, 1) + np.triu(each, 1).T for each in (data_nn, pipeline_nn)]
    return LinkCosts(*both)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(SHAPES), st.integers(2, 30), st.booleans())
def test_no_plan_of_any_costs_is_cheaper(seed, shape, levels, alike):
    """Few levels make islands and ties; unlike matrices hold a bound that mixes up the two uses."""
    task = DtfmTask(*shape, 1.0, 1.0)
    chance = np.random.default_rng(seed)
    data_nn, pipeline_nn = chance.integers(1, levels, (2, *[task.stages * task.pipelines] * 2))
    costs = costs_of(pipeline_nn if alike else data_nn, pipeline_nn.astype(float))

    assert least_cost_s(costs, task) <= cheapest_of(costs, task) + 1e-9


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([each for each in SHAPES if each[0] > 1]),
    st.integers(2, 4),
)
def test_no_plan_of_regions_is_cheaper(seed, shape, regions):
    """Regions of chance sizes with jitter: what islands say about lengths of runs is at work."""
    task = DtfmTask(*shape, 1.0, 1.0)
    chance = np.random.default_rng(seed)
    region_n = chance.integers(0, regions, task.stages * task.pipelines)
    far_nn = np.where(region_n[:, None] == region_n, 1.0, chance.uniform(2.0, 9.0))
    costs = costs_of(*(far_nn * chance.uniform(0.8, 1.3, (2, *far_nn.shape))))

    assert least_cost_s(costs, task) <= cheapest_of(costs, task) + 1e-9


@settings(max_examples=examples(30))
@given(problems())
def test_no_plan_of_a_network_is_cheaper(problem):
    network, task = problem
    costs = LinkCosts.of(network, task)

    assert least_cost_s(costs, task) <= cheapest_of(costs, task) + 1e-9


def test_regions_that_fill_no_run_force_a_slow_boundary():
    """Three and five of eight: no run of four stages has as many of a region in each of them."""
    region_n = np.array([0, 0, 0, 1, 1, 1, 1, 1])
    far_nn = np.where(region_n[:, None] == region_n, 1.0, 10.0)
    costs = costs_of(far_nn * 0.01, far_nn)
    task = DtfmTask(4, 2, 1.0, 1.0)

    assert least_cost_s(costs, task) > 1.0 + 1.0 + 10.0
    assert least_cost_s(costs, task) <= cheapest_of(costs, task)


def test_groups_over_all_regions_are_paid_for_where_boundaries_stay_within():
    """Four regions of four: with fast boundaries each group has one device of each region."""
    region_n = np.arange(16) // 4
    far_nn = np.where(region_n[:, None] == region_n, 1.0, 100.0)
    costs = costs_of(far_nn, far_nn)

    assert least_cost_s(costs, DtfmTask(4, 4, 1.0, 1.0)) == pytest.approx(3 + 3 * 100)
    slow = costs_of(far_nn, np.where(far_nn > 1.0, 1000.0, 1.0))
    assert least_cost_s(slow, DtfmTask(4, 4, 1.0, 1.0)) == pytest.approx(3 * 100 + 3 * 1)


def test_many_stages_have_a_bound_too():
    """Ways to cut them into runs are not counted; what each device's nearest cost is."""
    chance = np.random.default_rng(1)
    costs = costs_of(*chance.uniform(1.0, 2.0, (2, 40, 40)))

    assert 19 < least_cost_s(costs, DtfmTask(20, 2, 1.0, 1.0)) < 40


def test_one_device_costs_nothing():
    assert least_cost_s(costs_of(*np.zeros((2, 1, 1))), DtfmTask(1, 1, 1.0, 1.0)) == 0
