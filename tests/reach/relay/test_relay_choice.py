"""Which peers are asked for a reservation first."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.reach.relay.relay_choice import UNKNOWN_S, RelayCandidate, chosen, distance_class

US = PeerId(bytes(32))


def at(n: int, port: int = 4000, *, mapped: bool = False, rtt_s: float = 0.0) -> RelayCandidate:
    contact = Contact(PeerId(n.to_bytes(32)), Address(f"203.0.114.{n}", port))
    return RelayCandidate(contact, mapped, rtt_s)


def test_those_next_to_us_come_first_so_that_relays_share_the_nodes():
    other = PeerId(b"\xff" * 32)
    found = [at(2), at(1), at(3)]

    assert chosen(found, US, ()) == [at(1).relay, at(2).relay, at(3).relay]
    assert chosen(found, other, ()) == [at(3).relay, at(2).relay, at(1).relay]


def test_the_nearest_come_first_by_the_pings_of_their_links():
    found = [at(1, rtt_s=0.3), at(2), at(3, rtt_s=0.07), at(4, rtt_s=0.02)]

    assert chosen(found, US, ()) == [at(4).relay, at(3).relay, at(2).relay, at(1).relay]


def test_of_those_about_as_near_the_ids_decide_so_that_relays_share_the_nodes():
    found = [at(2, rtt_s=0.021), at(1, rtt_s=0.039), at(4, rtt_s=0.001), at(3, rtt_s=0.009)]

    assert chosen(found, US, ()) == [at(3).relay, at(4).relay, at(1).relay, at(2).relay]


def test_a_peer_that_is_met_twice_is_as_near_as_its_link_says():
    found = [at(1), at(2, rtt_s=0.1), at(1, rtt_s=0.2)]

    assert chosen(found, US, ()) == [at(2).relay, at(1).relay]


@given(st.floats(0, 1e4), st.floats(0, 1e4))
def test_who_is_farther_is_never_in_a_nearer_class(one_s, other_s):
    near_s, far_s = sorted((one_s or UNKNOWN_S, other_s or UNKNOWN_S))

    assert 0 <= distance_class(near_s) <= distance_class(far_s)
    assert distance_class(0.0) == distance_class(UNKNOWN_S)


def test_those_at_home_come_last():
    assert chosen([at(1, mapped=True), at(2)], US, ()) == [at(2).relay, at(1).relay]


def test_a_peer_is_there_once_and_not_if_it_holds_a_reservation_already():
    assert chosen([at(1), at(1, 4001), at(2)], US, [at(2).relay.peer]) == [at(1).relay]


def test_we_are_no_relay_of_ours_nor_is_who_has_no_id():
    nameless = RelayCandidate(Contact(None, Address("203.0.114.9", 4000)))

    assert (
        chosen([RelayCandidate(Contact(US, Address("203.0.114.8", 4000))), nameless], US, ()) == []
    )
