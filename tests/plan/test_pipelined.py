"""The pipelined step against its definition and against every plan of small fleets."""

from dataclasses import asdict
from itertools import combinations, pairwise, product

import numpy as np
import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from plan.test_search import clock_of_ticks

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.codec_costs import codec_of
from p2pswarm.plan.fleet import BYTES_PER_GBIT, STATE_BYTES_PER_VALUE, DeviceFleet, WorkLoad
from p2pswarm.plan.network import DeviceNetwork
from p2pswarm.plan.pipeline_annealing import PENALTY_S, Draft, parts_of, step_s
from p2pswarm.plan.pipeline_cost import connections_of, needs_of, step_cost
from p2pswarm.plan.pipeline_search import (
    PlanEffort,
    loads_of,
    one_more,
    search_pipelined,
    step_bound_s,
)

GIB = 2.0**30


def fleet(flops, memory_gib=None, access_gbps=None, gbps=None, connections=1):
    n = len(flops)
    links = np.full((n, n), 1.0) if gbps is None else np.array(gbps, dtype=float)
    network = DeviceNetwork.read(np.full((n, n), 0.02).tolist(), links.tolist())
    return DeviceFleet(
        tuple(f"d{number}" for number in range(n)),
        tuple(f"kind{flop:g}" for flop in flops),
        np.array(flops, dtype=float),
        np.array(memory_gib or [64.0] * n) * GIB,
        np.array(access_gbps or [10.0] * n) * BYTES_PER_GBIT,
        network,
        connections,
    )


def load(blocks=4, flops=1.0, **more):
    given = {
        "microbatches": 32,
        "flops_k": np.full(blocks, flops),
        "values_k": np.full(blocks, 1e6),
        "boundary_values": 1e5,
        "codec": codec_of("bf16"),
    }
    return WorkLoad(**(given | more))


def searching(seconds=1.0, seed=1):
    """Anneal, also where so few plans are that all could be tried."""
    return PlanEffort(seconds, seed, clock_of_ticks(), plans_max=0)


def draft(stage_n, borders):
    return Draft(np.array(stage_n, dtype=np.int64), np.array(borders, dtype=np.int64))


@st.composite
def fleets(draw, n):
    chance = np.random.default_rng(draw(st.integers(0, 2**32)))
    rates = chance.uniform(0.05, 2.0, (n, n))
    memory = chance.choice([0.05, 64.0], n, p=[0.2, 0.8]).tolist()
    return fleet(
        chance.uniform(1.0, 20.0, n).tolist(),
        memory,
        chance.uniform(0.05, 2.0, n).tolist(),
        (rates + rates.T).tolist(),
    )


def drafts(devices, blocks, stages):
    """Every plan."""
    for stage_n in product(range(-1, stages), repeat=devices):
        if set(range(stages)) <= set(stage_n):
            for inner in combinations(range(1, blocks), stages - 1):
                yield draft(stage_n, [0, *inner, blocks])


def test_step_of_two_equal_stages_by_hand():
    """A microbatch is 2 flops in each stage, a device does 10 a second: 0.2 s and 5 a second."""
    two = fleet([10.0, 10.0])
    work = load()

    cost = step_cost(two, work, draft([0, 1], [0, 2, 4]))

    hop_s = 2 * (0.02 + 2e5 / BYTES_PER_GBIT)
    assert cost.pace_s == pytest.approx(0.2)
    assert cost.fill_s == pytest.approx(0.4 + hop_s)
    assert cost.averaging_s == 0.0
    assert cost.seconds == pytest.approx(31 * 0.2 + 0.4 + hop_s)
    assert cost.limit == "computing in stage 0"


def test_devices_of_a_stage_add_up_and_average():
    three = fleet([10.0, 10.0, 20.0])

    cost = step_cost(three, load(), draft([0, 0, 1], [0, 2, 4]))

    assert cost.pace_s == pytest.approx(0.1)
    nbytes = 2e6 * 4.0
    assert cost.averaging_s == pytest.approx(nbytes / BYTES_PER_GBIT + 2 * 0.02)
    assert cost.seconds == pytest.approx(31 * 0.1 + cost.fill_s + cost.averaging_s)


def test_averaging_that_overlaps_costs_only_what_is_longer():
    three = fleet([10.0, 10.0, 20.0])
    work = load(averaging_overlaps=True, averaging_bytes_per_value=4e3)

    cost = step_cost(three, work, draft([0, 0, 1], [0, 2, 4]))

    assert cost.seconds == cost.averaging_s > 31 * cost.pace_s


