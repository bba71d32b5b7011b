"""Which peers are asked for a reservation first."""

from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.relay.relay_choice import RelayCandidate, chosen

US = PeerId(bytes(32))


def at(n: int, port: int = 4000, *, mapped: bool = False) -> RelayCandidate:
    contact = Contact(PeerId(n.to_bytes(32)), Address(f"203.0.114.{n}", port))
    return RelayCandidate(contact, mapped)


def test_those_next_to_us_come_first_so_that_relays_share_the_nodes():
    other = PeerId(b"\xff" * 32)
    found = [at(2), at(1), at(3)]

    assert chosen(found, US, ()) == [at(1).relay, at(2).relay, at(3).relay]
    assert chosen(found, other, ()) == [at(3).relay, at(2).relay, at(1).relay]


def test_those_at_home_come_last():
    assert chosen([at(1, mapped=True), at(2)], US, ()) == [at(2).relay, at(1).relay]


def test_a_peer_is_there_once_and_not_if_it_holds_a_reservation_already():
    assert chosen([at(1), at(1, 4001), at(2)], US, [at(2).relay.peer]) == [at(1).relay]


def test_we_are_no_relay_of_ours_nor_is_who_has_no_id():
    nameless = RelayCandidate(Contact(None, Address("203.0.114.9", 4000)))

    assert (
        chosen([RelayCandidate(Contact(US, Address("203.0.114.8", 4000))), nameless], US, ()) == []
    )
