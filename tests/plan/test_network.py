"""The networks that ship: whole, symmetric, from a named source, and regions by their names."""

import json
from importlib import resources

import pytest

from p2pswarm.base.errors import Unusable
from p2pswarm.plan.network import shipped_names, shipped_network


def test_the_three_networks_of_the_manual_are_there():
    assert shipped_names() == ("aws", "gcp12", "skyplane")
    assert [len(shipped_network(name).regions) for name in shipped_names()] == [10, 12, 61]


@pytest.mark.parametrize("name", shipped_names())
def test_every_pair_has_a_number_that_a_link_can_have(name: str):
    network = shipped_network(name)
    count = len(network.regions)

    assert len(set(network.regions)) == count
    for rows, low, high in ((network.rtt_s, 1e-3, 0.6), (network.gbps, 0.02, 20.0)):
        assert len(rows) == count
        for a, row in enumerate(rows):
            assert len(row) == count
            assert all(low <= value <= high for value in row)
            assert all(value == rows[b][a] for b, value in enumerate(row))


@pytest.mark.parametrize("name", shipped_names())
def test_every_network_says_where_it_is_from_and_lacks_no_pair(name: str):
    found = json.loads((resources.files("p2pswarm.plan") / f"networks/{name}.json").read_text())

    assert found["source"].startswith("https://github.com/")
    assert found["licence"] in ("MIT", "Apache-2.0")
    assert "Within a" in found["about"], "what was not measured is said"
    for rows in (found["rtt_ms"], found["gbps"]):
        for a, row in enumerate(rows):
            assert [b for b, value in enumerate(row) if value is None] == [a]


def test_known_pairs_have_the_measured_numbers():
    aws = shipped_network("aws").only(["Virginia", "Tokyo"])

    assert aws.regions == ("Virginia", "Tokyo")
    assert aws.rtt_s == ((0.005, 0.143), (0.143, 0.005))
    assert aws.gbps == ((2.0, 0.524), (0.524, 2.0))


def test_a_region_may_stand_twice_and_its_machines_are_neighbours():
    twice = shipped_network("aws").only(["Tokyo", "Tokyo"])

    assert twice.rtt_s[0][1] == twice.rtt_s[0][0]


def test_a_name_that_is_not_there_is_one_line_with_what_is():
    with pytest.raises(Unusable, match="there are aws, gcp12, skyplane"):
        shipped_network("azure")
    with pytest.raises(Unusable, match="no region 'tokio': did you mean 'Tokyo'"):
        shipped_network("aws").index("tokio")
    with pytest.raises(Unusable, match="there are Oregon, Virginia"):
        shipped_network("aws").index("Mars")
