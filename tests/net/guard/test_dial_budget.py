"""What strangers wrote is dialled a few times, whoever and however many wrote it."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.net.guard.dial_budget import (
    DIALS_MAX,
    HOST_DIALS,
    NETWORK_DIALS,
    RANGE_DIALS,
    DialBudget,
)


def taken(places: list[tuple[str, int]], **settings) -> int:
    budget = DialBudget(**settings)
    return sum(budget.take([Address(host, port)]) for host, port in places)


@pytest.mark.parametrize(
    ("places", "most"),
    [
        ([("203.0.113.7", 4000)] * 60, HOST_DIALS),
        ([("203.0.113.7", port) for port in range(1, 61)], HOST_DIALS),
        ([("8.8.8.8", port) for port in range(1, 61)], HOST_DIALS),
        ([(f"8.8.8.{host}", 4000) for host in range(60)], NETWORK_DIALS),
        ([(f"8.8.{net}.8", 4000) for net in range(60)], RANGE_DIALS),
        ([(f"{net}.8.8.8", 4000) for net in range(11, 99)], DIALS_MAX),
        ([(f"2a00:1:1:{host << 8:x}::1", 4000) for host in range(60)], NETWORK_DIALS),
        ([("2a00:1:1:1::1", port) for port in range(1, 61)], HOST_DIALS),
        ([(f"2a00:1:1:1::{host:x}", 4000) for host in range(1, 61)], HOST_DIALS),
        ([("third.example", 4000)] * 60, HOST_DIALS),
        ([("third.example", port) for port in range(1, 61)], HOST_DIALS),
    ],
)
def test_a_place_a_host_and_a_network_are_dialled_a_few_times(places, most):
    assert taken(places) == most


def test_in_a_private_network_only_hosts_are_bounded():
    """A lab's trainers are neighbours; and nobody's neighbour is far from us there."""
    assert taken([(f"192.168.1.{host}", 4000) for host in range(1, 41)]) == 40
    assert taken([("192.168.1.1", port) for port in range(1, 41)]) == HOST_DIALS


def test_places_that_are_linked_need_no_bound_and_their_neighbours_do():
    relay = Address("203.0.113.7", 4000)
    behind = [replace(relay, circuit=bytes([n]) * 32) for n in range(100)]
    budget = DialBudget({relay})

    assert all(budget.take([at]) for at in behind)
    assert sum(budget.take([replace(relay, port=port)]) for port in range(1, 101)) == HOST_DIALS


def test_a_peer_that_is_said_to_be_at_many_places_is_asked_if_all_of_them_may_be_dialled():
    """A card names several, and its peer is dialled at all of them at once."""
    third = [Address("203.0.113.7", port) for port in range(1, 9)]
    budget = DialBudget()

    assert not budget.take([Address("8.8.8.8", 1), *third])
    assert sum(budget.take([Address(f"8.8.8.{n}", 1), *third[:2]]) for n in range(8)) == 2
    assert budget.take([Address("8.8.8.8", 1)])


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 3)), max_size=200))
def test_a_flood_at_one_place_never_keeps_another_network_out(flood):
    budget = DialBudget()
    for net, host, port in flood:
        budget.take([Address(f"8.8.{net}.{host}", port)])

    assert budget.take([Address("203.0.113.7", 4000)])