def test_own_line_bounds_a_device_and_is_named():
    narrow = fleet([10.0, 10.0], access_gbps=[10.0, 8e-3])  # 1 MB/s, 0.2 MB a microbatch

    cost = step_cost(narrow, load(), draft([0, 1], [0, 2, 4]))

    assert cost.pace_s == pytest.approx(0.2)
    assert cost.busy_s == pytest.approx((1.0, 1.0))
    slower = step_cost(narrow, load(boundary_values=1e6), draft([0, 1], [0, 2, 4]))
    assert slower.pace_s == pytest.approx(2.0)
    assert slower.limit == "the lines of its devices in stage 1"


def test_pace_is_that_of_links_which_must_share_out_the_work():
    """Each device alone could send enough, but the fast links lead to the slow device."""
    gbps = np.full((4, 4), 1e-5)
    for one, other in ((0, 2), (1, 2)):
        gbps[one, other] = gbps[other, one] = 1.0
    four = fleet([10.0, 10.0, 2.0, 18.0], gbps=gbps)

    cost = step_cost(four, load(), draft([0, 0, 1, 1], [0, 2, 4]))

    assert 1 / cost.pace_s == pytest.approx(1.0, abs=0.1)
    assert cost.limit.startswith("links between stages")


def test_connections_are_as_many_as_the_plan_sends_over():
    two = fleet([10.0, 10.0], gbps=[[0, 4e-3], [4e-3, 0]], connections=8)  # 0.5 MB/s each
    cost = step_cost(two, load(), draft([0, 1], [0, 2, 4]))

    assert cost.pace_s == pytest.approx(0.2)  # 5 of 0.2 MB a second: 1 MB/s
    assert connections_of(two, load(), cost) == [2, 2]


@settings(max_examples=examples(25), deadline=None)
@given(st.data())
def test_no_plan_is_under_the_bound_and_the_largest_flow_is_within_the_cuts(data):
    devices, blocks, stages = data.draw(
        st.sampled_from([(3, 3, 2), (4, 3, 2), (4, 4, 3), (3, 2, 1)])
    )
    some = data.draw(fleets(devices))
    work = load(blocks, microbatches=data.draw(st.integers(1, 64)))
    bound_s = step_bound_s(some, work, stages)

    for each in drafts(devices, blocks, stages):
        needs = needs_of(some, work)
        cut_s = step_s(needs, parts_of(needs, each), 0.0)
        if cut_s < PENALTY_S:
            assert bound_s <= cut_s * (1 + 1e-9)
            assert step_cost(some, work, each).seconds >= cut_s * (1 - 1e-6)


@settings(max_examples=10, deadline=None)
@given(st.data())
@pytest.mark.full
def test_search_finds_about_the_fastest_of_all_small_plans(data):
    some = data.draw(fleets(4))
    work = load(3)
    needs = needs_of(some, work)
    fastest_s = min(
        step_s(needs, parts_of(needs, each), 0.0)
        for count in (1, 2)
        for each in drafts(4, 3, count)
    )
    if fastest_s >= PENALTY_S:
        return

    found = search_pipelined(some, [work], [1, 2], searching(2.0, 1))

    assert found.lower_bound_s <= found.seconds
    assert found.seconds >= fastest_s * (1 - 1e-9)
    needed = step_s(needs, parts_of(needs, _draft_of(found, 4)), 0.0)
    assert needed <= 1.001 * fastest_s


def _draft_of(found, devices):
    stage_n = [-1] * devices
    for stage, group in enumerate(found.stages):
        for device in group:
            stage_n[device] = stage
    return draft(stage_n, found.borders)


def test_plan_gives_slow_devices_less_and_large_stages_to_those_who_can_hold_them():
    """One device holds three of four blocks, the other one: no other cut is possible."""
    block_gib = 1e6 * STATE_BYTES_PER_VALUE / GIB
    two = fleet([10.0, 10.0], memory_gib=[1.5 * block_gib, 3.5 * block_gib])

    found = search_pipelined(two, [load()], [2], searching(1.0, 1))

    cut = dict(zip(found.stages, [b - a for a, b in pairwise(found.borders)], strict=True))
    assert cut == {(0,): 1, (1,): 3}


def test_codec_is_chosen_with_the_placement():
    narrow = fleet([100.0, 100.0], access_gbps=[0.01, 0.01])
    loads = loads_of(load(boundary_values=1e6), [codec_of("raw"), codec_of("int8")])

    assert search_pipelined(narrow, loads, [2], searching(1.0, 1)).codec.name == "int8"


