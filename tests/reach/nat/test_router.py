"""Against a real miniupnpd: a port is forwarded by each protocol, peers arrive, it is returned."""

import pytest
from core import core_of
from reach.nat.node_probe import WORLDS
from reach.nat.router import GATEWAY, GATEWAY6, OUTSIDE, OWN, OWN6, in_namespaces, require_router


@pytest.mark.parametrize(
    ("features", "protocol"),
    [("pcp", "PCP"), ("natpmp", "NAT-PMP"), ("upnp", "UPnP"), ("pcp+upnp", "PCP")],
)
def test_a_router_forwards_a_port_until_it_is_returned(features, protocol):
    require_router()

    found = in_namespaces(features, "reach.nat.mapping_probe")

    assert (found["own"], found["gateway"]) == (OWN, GATEWAY)
    assert (found["protocol"], found["external"]) == (protocol, f"{OUTSIDE}:4000")
    assert found["dialled"]
    assert found["returned"]


@pytest.mark.parametrize(("features", "protocol"), [("pcp", "PCP"), ("upnp", "UPnP")])
def test_a_firewall_of_ipv6_lets_others_in_until_it_is_told_not_to(features, protocol):
    require_router()

    found = in_namespaces(features, "reach.nat.mapping_probe", "6")

    assert (found["own"], found["gateway"]) == (OWN6, GATEWAY6)
    assert (found["protocol"], found["external"]) == (protocol, f"[{OWN6}]:4000")
    assert found["dialled"]
    assert found["returned"]


@pytest.mark.parametrize("features", core_of(["pcp", "natpmp"], ["pcp"]))
def test_a_router_that_was_started_again_forwards_the_port_again(features):
    """It has forgotten all; by its lifetime, the lease would be renewed an hour later."""
    require_router()

    found = in_namespaces(features, "reach.nat.restart_probe")

    assert found["before"]
    assert found["seconds"] > 0


def test_a_router_that_forwards_nothing_gives_no_lease():
    require_router(daemon=False)

    found = in_namespaces("none", "reach.nat.mapping_probe")

    assert (found["own"], found["gateway"]) == (OWN, GATEWAY)
    assert "protocol" not in found


@pytest.mark.parametrize(
    ("features", "worlds", "said"),
    [
        ("pcp", 3, f"reachable: mapped at {OUTSIDE}:4000"),
        ("upnp", 1, f"reachable: mapped at {OUTSIDE}:4000, as one network of peers says"),
    ],
)
def test_a_node_at_home_says_whether_others_can_dial_it(features, worlds, said):
    """Real nodes: some in the world, in networks of their own, and one behind the router."""
    require_router()

    found = in_namespaces(features, "reach.nat.node_probe", str(worlds), "reachable: mapped")

    assert found["said"][-1] == said


def test_a_node_that_nobody_can_dial_is_reached_through_any_node_of_the_swarm():
    require_router(daemon=False)

    found = in_namespaces("none", "reach.nat.node_probe", "1", "reachable: relayed")

    assert found["said"][-1].startswith("reachable: relayed at 5.5.5.9:4000/")


def test_where_nobody_is_a_relay_a_node_says_that_it_cannot_be_reached():
    require_router(daemon=False)
    selfish = "[network]\nrelay = false"

    found = in_namespaces("none", "reach.nat.node_probe", "3", "reachable: no", selfish)

    said = "reachable: no, the router before this machine forwards no port; "
    assert found["said"][-1].startswith(said)


def test_doctor_tells_that_the_router_forwards_a_port():
    require_router()

    found = in_namespaces("upnp", "reach.nat.doctor_probe")

    assert (found["reachable"], found["sure"]) == ("mapped", True)
    ipv4, ipv6 = f"{OUTSIDE}:4000", f"[{OWN6}]:4000"
    addresses = found["addresses"]
    # when the IPv6 firewall opens is chance: who comes through it does not dial by IPv4 any more
    assert addresses in ([ipv4], [ipv6], [ipv4, ipv6])
    assert found["found"]["lease_protocol"] == "UPnP"
    assert abs(found["found"]["clock_ahead_s"]) < 1.0


@pytest.mark.parametrize(
    ("features", "kind"), core_of([("none", "easy"), ("hard", "hard")], [("hard", "hard")])
)
def test_doctor_tells_what_to_change_where_nobody_gets_through(features, kind):
    require_router(daemon=False)

    found = in_namespaces(features, "reach.nat.doctor_probe")

    assert found["nat"] == kind
    assert found["reachable"] == "relayed"  # the nodes of the world are relays
    relays = {address.partition("/")[0] for address in found["addresses"]}
    assert relays
    assert relays <= {f"{host}:4000" for host in WORLDS}, "which of them is chance"
    assert found["advice"][0] == (
        f"switch on UPnP, NAT-PMP or PCP in the router at {GATEWAY}, or have it forward TCP port "
        f"4000 to {OWN}: until then its links begin at a relay, and stay there where punching fails"
    )


def test_another_address_of_the_machine_is_noticed():
    require_router(daemon=False)

    found = in_namespaces("none", "reach.nat.change_probe")

    assert found["told"]
    assert (found["before"], found["after"]) == (OWN, "192.168.77.6")
