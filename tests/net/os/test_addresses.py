"""Tests of `net/os/addresses.py`."""

import pytest

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.os.addresses import (
    Scope,
    address_groups,
    believable,
    least_scope,
    network_of,
    scope_of,
)


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


NOWHERE = ["0.0.0.0", "::", "224.0.0.1", "239.255.255.250", "255.255.255.255", "240.0.0.1"]
NOWHERE += ["ff02::1", "::ffff:224.0.0.1", "::ffff:0.0.0.0"]
PRIVATE = ["127.0.0.1", "10.0.0.1", "192.168.1.1", "172.16.0.1", "169.254.169.254", "100.64.0.1"]
PRIVATE += ["::1", "fe80::1", "fe80::1%eth0", "fd00::1", "::ffff:127.0.0.1", "203.0.113.7"]
PRIVATE += ["localhost", "printer", "nas.local", "a.localhost", "router.lan.", "db.internal"]
PUBLIC = ["8.8.8.8", "2600::1", "::ffff:8.8.8.8", "example.org", "a.example.org."]


@pytest.mark.parametrize(
    ("host", "scope"),
    [(host, Scope.NOWHERE) for host in NOWHERE]
    + [(host, Scope.PRIVATE) for host in PRIVATE]
    + [(host, Scope.PUBLIC) for host in PUBLIC],
)
def test_every_host_has_a_scope(host, scope):
    assert scope_of(host) is scope


@pytest.mark.parametrize("least", Scope)
def test_what_no_single_host_has_is_believed_nowhere(least):
    assert not any(believable(Address(host, 4000), least) for host in NOWHERE)
    assert not believable(Address("8.8.8.8", 0), least)


def test_among_public_peers_only_public_addresses_are_believed():
    assert all(believable(Address(host, 4000), Scope.PUBLIC) for host in PUBLIC)
    assert not any(believable(Address(host, 4000), Scope.PUBLIC) for host in PRIVATE)
    assert all(believable(Address(host, 4000), Scope.PRIVATE) for host in PRIVATE + PUBLIC)


def test_what_is_reached_through_a_relay_or_the_web_is_believed_of_no_server():
    address = Address("8.8.8.8", 4000)

    assert not believable(address.through(PeerId(bytes(32))), Scope.PRIVATE)
    assert not believable(Address("8.8.8.8", 4000, web="wss"), Scope.PRIVATE)


@pytest.mark.parametrize(
    ("own", "seeds", "least"),
    [
        ("8.8.8.8", (), Scope.PUBLIC),
        ("8.8.8.8", ("8.8.4.4", "2600::1"), Scope.PUBLIC),
        ("8.8.8.8", ("8.8.4.4", "10.0.0.1"), Scope.PRIVATE),
        ("8.8.8.8", ("example.org",), Scope.PRIVATE),
        ("a.example.org", (), Scope.PRIVATE),
        ("192.168.1.7", ("8.8.4.4",), Scope.PRIVATE),
        ("127.0.0.1", (), Scope.PRIVATE),
    ],
)
def test_a_node_believes_public_addresses_only_if_it_and_its_seeds_are_public(own, seeds, least):
    there = tuple(Address(host, 4000) for host in seeds)

    assert least_scope(Address(own, 4000), there) is least
