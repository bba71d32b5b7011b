"""DT-FM's genetic algorithm: its operators keep sizes, and it finds what the paper's does."""

import sys
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from plan.test_search import jittered

from p2pswarm.plan.dtfm import DtfmTask, LinkCosts, cost_of

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from papers.genetic import crossed, evolve, in_rings

shapes = st.sampled_from([(2, 2), (3, 4), (4, 3), (1, 3), (3, 1)])


@given(shapes, st.integers(0, 2**32))
def test_operators_keep_every_stage_of_its_size(shape, seed):
    task = DtfmTask(*shape, 1.0, 1.0)
    n = task.stages * task.pipelines
    chance = np.random.default_rng(seed)
    one, other = (chance.permutation(np.repeat(range(task.stages), task.pipelines)) for _ in "12")
    costs = LinkCosts.of(jittered(n, chance), task)

    child = crossed(one, other, task, chance)
    moved = in_rings(costs.pipeline_s_nn, child, task.stages)

    for each in (child, moved):
        assert np.bincount(each, minlength=task.stages).tolist() == [task.pipelines] * task.stages


def test_child_differs_from_its_second_parent_at_five_points_and_repairs_only():
    task = DtfmTask(4, 16, 1.0, 1.0)
    chance = np.random.default_rng(1)
    one, other = (chance.permutation(np.repeat(range(4), 16)) for _ in "12")

    child = crossed(one, other, task, chance)

    assert 0 < (child != other).sum() <= 10


def test_it_repeats_from_its_seed_and_is_better_than_chance():
    task = DtfmTask(4, 4, 1.0, 1.0)
    region_n = np.arange(16) // 4
    chance = np.random.default_rng(3)
    gbps_nn = np.where(region_n[:, None] == region_n, 5.0, 0.5) * chance.uniform(0.9, 1.1, (16, 16))
    network = jittered(16, chance)
    network.gbps_nn[:] = (gbps_nn + gbps_nn.T) / 2
    np.fill_diagonal(network.gbps_nn, np.inf)
    network.latency_s_nn[:] *= 0.01
    costs = LinkCosts.of(network, task)

    found = evolve(costs, task, 5, population=20, trials=60)
    again = evolve(costs, task, 5, population=20, trials=60)
    chance_only = evolve(costs, task, 5, population=80, trials=0)

    assert found == again
    assert found.evaluations == 80
    assert found.seconds == cost_of(costs, found.stages).seconds
    assert found.seconds < 0.9 * chance_only.seconds


def test_time_that_has_expired_ends_it():
    task = DtfmTask(2, 2, 1.0, 1.0)
    costs = LinkCosts.of(jittered(4, np.random.default_rng(1)), task)

    assert evolve(costs, task, 1, population=3, expired=lambda: True).evaluations == 3
