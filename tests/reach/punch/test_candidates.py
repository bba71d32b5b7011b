"""Whom a peer may make us dial: nobody but itself, as far as our relay or we have seen it."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.net.endpoint.preface import Sighting
from p2pswarm.net.os.addresses import Scope, scope_of
from p2pswarm.reach.punch.candidates import DialTrust, Judgement, dialled, named, neighbours
from p2pswarm.reach.punch.messages import CANDIDATES_MAX, Offer, PunchCandidate

SEAL = b"s" * 16
US = Address("11.1.0.1", 4000)
HOME = Address("192.168.1.10", 4000)
PEER = PunchCandidate("11.2.0.1", 5000, SEAL)
THEIR_HOME = PunchCandidate("192.168.1.11", 5000, b"")
RESPONDER = DialTrust(outside=frozenset({US}), own=frozenset({HOME}))
INITIATOR = DialTrust(outside=frozenset({US}), own=frozenset({HOME}), chosen=True)

hosts = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.sampled_from(
        [
            "11.1.0.1",
            "11.2.0.1",
            "192.168.1.10",
            "192.168.1.11",
            "127.0.0.1",
            "::1",
            "::ffff:11.2.0.1",
            "224.0.0.1",
            "255.255.255.255",
            "0.0.0.0",
            "fe80::1%eth0",
            "name.example",
            "",
            "a b",
            "::",
        ]
    ),
)
some_candidates = st.lists(
    st.builds(PunchCandidate, hosts, st.integers(1, 65535), st.sampled_from([b"", SEAL])),
    max_size=12,
)


def at(candidate: PunchCandidate) -> Address:
    return Address(candidate.host, candidate.port)


def test_the_responder_dials_where_the_relay_has_seen_the_peer():
    stranger = PunchCandidate("11.3.0.1", 80, SEAL)

    assert dialled([PEER, stranger], RESPONDER, {PEER}) == [at(PEER)]
    assert dialled([PEER, stranger], RESPONDER) == []


def test_the_responder_dials_any_port_of_the_host_where_it_sees_the_peers_link():
    trust = DialTrust(outside=frozenset({US}), peer_host=PEER.host)
    other_port = PunchCandidate(PEER.host, 6000, b"")

    assert dialled([other_port, PunchCandidate("11.3.0.1", 1, SEAL)], trust) == [at(other_port)]


def test_the_initiator_dials_the_public_addresses_of_the_peer_that_it_chose():
    assert dialled([PEER, THEIR_HOME], INITIATOR) == [at(PEER)]


@pytest.mark.parametrize("trust", [RESPONDER, INITIATOR])
def test_a_private_address_is_dialled_behind_the_same_router_only(trust):
    next_door = PunchCandidate(US.host, 5000, SEAL)

    assert at(THEIR_HOME) in dialled([next_door, THEIR_HOME], trust, {next_door})
    assert at(THEIR_HOME) not in dialled([PEER, THEIR_HOME], trust, {PEER})


def test_that_a_peer_is_next_door_is_not_taken_from_its_word():
    next_door = PunchCandidate(US.host, 5000, SEAL)

    assert dialled([next_door, THEIR_HOME], RESPONDER) == []


def test_where_nobody_has_a_public_address_private_ones_are_the_usual_ones():
    inside = DialTrust(outside=frozenset({Address("10.0.0.1", 4000)}), chosen=True)

    assert dialled([THEIR_HOME], inside) == [at(THEIR_HOME)]


def test_an_address_of_a_family_in_which_we_cannot_dial_is_left_out():
    trust = DialTrust(outside=frozenset({US}), families=frozenset({4}), chosen=True)

    assert dialled([PunchCandidate("2606:4700::1", 5000, SEAL), PEER], trust) == [at(PEER)]


@given(candidates=some_candidates, vouches=st.booleans(), chosen=st.booleans())
def test_nothing_that_is_ours_or_nobodys_is_ever_dialled(candidates, vouches, chosen):
    trust = DialTrust(outside=frozenset({US}), own=frozenset({HOME}), chosen=chosen)
    vouched = set(candidates) if vouches else set()

    found = dialled(candidates, trust, vouched)

    assert len(found) == len(set(found)) <= CANDIDATES_MAX
    for address in found:
        ip = ipaddress.ip_address(address.host)
        assert scope_of(address.host) is not Scope.NOWHERE
        assert not ip.is_loopback
        assert address not in (US, HOME)


@given(candidates=some_candidates, seen=st.integers(0, 12))
def test_the_responder_dials_nothing_public_that_nobody_has_seen(candidates, seen):
    vouched = set(candidates[:seen])

    found = dialled(candidates, RESPONDER, vouched)

    known = {str(ipaddress.ip_address(each.host)) for each in vouched if valid(each.host)}
    known |= {Address(host, 1).host for host in known}
    for address in found:
        near = any(each.host == US.host for each in vouched)
        assert address.host in known or (near and scope_of(address.host) is Scope.PRIVATE)


def valid(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def test_our_own_addresses_are_named_to_neighbours_only():
    sightings = [Sighting(US, SEAL), Sighting(US, b"o" * 16)]

    assert named(sightings, [HOME], near=False) == (PunchCandidate(US.host, US.port, SEAL),)
    assert [each.host for each in named(sightings, [HOME], near=True)] == [US.host, HOME.host]
    assert neighbours([PunchCandidate(US.host, 1, SEAL)], RESPONDER)
    assert not neighbours([PunchCandidate(US.host, 1, b""), PEER], RESPONDER)


def test_each_candidate_is_judged_once_and_what_was_seen_stays_so():
    judgement = Judgement(RESPONDER)
    first, last = Offer(candidates=(PEER,)), Offer(candidates=(PEER, THEIR_HOME))

    assert judgement.unjudged(first) == (PEER,)
    assert judgement.judge((PEER,), {PEER}) == [at(PEER)]
    assert judgement.unjudged(last) == (THEIR_HOME,)
    assert judgement.judge((THEIR_HOME,), set()) == [at(PEER)]
