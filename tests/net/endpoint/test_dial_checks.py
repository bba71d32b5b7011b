"""Tests of `net/endpoint/dial_checks.py`."""

import pytest

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed, LinkLost, NobodyThere, SwarmError
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.dial_checks import (
    check_attempts,
    check_join,
    dial_error,
    dial_failure,
    join_error,
    meet,
    own_contact,
)
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.endpoint.raw_handshake import AcceptedHandshake, DialledHandshake
from p2pswarm.net.link.path import DialledCandidate, Path, PathKind
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.wire.message import encode

CONFIG = TransportConfig(dial_s=5.0)
HELLO = Hello(Suite.AES_GCM, CONFIG.network_id)
US = PeerId(b"u" * 32)
HERE, THERE = Address("203.0.113.7", 4001), Address("198.51.100.9", 5001)
IDENTITIES = [Identity.generate(seed * 32) for seed in (b"A", b"B")]
ALICE, BOB = (StaticKey(each, b"s" * 32) for each in IDENTITIES)


def introduction_of(key: StaticKey) -> bytes:
    identity = next(each for each in IDENTITIES if each.peer_id == key.peer_id)
    card = Card.make(identity, 1, [Address("192.0.2.9", 7001)]).data
    return encode(Introduction(b"i" * 16, 7001, "192.0.2.1", card))


def shaken(says: bytes | None = None, acceptor: StaticKey = BOB) -> tuple[Handshake, Handshake]:
    """Both sides of a finished handshake: dialler, acceptor. `says`: what both introduce with."""
    ours, theirs = says or introduction_of(ALICE), says or introduction_of(acceptor)
    handshake = Handshake(Role.INITIATOR, HELLO, ALICE, b"1" * 32, ours)
    sides = (
        DialledHandshake(handshake, CONFIG.network_id),
        AcceptedHandshake(HELLO, acceptor, b"2" * 32, theirs),
    )
    for source, target in (sides, sides[::-1], sides):
        data = source.data_to_send()
        while data:
            wanted = target.wanted_bytes
            target.receive(data[:wanted])
            data = data[wanted:]
    return sides[0].handshake, sides[1].use


def test_a_peer_that_shows_anothers_card_is_refused():
    carol = Identity.generate(b"carol")
    card = Card.make(carol, 1, [Address("192.0.2.9", 7001)]).data
    dialler, _ = shaken(encode(Introduction(b"i" * 16, 7001, "192.0.2.1", card)))

    with pytest.raises(BadHandshake, match="introduced itself with the card of"):
        meet(dialler, ALICE.peer_id, THERE, HERE)


def test_a_dialler_knows_its_peer_by_the_address_that_it_dialled():
    dialler, _ = shaken()

    session, introduction = meet(dialler, ALICE.peer_id, THERE, HERE)

    assert session.contact == Contact(BOB.peer_id, HERE)
    assert session.dialled
    assert introduction.observed_host == "192.0.2.1"


def test_an_acceptor_knows_its_peer_by_the_port_that_it_names():
    _, acceptor = shaken()

    session, _ = meet(acceptor, BOB.peer_id, THERE, None)

    assert session.contact == Contact(ALICE.peer_id, Address(THERE.host, 7001))
    assert session.incarnation == b"i" * 16
    assert not session.dialled


def test_our_own_identity_at_the_other_end_is_ourselves_or_a_key_in_use_twice():
    dialler, acceptor = shaken(acceptor=ALICE)

    with pytest.raises(DialFailed, match="ourselves"):
        meet(dialler, ALICE.peer_id, THERE, HERE)
    with pytest.raises(BadHandshake, match="key file in use twice"):
        meet(acceptor, ALICE.peer_id, THERE, None)


def test_an_introduction_that_cannot_be_read_is_a_bad_handshake():
    dialler, _ = shaken(b"nonsense")

    with pytest.raises(BadHandshake, match="introduction"):
        meet(dialler, ALICE.peer_id, THERE, HERE)


