"""What doctor makes of what it found: every finding has its advice, and scripts get the same."""

import json
from dataclasses import replace

import pytest

from p2pswarm.base.ids import Address
from p2pswarm.commands.doctor.doctor_report import (
    Family,
    Findings,
    RunBan,
    advice,
    as_json,
    as_lines,
)
from p2pswarm.reach.nat.reachability import Belief, NatKind, State

AT = Address("203.0.113.7", 4000)
PUBLIC = Belief(State.PUBLIC, NatKind.NONE, AT, sure=True)
MAPPED = Belief(State.MAPPED, NatKind.EASY, AT, sure=True)
NATTED = Belief(State.NATTED, NatKind.HARD, sure=True)
NOTHING = Belief(State.ABSENT)


def families(belief: Belief, belief6: Belief = NOTHING) -> tuple[Family, ...]:
    return (
        Family(name="IPv4", own_host="192.168.1.5", listening=True, belief=belief),
        Family(name="IPv6", own_host=None, listening=False, belief=belief6),
    )


GOOD = Findings(
    port=4000,
    families=families(PUBLIC),
    gateway="192.168.1.1",
    lease=None,
    protocol="",
    refusals={},
    relayed=None,
    asked_peers=2,
    seeds_failure="",
    seeds_named=True,
    peers_here=False,
    clock_ahead_s=0.1,
    bbr=True,
    congestion_control="cubic",
    send_memory_bytes=2**25,
    receive_memory_bytes=None,
    files=65_536,
    watched_max=None,
    disk_free_bytes=2**40,
    gpus=("H100",),
    driver=True,
)


def test_a_good_machine_has_nothing_to_change():
    lines = as_lines(GOOD)

    assert lines[0] == "reachable: direct at 203.0.113.7:4000"
    assert lines[-1] == "nothing to change"
    assert advice(GOOD) == []


def test_scripts_read_the_same():
    found = replace(GOOD, families=families(MAPPED), lease=str(AT), protocol="PCP")

    read = json.loads(as_json(found))

    assert {name: read[name] for name in ("nat", "reachable", "sure", "addresses", "advice")} == {
        "nat": "easy",
        "reachable": "mapped",
        "sure": True,
        "addresses": ["203.0.113.7:4000"],
        "advice": [],
    }
    assert read["found"]["lease_protocol"] == "PCP"


def test_who_is_reached_through_a_relay_is_told_where_and_what_a_port_would_change():
    natted = Belief(State.NATTED, NatKind.EASY, sure=True)
    found = replace(GOOD, families=families(natted), relayed="198.51.100.1:4000/peer")

    read = json.loads(as_json(found))

    assert (read["reachable"], read["addresses"]) == ("relayed", ["198.51.100.1:4000/peer"])
    assert as_lines(found)[0] == "reachable: relayed at 198.51.100.1:4000/peer (NAT: easy)"
    assert "links begin at a relay" in read["advice"][0]


def test_an_unknown_nat_is_said_to_be_unknown():
    read = json.loads(as_json(replace(GOOD, families=families(Belief(State.PROBING)))))

    assert (read["nat"], read["reachable"], read["addresses"]) == ("unknown", "no", [])


CHANGES = {
    "behind a NAT": {"families": families(NATTED)},
    "behind a router that has no name": {"families": families(NATTED), "gateway": None},
    "behind two routers": {"families": families(NATTED), "lease": "10.9.9.9:4000"},
    "behind a firewall before the router": {"families": families(NATTED), "lease": "9.9.9.9:4000"},
    "behind its own firewall": {"families": families(replace(NATTED, kind=NatKind.FIREWALL))},
    "seen by one network": {"families": families(replace(PUBLIC, sure=False))},
    "seen by nobody": {"families": families(Belief(State.PROBING))},
    "seen by nobody, no seed named": {
        "families": families(Belief(State.PROBING)),
        "seeds_named": False,
    },
    "no seed answers": {"seeds_failure": "nobody answers"},
    "no bbr": {"bbr": False},
    "little memory to send": {"send_memory_bytes": 2**20},
    "little memory to receive": {"receive_memory_bytes": 2**20},
    "few files": {"files": 1024},
    "a slow clock": {"clock_ahead_s": -60.0},
    "a full disk": {"disk_free_bytes": 2**20},
    "a GPU without CUDA in torch": {"gpus": ()},
    "no GPU": {"gpus": (), "driver": False},
}


def test_the_report_and_its_advice_are_what_is_shown(golden):
    found = {"good": GOOD} | {name: replace(GOOD, **each) for name, each in CHANGES.items()}

    golden("doctor_report", {name: "\n".join(as_lines(each)) for name, each in found.items()})


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_each_finding_has_one_advice_which_is_the_last_line(changes):
    found = replace(GOOD, **changes)

    (said,) = advice(found)

    assert as_lines(found)[-1] == f"  * {said}"


def test_the_family_in_which_others_arrive_counts():
    found = replace(GOOD, families=families(NATTED, PUBLIC))

    assert json.loads(as_json(found))["reachable"] == "direct"


def test_what_a_router_says_does_not_reach_the_terminal_as_it_is():
    found = replace(GOOD, families=families(NATTED), refusals={"UPnP": "error 1: \x1b[2J"})

    assert not any("\x1b" in line for line in as_lines(found))


def test_bans_are_shown_whoever_has_banned_whom():
    said = "link to 1a2b: it has banned this node for another 8 min: it says that this node sent x"
    ban = RunBan(run="mine", peer="7f" * 32, why="sent chunks that nobody asked for", left_s=130.0)
    found = replace(GOOD, banned_by=(said,), bans=(ban,))

    lines, fields = as_lines(found), json.loads(as_json(found))

    assert f"  * {said}" in lines
    assert (
        f"  {ban.peer} is banned by the trainer of run 'mine' for another 2 min: it sent chunks "
        "that nobody asked for"
    ) in lines
    assert fields["advice"][0] == said
    assert fields["found"]["banned_by"] == [said]
    assert fields["found"]["bans"] == [
        {"run": "mine", "peer": ban.peer, "why": ban.why, "left_s": 130.0}
    ]


def test_peers_on_this_machine_prove_nothing_and_one_elsewhere_is_asked_for():
    found = replace(GOOD, families=families(Belief(State.PROBING)), peers_here=True)

    assert as_lines(found)[0] == "reachable: unknown, all peers are on this machine"
    assert advice(found)[0].startswith("every peer that could be asked is on this machine")
    assert "--bootstrap HOST:PORT" in advice(found)[0]


def test_a_system_that_watches_few_sockets_says_to_how_many_peers_that_leads():
    lines = as_lines(replace(GOOD, watched_max=512))

    assert "  sockets: 512 at once on this system, so at most 400 peers" in lines


def test_a_system_without_congestion_controls_is_not_told_to_allow_one():
    assert advice(replace(GOOD, bbr=False)) != []
    assert advice(replace(GOOD, bbr=False, congestion_control="")) == []
