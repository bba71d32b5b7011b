"""What crosses slow lines in `bench/islands.py`, counted by hand."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "bench"))

from island_costs import (
    FAST,
    INNER_STEPS,
    LADDER,
    MODELS,
    MODULES,
    OUTERS,
    SLOW,
    TOKENS,
    IslandRound,
    averaged_r,
    crossings_r,
    devices_of,
    outer_s,
    places_of,
    shared_flow,
    shares_of,
)

BY_NAME = {outer.name: outer for outer in OUTERS}


def test_an_outer_step_sends_the_bytes_that_are_counted_by_hand():
    dense, whole, sparse = BY_NAME["DiLoCo bf16"], BY_NAME["DiLoCo float32"], BY_NAME["SparseLoCo"]

    sent = [dense.sent_bytes(4096.0, 2), whole.sent_bytes(4096.0, 4), sparse.sent_bytes(4096.0, 4)]

    assert sent[0] == 2 * 4096  # half of all values in the reduction, half in the gathering
    assert sent[1] == 4 * 4096 * 6 / 4
    assert sent[2] == 3 * 64 * 14 / 8  # 64 values of a chunk, 14 bits each, to three islands


def test_a_lone_region_sends_nothing():
    region_n = places_of([(SLOW,) * 4])
    stage_n, values_s = np.array([0, 0, 1, 1]), np.array([1e6, 1e6])

    outer = [each.sent_bytes(1e6, 1) for each in OUTERS]

    assert outer == [0.0] * len(OUTERS)
    assert outer_s(0.0, 20.0, 1) == 0.0
    assert crossings_r({(0, 2): 5.0, (1, 3): 5.0}, region_n).tolist() == [0.0]
    assert averaged_r(stage_n, values_s, region_n).tolist() == [0.0]


def test_a_crossing_counts_on_the_lines_of_both_its_ends():
    region_n = places_of([(SLOW,), (SLOW,), (SLOW,)])

    crossed_r = crossings_r({(0, 1): 2.0, (1, 2): 2.0}, region_n)

    assert crossed_r.tolist() == [2.0, 4.0, 2.0]


def test_a_run_over_regions_is_as_fast_as_their_line_lets_it():
    region_n = places_of([(SLOW,) * 2, (SLOW,) * 2])
    rates = dict.fromkeys(range(4), 5.0)

    fast, _ = shared_flow([[0, 1], [2, 3]], rates, region_n, 100.0)
    slow, links = shared_flow([[0, 1], [2, 3]], rates, region_n, 4.0)
    mixed, within = shared_flow([[0, 2], [1, 3]], rates, region_n, 4.0)

    assert fast == pytest.approx(10.0)
    assert slow == pytest.approx(4.0)
    assert crossings_r(links, region_n).tolist() == pytest.approx([4.0, 4.0])
    assert mixed == pytest.approx(10.0)
    assert crossings_r(within, region_n).tolist() == pytest.approx([0.0, 0.0])


def test_a_stage_with_a_member_in_each_region_sends_its_sum_once_and_its_mean_once():
    region_n = places_of([(SLOW,), (SLOW,)])

    sent_r = averaged_r(np.array([0, 0]), np.array([1000.0]), region_n)

    assert sent_r.tolist() == [800.0, 800.0]  # 6.4 bits a value: half there, half back


def test_modules_and_codecs_make_a_boundary_narrower():
    model = MODELS[0]

    plain, narrow = LADDER[0].boundary_bytes(model), MODULES[0].boundary_bytes(model)

    assert plain == TOKENS * 2048 * 2
    assert narrow == pytest.approx(TOKENS * 512 * (4 / 3.94 + 4.5 / 8) / 2)


def test_a_round_waits_for_its_transfer_or_hides_it():
    between, beside, slow = (
        IslandRound(2.0, 30.0, 10, beside=False),
        IslandRound(2.0, 15.0, 10, beside=True),
        IslandRound(2.0, 30.0, 10, beside=True),
    )

    assert [each.seconds for each in (between, beside, slow)] == [50.0, 20.0, 30.0]


def test_islands_share_a_step_by_what_they_can_do():
    assert shares_of([(SLOW,) * 8, (FAST,) * 8], 96) == [32, 64]


def test_devices_of_two_regions_have_the_line_and_others_have_not():
    fleet = devices_of([(SLOW,) * 2, (SLOW,)], 20.0)

    rates_nn = fleet.network.gbps_nn

    assert rates_nn[0, 2] == 0.02
    assert rates_nn[0, 1] == 10.0
    assert min(INNER_STEPS) > 1
