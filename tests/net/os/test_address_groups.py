"""The groups of addresses: what one owner easily has many of lies in one of them."""

import pytest

from p2pswarm.net.os.address_groups import address_groups, network_of


def test_ipv4_is_counted_by_provider_network_and_host():
    groups = address_groups("203.0.113.7")

    assert groups == ("IPv4", "203.0.0.0/16", "203.0.113.0/24", "203.0.113.7/32")


def test_ipv6_is_counted_by_provider_site_and_home_and_apart_from_ipv4():
    groups = address_groups("2001:db8:1:2ff::1%eth0")

    assert groups == ("IPv6", "2001:db8::/32", "2001:db8:1::/48", "2001:db8:1:200::/56")


def test_machines_of_one_home_are_one():
    assert address_groups("2001:db8:1:201::1") == address_groups("2001:db8:1:2ff::2")


@pytest.mark.parametrize("name", ["host-1", "node.example"])
def test_a_name_is_a_group_of_its_own(name: str):
    assert address_groups(name) == ("name", name)
    assert network_of(name) == name


def test_a_host_s_network_is_the_smallest_that_is_routed():
    assert network_of("203.0.113.7") == "203.0.113.0/24"
    assert network_of("2001:db8:1:2::3") == "2001:db8:1::/48"
