"""DT-FM's cost against its definition, written down again as loops over every possibility."""

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.dtfm import (
    DtfmTask,
    LinkCosts,
    best_order,
    boundary_s,
    cost_of,
    pipelines_of,
)
from p2pswarm.plan.network import DeviceNetwork

shapes = st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (2, 3), (3, 2), (4, 1)])


@st.composite
def problems(draw):
    stages, pipelines = draw(shapes)
    n = stages * pipelines
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    levels = draw(st.integers(1, 4))  # few levels: many ties, as between regions
    half_nn, other_nn = chance.integers(1, levels + 1, (2, n, n)).astype(float)
    network = DeviceNetwork.read((half_nn + half_nn.T).tolist(), (other_nn + other_nn.T).tolist())
    return network, DtfmTask(stages, pipelines, 3.0, 2.0)


def stages_of(order, task):
    rows = np.array(order).reshape(task.stages, task.pipelines)
    return tuple(tuple(map(int, row)) for row in rows)


def by_definition(network, task, stages):
    """Yuan et al., section 3, in loops."""
    data = 0.0
    for group in stages:
        for one in group:
            total = 0.0
            for other in group:
                if other != one:
                    share = task.gradient_gbit / task.pipelines / network.gbps_nn[one, other]
                    total += 2 * (network.latency_s_nn[one, other] + share)
            data = max(data, total)
    pipeline = 0.0
    for before, after in pairwise(stages):
        pipeline += min(
            max(
                2 * (network.latency_s_nn[a, b] + task.activation_gbit / network.gbps_nn[a, b])
                for a, b in zip(before, pairs, strict=True)
            )
            for pairs in permutations(after)
        )
    return data, pipeline


@given(problems(), st.randoms())
def test_cost_is_that_of_the_definition(problem, chance):
    network, task = problem
    order = list(range(network.devices))
    chance.shuffle(order)
    stages = stages_of(order, task)

    cost = cost_of(LinkCosts.of(network, task), stages)

    assert (cost.data_s, cost.pipeline_s) == pytest.approx(by_definition(network, task, stages))


@given(problems())
def test_best_order_is_the_cheapest_of_all(problem):
    network, task = problem
    costs = LinkCosts.of(network, task)
    stages = stages_of(range(network.devices), task)

    ordered = best_order(costs, stages)

    assert sorted(ordered) == sorted(stages)
    cheapest = min(cost_of(costs, each).seconds for each in permutations(stages))
    assert cost_of(costs, ordered).seconds == pytest.approx(cheapest)


@given(problems())
def test_devices_at_one_place_are_joined_by_links_within_the_boundarys_cost(problem):
    """The authors' program returns pairings that may be slower than the cost it names."""
    network, task = problem
    costs = LinkCosts.of(network, task)
    stages = stages_of(range(network.devices), task)

    placed = pipelines_of(costs, stages)

    assert [sorted(each) for each in placed] == [sorted(each) for each in stages]
    for before, after in pairwise(placed):
        slowest = max(costs.pipeline_s_nn[a, b] for a, b in zip(before, after, strict=True))
        assert slowest == boundary_s(costs, before, after)


GOOD = [[0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("latency_s", "gbps", "access_gbps", "says"),
    [
        ([[0, 1]], GOOD, None, "latency_s has 1 rows of 2 numbers: give one row for each device"),
        ([[0, 1], [1]], GOOD, None, "2 rows of 1, 2 numbers"),
        ([[0, "fast"], [1, 0]], GOOD, None, "latency_s has 2 rows"),
        ([[0]], GOOD, None, "latency_s is of 1 devices and gbps of 2"),
        ([[0, -1], [-1, 0]], GOOD, None, "latency_s between devices 0 and 1 is -1: give what was"),
        (GOOD, [[0, 0], [0, 0]], None, "gbps between devices 0 and 1 is 0"),
        (GOOD, [[0, float("nan")], [1, 0]], None, "gbps between devices 0 and 1 is nan"),
        (GOOD, [[0, 1], [2, 0]], None, "gbps from 0 to 1 is 1 and back 2: give the mean"),
        (GOOD, GOOD, [1], "access_gbps has 1 numbers: give one for each device"),
        (GOOD, GOOD, [1, 0], "access_gbps of device 1 is 0: give a rate over 0"),
    ],
)
def test_network_that_cannot_be_says_what_to_change(latency_s, gbps, access_gbps, says):
    with pytest.raises(Unusable, match=says):
        DeviceNetwork.read(latency_s, gbps, access_gbps)


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (DtfmTask(3, 1, 1, 1), "are 3 devices, and the network has 2: choose stages \\* pipelines"),
        (DtfmTask(0, 2, 1, 1), "one stage and one pipeline at least"),
        (DtfmTask(2, 1, -1, 1), "gradient_gbit is -1"),
        (DtfmTask(2, 1, 1, float("inf")), "activation_gbit is inf"),
    ],
)
def test_task_that_does_not_fit_says_what_to_change(task, says):
    with pytest.raises(Unusable, match=says):
        LinkCosts.of(DeviceNetwork.read(GOOD, GOOD), task)


def test_link_that_takes_years_is_refused():
    """The solver counts microseconds in 64 bits; such a link ended in a traceback."""
    slow = [[0, 1e-300], [1e-300, 0]]
    with pytest.raises(Unusable, match=r"between devices 0 and 1 takes .* s: give a latency and a"):
        LinkCosts.of(DeviceNetwork.read(GOOD, slow), DtfmTask(2, 1, 1, 1))
