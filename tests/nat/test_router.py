"""Against a real miniupnpd: a port is forwarded by each protocol, peers arrive, it is returned."""

import pytest
from nat.router import GATEWAY, OUTSIDE, OWN, in_namespaces, require_router


@pytest.mark.parametrize(
    ("features", "protocol"),
    [("pcp", "PCP"), ("natpmp", "NAT-PMP"), ("upnp", "UPnP"), ("pcp+upnp", "PCP")],
)
def test_a_router_forwards_a_port_until_it_is_returned(features, protocol):
    require_router()

    found = in_namespaces(features, "nat.mapping_probe")

    assert (found["own"], found["gateway"]) == (OWN, GATEWAY)
    assert (found["protocol"], found["external"]) == (protocol, f"{OUTSIDE}:4000")
    assert found["dialled"]
    assert found["returned"]


def test_a_router_that_forwards_nothing_gives_no_lease():
    require_router(daemon=False)

    found = in_namespaces("none", "nat.mapping_probe")

    assert (found["own"], found["gateway"]) == (OWN, GATEWAY)
    assert "protocol" not in found
