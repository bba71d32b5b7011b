"""The first bytes of a connection: both sides ask for exactly what is due, whatever they meet."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.errors import BadHandshake
from p2pswarm.net.crypto.handshake import HELLO_BYTES, MAGIC, Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.endpoint.raw_handshake import AcceptedHandshake, DialledHandshake

NETWORK, OTHER = b"n" * 16, b"o" * 16
ALICE, BOB = (StaticKey(Identity.generate(seed * 32), seed * 32) for seed in (b"A", b"B"))


def dialled(network: bytes = NETWORK) -> DialledHandshake:
    hello = Hello(Suite.AES_GCM, network)
    return DialledHandshake(Handshake(Role.INITIATOR, hello, ALICE, b"1" * 32, b"a"), network)


def accepted(network: bytes = NETWORK) -> AcceptedHandshake:
    return AcceptedHandshake(Hello(Suite.AES_GCM, network), BOB, b"2" * 32, b"b")


class Wire:
    """Two sides and the bytes between them."""

    def __init__(self, dialler, acceptor):
        self.sides = (dialler, acceptor)
        self.waiting = [b"", b""]  # for the dialler, for the acceptor

    def settle(self):
        """Let each side read what it asks for until neither can."""
        moved = True
        while moved:
            moved = False
            for at, side in enumerate(self.sides):
                ready = side.data_to_send()
                self.waiting[1 - at] += ready
                moved = moved or bool(ready)
                if 0 < side.wanted_bytes <= len(self.waiting[at]):
                    piece = self.waiting[at][: side.wanted_bytes]
                    self.waiting[at] = self.waiting[at][side.wanted_bytes :]
                    side.receive(piece)
                    moved = True


def test_two_sides_meet_and_leave_what_follows_on_the_wire():
    wire = Wire(dialled(), accepted())
    wire.settle()
    wire.waiting = [b"records", b"of the link"]

    wire.settle()

    dialler, acceptor = wire.sides
    assert dialler.wanted_bytes == acceptor.wanted_bytes == 0
    assert (dialler.handshake.result.peer, acceptor.use.result.peer) == (BOB.peer_id, ALICE.peer_id)
    assert wire.waiting == [b"records", b"of the link"]
    assert acceptor.refusal is None


def test_a_peer_of_another_network_learns_why_it_is_turned_away():
    wire = Wire(dialled(), accepted(OTHER))

    with pytest.raises(BadHandshake, match="another network"):
        wire.settle()

    assert "another network" in str(wire.sides[1].refusal)
    assert wire.sides[1].wanted_bytes == 0


def test_a_peer_of_another_version_is_told_ours():
    acceptor = accepted()
    acceptor.receive(b"PSW1")
    acceptor.receive(bytes(acceptor.wanted_bytes))

    assert "speaks version 1, we 2; install the same release" in str(acceptor.refusal)
    assert acceptor.data_to_send() == Hello(Suite.AES_GCM, NETWORK).raw
    assert acceptor.data_to_send() == b""


def test_a_dialler_that_is_turned_away_by_another_version_names_both():
    dialler = dialled()
    dialler.receive(b"PS")
    assert dialler.wanted_bytes == HELLO_BYTES - 2

    with pytest.raises(BadHandshake, match="speaks version 1, we 2; install the same release"):
        dialler.receive(b"W1" + bytes(HELLO_BYTES - 4))


def test_a_refusal_without_a_reason_is_one_too():
    dialler = dialled()
    dialler.receive(b"PS")

    with pytest.raises(BadHandshake, match="without a reason"):
        dialler.receive(Hello(Suite.AES_GCM, NETWORK).raw[2:])


def test_a_connection_that_joins_bulk_is_told_from_a_link():
    join = BulkJoin.make(JOIN, b"e" * 32, 3, b"n" * 16)
    acceptor = accepted()

    acceptor.receive(join.raw[:4])
    acceptor.receive(join.raw[4:][: acceptor.wanted_bytes])

    assert acceptor.use == join
    assert acceptor.wanted_bytes == 0


def test_first_bytes_of_something_else_are_not_answered():
    acceptor = accepted()

    with pytest.raises(BadHandshake, match="not those of a peer"):
        acceptor.receive(b"GET ")

    assert acceptor.data_to_send() == b""


@given(data=st.binary(max_size=600), start=st.sampled_from([b"", MAGIC, b"PSB1", b"PS"]))
@pytest.mark.parametrize("side", [dialled, accepted])
def test_garbage_is_one_error_at_either_side(side, data: bytes, start: bytes):
    """Or a wait for more, or a refusal; never more bytes at once than a handshake has."""
    machine, rest = side(), start + data

    with suppress(BadHandshake):
        while 0 < machine.wanted_bytes <= len(rest):
            assert machine.wanted_bytes <= 4096
            piece, rest = rest[: machine.wanted_bytes], rest[machine.wanted_bytes :]
            machine.receive(piece)
            machine.data_to_send()
