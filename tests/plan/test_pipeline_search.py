"""Plans of a few devices are all tried: the best is proven, and a search does not wait."""

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_pipelined import GIB, drafts, fleet, fleets, load
from plan.test_search import clock_of_ticks

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.codec_costs import codec_of
from p2pswarm.plan.fleet import STATE_BYTES_PER_VALUE
from p2pswarm.plan.pipeline_annealing import PENALTY_S, Draft, parts_of, step_s
from p2pswarm.plan.pipeline_cost import needs_of
from p2pswarm.plan.pipeline_search import (
    PlanEffort,
    every_draft,
    fastest_draft,
    loads_of,
    one_more,
    plan_count,
    search_pipelined,
)


def all_tried():
    return PlanEffort(1.0, 1, clock_of_ticks())


def as_values(plans):
    return {(tuple(each.stage_n), tuple(each.borders_s)) for each in plans}


@pytest.mark.parametrize(("devices", "blocks", "stages"), [(1, 1, 1), (3, 4, 2), (4, 3, 3)])
def test_every_plan_comes_once_and_the_count_is_no_less(devices, blocks, stages):
    found = list(every_draft(devices, blocks, stages))

    assert as_values(found) == as_values(drafts(devices, blocks, stages))
    assert len(as_values(found)) == len(found) <= plan_count(devices, blocks, stages)


@settings(max_examples=examples(20), deadline=None)
@given(st.data())
def test_no_plan_of_a_few_devices_is_faster_than_the_one_found(data):
    some, work = data.draw(fleets(3)), load(3)
    needs = needs_of(some, work)
    least_s = min(
        step_s(needs, parts_of(needs, each), 0.0)
        for count in (1, 2, 3)
        for each in drafts(3, 3, count)
    )

    seconds, _ = fastest_draft(needs, [1, 2, 3])

    assert seconds == least_s
    if least_s < PENALTY_S:
        found = search_pipelined(some, [work], [1, 2, 3], all_tried())
        assert found.seconds == pytest.approx(least_s)
        assert found.proven


def test_codec_and_stages_are_chosen_together():
    narrow = fleet([100.0, 100.0], access_gbps=[0.01, 0.01])
    loads = loads_of(load(boundary_values=1e6), [codec_of("raw"), codec_of("int8")])

    assert search_pipelined(narrow, loads, [2], all_tried()).codec.name == "int8"


def test_a_plan_that_is_known_counts_though_its_number_of_stages_is_not_asked_for():
    three = fleet([10.0, 10.0, 10.0], access_gbps=[0.001] * 3)
    alone = Draft(np.array([0, -1, -1]), np.array([0, 4]))

    found = search_pipelined(three, [load()], [alone, 3], all_tried())

    assert found.stages == ((0,),)


def test_devices_too_small_for_every_cut_say_so():
    block_gib = 1e6 * STATE_BYTES_PER_VALUE / GIB
    two = fleet([1.0] * 2, memory_gib=[2.6 * block_gib, 2.45 * block_gib])
    work = load(values_k=np.array([1e6, 1.5e6, 1.5e6, 1e6]))

    with pytest.raises(Unusable, match="name devices with more memory"):
        search_pipelined(two, [work], [2], all_tried())


def test_all_places_of_one_more_device_are_tried():
    two = fleet([10.0, 1.0])
    work = load(microbatches=512, values_k=np.full(4, 10.0))
    found = search_pipelined(two, [work], [2], all_tried())

    gains = one_more(two, found, work, all_tried())

    assert [kind for kind, _ in gains] == ["kind10", "kind1"]
    assert gains[0][1] < gains[1][1] <= found.seconds