def test_device_whose_line_would_hold_all_up_is_not_used():
    three = fleet([10.0, 10.0, 10.0], access_gbps=[10.0, 10.0, 1e-4])
    three.network.gbps_nn[2, :2] = three.network.gbps_nn[:2, 2] = 1e-4
    work = load(averaging_bytes_per_value=4.0)

    found = search_pipelined(three, [work], [1, 2], searching(1.0, 1))

    assert found.unused == (2,)


def test_one_stage_holds_and_averages_a_tied_tensor_once():
    """Two devices of 0.05 GiB: 20 bytes a value, four million values, of which one is tied."""
    tied = load(tied_values=1.5e6)
    small = fleet([1.0, 1.0], memory_gib=[0.05, 0.05])
    plan = draft([0, 0], [0, 4])

    assert load().fitting(small, 1) == 0
    assert tied.fitting(small, 1) == 1
    assert [parts_of(needs_of(small, each), plan).stages_sx[0, 3] for each in (load(), tied)] == [
        2.0,
        0.0,
    ]
    averaging_s = [step_cost(small, each, plan).averaging_s for each in (load(), tied)]
    assert averaging_s[1] < averaging_s[0]


def test_several_stages_have_a_tied_tensor_at_both_ends():
    two, plan = fleet([1.0, 1.0]), draft([0, 1], [0, 2, 4])

    tied, untied = (step_cost(two, each, plan) for each in (load(tied_values=1e6), load()))
    assert asdict(tied) == asdict(untied)
    assert load(tied_values=1e6).whole_values(2) == 4e6


def test_one_more_of_what_is_needed_brings_most():
    three = fleet([10.0, 10.0, 1.0])
    work = load(microbatches=512, values_k=np.full(4, 10.0))
    found = search_pipelined(three, [work], [2], searching(1.0, 1))

    gains = one_more(three, found, work, searching(1.0, 1))

    assert [kind for kind, _ in gains] == ["kind10", "kind1"]
    assert gains[0][1] < 0.9 * found.seconds


@pytest.mark.parametrize(
    ("some", "work", "stages", "says"),
    [
        (fleet([1.0] * 8), load(4), [5], "5 stages of a model of 4 blocks: choose 4 or fewer"),
        (fleet([1.0] * 2), load(4), [3], "3 stages need 3 devices, and there are 2"),
        (
            fleet([1.0] * 2, memory_gib=[0.01, 0.01]),
            load(4),
            [1, 2],
            "no cut into 2 stages fits the devices' memory.*more memory are needed",
        ),
        (
            fleet([1.0] * 2, memory_gib=[64.0, 0.001]),
            load(4),
            [2],
            "no cut into 2 stages fits",
        ),
    ],
)
def test_task_that_no_plan_can_do_says_what_to_change(some, work, stages, says):
    with pytest.raises(Unusable, match=says):
        search_pipelined(some, [work], stages, searching(1.0, 1))


def test_no_time_and_no_such_codec_say_so():
    with pytest.raises(Unusable, match="give it a second at least"):
        search_pipelined(fleet([1.0]), [load()], [1], searching(0.0, 1))
    with pytest.raises(Unusable, match="choose of raw, planes-zstd, fp16, bf16, int8"):
        codec_of("mp3")
    with pytest.raises(Unusable, match="codec 'int8/mp3' is not known"):
        codec_of("int8/mp3")


def test_a_pair_of_codecs_counts_as_their_mean():
    pair, up, down = map(codec_of, ("int8/dither4", "int8", "dither4"))

    assert pair.bytes_per_value == (up.bytes_per_value + down.bytes_per_value) / 2
    assert pair.ways == ("int8", "dither4")
    assert up.ways == ("int8", "int8")
    assert down.values_per_s < pair.values_per_s < up.values_per_s


def test_a_search_finds_nothing_worse_than_the_plan_that_is_known():
    devices = fleet([1.0, 2.0, 4.0, 8.0, 3.0, 5.0], access_gbps=[0.01, 1.0, 0.1, 5.0, 0.3, 2.0])
    work = load(blocks=6)
    good = search_pipelined(devices, [work], [3], searching(1.0, 1))
    stage_n = np.full(6, -1)
    for stage, group in enumerate(good.stages):
        stage_n[list(group)] = stage
    known = draft(stage_n, good.borders)

    again = search_pipelined(devices, [work], [known, 1, 2, 6], searching(1e-6, 2))

    assert again.seconds <= good.seconds
