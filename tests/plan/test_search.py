"""The solvers against every plan of small networks, and against each other on larger ones."""

from itertools import permutations

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_dtfm import stages_of

from p2pswarm.base.errors import Unusable
from p2pswarm.plan import dtfm_search as exact
from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, cost_of
from p2pswarm.plan.dtfm_search import SearchBudget, search
from p2pswarm.plan.network import DeviceNetwork, alike


def clock_of_ticks(step_s=0.05):
    """A clock that goes on by itself whenever it is read, so that no test waits."""
    now_s = 0.0

    def clock():
        nonlocal now_s
        now_s += step_s
        return now_s

    return clock


def regions(sizes, chance, task):
    """A network of regions: devices of one region are alike."""
    region_n = np.repeat(range(len(sizes)), sizes)
    latency_s_rr, gbps_rr = chance.uniform(0.01, 0.2, (2, len(sizes), len(sizes)))
    latency_s_rr, gbps_rr = (each + each.T for each in (latency_s_rr, gbps_rr))
    pick = np.ix_(region_n, region_n)
    network = DeviceNetwork.read(latency_s_rr[pick].tolist(), gbps_rr[pick].tolist())
    return LinkCosts.of(network, task)


def jittered(n, chance):
    latency_s_nn, gbps_nn = chance.uniform(0.1, 2.0, (2, n, n))
    return DeviceNetwork.read(
        (latency_s_nn + latency_s_nn.T).tolist(), (gbps_nn + gbps_nn.T).tolist()
    )


@settings(max_examples=examples(25), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([((3, 3), 2, 3), ((2, 4), 3, 2), ((1, 2, 3), 2, 3), ((2, 2, 2), 3, 2)]),
)
def test_proven_plan_is_the_cheapest_of_all(seed, shape):
    sizes, stages, pipelines = shape
    task = DtfmTask(stages, pipelines, 0.3, 0.2)
    costs = regions(sizes, np.random.default_rng(seed), task)

    found = exact.solve(costs, task, alike((costs.data_s_nn, costs.pipeline_s_nn)), limit_s=30.0)

    cheapest = min(
        cost_of(costs, stages_of(order, task)).seconds for order in permutations(range(sum(sizes)))
    )
    assert found.proven
    assert cost_of(costs, found.stages).seconds == pytest.approx(cheapest, abs=1e-4)
    assert found.bound_s <= cheapest


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_annealing_finds_the_cheapest_plan_of_a_small_network_without_classes(seed):
    task = DtfmTask(3, 2, 1.0, 1.0)
    costs = LinkCosts.of(jittered(6, np.random.default_rng(seed)), task)

    found = search(costs, task, SearchBudget(1.0, seed, clock_of_ticks()))

    cheapest = min(
        cost_of(costs, stages_of(order, task)).seconds for order in permutations(range(6))
    )
    assert found.seconds == pytest.approx(cheapest)
    assert found.lower_bound_s <= found.seconds


def test_plan_uses_every_device_once_and_costs_what_it_says():
    task = DtfmTask(4, 5, 1.0, 1.0)
    costs = LinkCosts.of(jittered(20, np.random.default_rng(1)), task)

    found = search(costs, task, SearchBudget(1.0, 1, clock_of_ticks()))

    assert sorted(device for stage in found.stages for device in stage) == list(range(20))
    assert found.seconds == cost_of(costs, found.stages).seconds
    assert found.evaluations > 0
    assert not found.proven


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1)])
def test_one_stage_or_one_pipeline_is_a_plan_too(shape):
    task = DtfmTask(*shape, 1.0, 1.0)
    n = task.stages * task.pipelines
    costs = LinkCosts.of(jittered(n, np.random.default_rng(2)), task)

    found = search(costs, task, SearchBudget(1.0, 1, clock_of_ticks()))

    assert sorted(device for stage in found.stages for device in stage) == list(range(n))


def test_annealing_is_better_than_chance_by_far():
    """16 devices in pairs: links within a pair are fast, and chance finds few of them."""
    chance = np.random.default_rng(3)
    pair_n = np.arange(16) // 2
    gbps_nn = np.where(pair_n[:, None] == pair_n, 10.0, 1.0) * chance.uniform(0.9, 1.1, (16, 16))
    gbps_nn = (gbps_nn + gbps_nn.T) / 2
    network = DeviceNetwork.read(np.zeros((16, 16)).tolist(), gbps_nn.tolist())
    task = DtfmTask(2, 8, 0.0, 1.0)
    costs = LinkCosts.of(network, task)

    found = search(costs, task, SearchBudget(1.0, 1, clock_of_ticks()))

    assert found.seconds < 0.25  # 2 Gbit at 9 Gbit/s; a pairing over any slow link takes 1.8 s


def test_devices_alike_are_those_that_can_change_places():
    region_n = np.array([0, 1, 0, 1, 1])
    cost_nn = np.array([[1.0, 5.0], [5.0, 2.0]])[np.ix_(region_n, region_n)]
    assert alike([cost_nn]) == [[0, 2], [1, 3, 4]]

    cost_nn[0, 2] = cost_nn[2, 0] = 1.5  # the class is no class with another one in it
    assert alike([cost_nn]) == [[0, 2], [1, 3, 4]]

    cost_nn[0, 1] = cost_nn[1, 0] = 6.0
    assert alike([cost_nn]) == [[0], [1], [2], [3, 4]]


def test_search_without_time_says_so():
    task = DtfmTask(2, 1, 1.0, 1.0)
    costs = LinkCosts.of(jittered(2, np.random.default_rng(1)), task)
    with pytest.raises(Unusable, match="give it a second at least"):
        search(costs, task, SearchBudget(0.0, 1, clock_of_ticks()))


def test_threads_find_the_same_plan_however_they_are_scheduled():
    task = DtfmTask(4, 4, 1.0, 1.0)
    costs = LinkCosts.of(jittered(16, np.random.default_rng(5)), task)

    one, other = (
        search(costs, task, SearchBudget(1.0, 7, clock_of_ticks(), threads=3)) for _ in "ab"
    )

    assert one == other
    assert sorted(device for stage in one.stages for device in stage) == list(range(16))
    alone = search(costs, task, SearchBudget(1.0, 7, clock_of_ticks()))
    assert one.seconds <= alone.seconds * 1.1
    assert one.evaluations > alone.evaluations
