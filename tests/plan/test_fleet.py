"""What a living swarm has measured, as devices of a plan."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.arrangement import LINK_ASSUMED_BYTES_PER_S, LINK_LEAST_BYTES_PER_S
from p2pswarm.plan.capacity import Measured
from p2pswarm.plan.codec_costs import codec_of
from p2pswarm.plan.fleet import LINK_MOST_BYTES_PER_S, RTT_ASSUMED_S, MeasuredServer, measured_fleet

WORK = (3e12, 6e12)


def server(name="a", stage=0, rtt_s=0.02, **measured):
    return MeasuredServer(name, stage, Measured(**measured), rtt_s)


def test_rate_of_computing_is_the_work_of_the_stage_over_its_time():
    found = measured_fleet(
        [server("a", forward_s=1.0, backward_s=2.0), server("b", 1, forward_s=4.0)], WORK
    )

    assert found.fleet.flops_n.tolist() == [1e12, 1.5e12]
    assert found.rates_guessed == 0
    assert found.fleet.names == ("a", "b")


def test_what_nobody_has_measured_counts_as_the_median_and_is_told():
    known = {"backward_s": 0.0, "link_bytes_per_s": 2e7}
    servers = [server(name, forward_s=each, **known) for name, each in (("a", 1.0), ("b", 3.0))]
    found = measured_fleet([*servers, server("c", rtt_s=None)], WORK)

    assert found.fleet.flops_n[2] == pytest.approx(2e12)
    assert found.fleet.access_bytes_n[2] == 2e7
    assert (found.rates_guessed, found.lines_guessed, found.memories_guessed) == (1, 1, 3)
    assert math.isinf(found.fleet.memory_bytes_n[2])
    assert found.fleet.network.latency_s_nn[0, 2] == pytest.approx((0.02 + RTT_ASSUMED_S) / 2)


def test_a_line_that_nobody_has_measured_is_a_slow_one():
    found = measured_fleet([server(forward_s=1.0, backward_s=1.0)], WORK)

    assert found.fleet.access_bytes_n.tolist() == [LINK_ASSUMED_BYTES_PER_S]


def test_memory_for_a_stage_is_what_is_free_and_what_the_present_one_takes():
    found = measured_fleet(
        [server(forward_s=1.0, backward_s=1.0, free_bytes=1000, state_bytes=300)], WORK
    )

    assert found.fleet.memory_bytes_n.tolist() == [1500.0]


@pytest.mark.parametrize("of_each", [{}, {"forward_s": 1.0}, {"forward_s": 0.0, "backward_s": 0.0}])
def test_a_swarm_that_has_measured_nothing_is_one_line_with_what_to_do(of_each):
    says = r"none of the 2 servers has measured .*: ask again after the next step, or describe"
    with pytest.raises(Unusable, match=says) as caught:
        measured_fleet([server("a", **of_each), server("b", **of_each)], WORK)

    assert "\n" not in str(caught.value)


NUMBER = st.none() | st.floats(0.0, 1e15)


@given(
    st.lists(
        st.tuples(st.integers(0, 1), NUMBER, NUMBER, NUMBER, st.none() | st.integers(0, 2**62)),
        min_size=1,
        max_size=6,
    ),
    st.none() | st.floats(0.0, 1e9),
)
def test_whatever_servers_say_the_devices_are_ones_that_a_plan_can_be_made_of(told, rtt_s):
    servers = [
        MeasuredServer(
            str(number),
            stage,
            Measured(
                forward_s=forward_s,
                backward_s=backward_s,
                link_bytes_per_s=link,
                free_bytes=nbytes,
                state_bytes=nbytes,
            ),
            rtt_s,
        )
        for number, (stage, forward_s, backward_s, link, nbytes) in enumerate(told)
    ]
    try:
        fleet = measured_fleet(servers, WORK).fleet
    except Unusable:
        return

    assert np.all((fleet.flops_n > 0) & np.isfinite(fleet.flops_n))
    assert np.all(fleet.access_bytes_n >= LINK_LEAST_BYTES_PER_S)
    assert np.all(fleet.access_bytes_n <= LINK_MOST_BYTES_PER_S)
    assert np.all(fleet.memory_bytes_n >= 0)
    assert np.all(fleet.links_bytes_nn > 0)
    assert np.all(np.diag(fleet.network.latency_s_nn) == 0)


def test_sums_on_a_grid_have_a_size_for_the_planner():
    assert codec_of("raw").bytes_per_value / codec_of("int-grid").bytes_per_value >= 4.0