def test_bulk_joins_only_a_path_that_its_side_has_dialled():
    asked = BulkJoin.make(JOIN, b"e" * 32, 0, b"n" * 16)
    ours = Path(PathKind.DIRECT, HERE, DialledCandidate(SocketNet(), HERE))

    check_join(asked, Path(None, THERE, None))
    for path in (None, ours):
        with pytest.raises(BadHandshake, match="waits for none"):
            check_join(asked, path)


@pytest.mark.parametrize(
    ("error", "connected", "kind", "text"),
    [
        (TimeoutError(), False, DialFailed, "no answer within 5 s"),
        (TimeoutError(), True, BadHandshake, "stalled in the handshake"),
        (BadHandshake("not authentic"), True, BadHandshake, "203.0.113.7:4001: not authentic"),
        (LinkLost("reset"), True, DialFailed, "closed the connection in the handshake"),
        (LinkLost("endpoint closed"), False, LinkLost, "endpoint closed"),
        (DialFailed("refused"), False, DialFailed, "refused"),
    ],
)
def test_each_failure_of_a_dial_has_its_name(error, connected: bool, kind: type, text: str):
    known = dial_error(error, HERE, CONFIG, connected=connected)

    assert type(known) is kind
    assert text in str(known)


@pytest.mark.parametrize(
    ("error", "text"), [(TimeoutError(), "made stalled"), (SwarmError("why"), "made: why")]
)
def test_a_bulk_connection_that_fails_costs_the_link(error, text: str):
    assert text in str(join_error(error, US))


@pytest.mark.parametrize(
    ("announced", "listening", "observed", "expected"),
    [
        (HERE, THERE, "192.0.2.1", HERE),
        (None, THERE, "192.0.2.1", THERE),
        (None, Address("0.0.0.0", 4001), "192.0.2.1", Address("192.0.2.1", 4001)),
        (None, Address("::", 4001), "", Address("::1", 4001)),
        (None, Address("::", 4001), "2001:db8::1", Address("2001:db8::1", 4001)),
        (None, Address("::", 4001), "192.0.2.1", Address("192.0.2.1", 4001)),
        (None, Address("0.0.0.0", 4001), "2001:db8::1", Address("127.0.0.1", 4001)),
        (None, Address("0.0.0.0", 4001), "host-1", Address("host-1", 4001)),
        (None, None, "192.0.2.1", Address("192.0.2.1", 0)),
        (None, None, "", Address("127.0.0.1", 0)),
    ],
)
def test_we_are_where_the_user_says_or_we_listen_or_peers_see_us(
    announced, listening, observed: str, expected: Address
):
    assert own_contact(US, announced, listening, observed) == Contact(US, expected)


TO = Contact(PeerId(b"p" * 32), Address("8.8.8.8", 4000))
FEW_DIALS = TransportConfig(dials_max=4)
REFUSED, WRONG, SILENT = NobodyThere("a: refused"), BadHandshake("b: wrong"), DialFailed("c: no")


def test_each_dials_first_way_may_be_tried_and_further_ones_while_there_is_room():
    for attempts in range(10):
        check_attempts(attempts, FEW_DIALS, first=True)
    check_attempts(3, FEW_DIALS, first=False)

    with pytest.raises(Busy, match="4 ways are being tried"):
        check_attempts(4, FEW_DIALS, first=False)


@pytest.mark.parametrize(
    ("failures", "kind"),
    [
        ([REFUSED, REFUSED], NobodyThere),
        ([WRONG, WRONG], BadHandshake),
        ([REFUSED, WRONG], DialFailed),
        ([WRONG, SILENT], DialFailed),
        ([Busy("full", 1.0), LinkLost("x")], DialFailed),
    ],
)
def test_the_failure_is_as_bad_as_all_ways_agree(failures, kind):
    error = dial_failure(TO, failures)

    assert type(error) is kind
    assert all(str(each) in str(error) for each in failures)
    assert str(error).startswith(f"{TO.peer.short}: none of its {len(failures)} addresses")


def test_one_failure_is_itself_and_none_tells_what_to_wait_for():
    assert dial_failure(TO, [WRONG]) is WRONG
    assert "it has to announce one" in str(dial_failure(TO, []))
    assert str(dial_failure(Contact(None, TO.address), [REFUSED, SILENT])).startswith(
        "8.8.8.8:4000: "
    )
