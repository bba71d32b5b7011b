"""Which errors count against a peer, and what is told of a ban."""

import pytest

from p2pswarm.errors import (
    BadChunk,
    BadFrame,
    BadHandshake,
    BadMessage,
    BadRecord,
    DialFailed,
    Late,
    LinkLost,
    NotServing,
)
from p2pswarm.flow.peer_scores import HOST_IDS
from p2pswarm.ids import Address, PeerId
from p2pswarm.transport.bans import PeerBans
from p2pswarm.wire.message import UnknownCode

EVE, ANN = PeerId(b"e" * 32), PeerId(b"a" * 32)
HERE = Address("203.0.113.7", 4000)


def breach(bans, peer, error, times=3, remote=HERE):
    return [bans.breached(peer, remote, error, 0.0) for _ in range(times)][-1]


@pytest.mark.parametrize("error", [BadFrame("x"), BadMessage("x"), BadChunk("x"), UnknownCode("x")])
def test_what_a_peer_itself_has_sent_counts(error):
    bans = PeerBans()

    assert breach(bans, EVE, error) is not None
    with pytest.raises(BadHandshake, match="is banned for another 1 min: it sent"):
        bans.check_peer(EVE, 0.0)
    with pytest.raises(DialFailed, match=f"{EVE.short} is banned"):
        bans.check_dial(EVE, 0.0)
    bans.check_peer(EVE, 61.0)
    bans.check_dial(EVE, 61.0)
    bans.check_dial(None, 0.0)


@pytest.mark.parametrize(
    "error",
    [
        BadRecord("x"),
        BadHandshake("x"),
        LinkLost("x"),
        DialFailed("x"),
        Late("x"),
        NotServing("x"),
        None,
    ],
)
def test_what_somebody_else_can_cause_does_not(error):
    bans = PeerBans()

    assert breach(bans, EVE, error, times=1000) is None
    assert bans.current(0.0) == []


def test_the_host_of_a_relay_is_nobodys():
    bans, relayed = PeerBans(), HERE.through(ANN)
    for number in range(HOST_IDS):
        breach(bans, PeerId(bytes([number]) * 32), BadFrame("x"), remote=relayed)

    assert breach(bans, EVE, BadFrame("x"), times=1, remote=relayed) is None
    assert breach(bans, ANN, BadFrame("x"), times=1, remote=HERE) is None


@pytest.mark.parametrize("place", ["2001:db8:1:2300::{:x}", "2001:db8:1:23{:02x}::1"])
def test_a_home_has_one_host_in_ipv6(place):
    """A /56 is what a home gets: who has one makes as many addresses as ids."""
    bans = PeerBans()
    for number in range(1, HOST_IDS + 1):
        remote = Address(place.format(number), 4000)
        breach(bans, PeerId(bytes([number]) * 32), BadFrame("x"), remote=remote)

    assert breach(bans, EVE, BadFrame("x"), times=1, remote=Address("2001:db8:1:23ff::9", 1))
    assert not breach(bans, ANN, BadFrame("x"), times=1, remote=Address("2001:db8:1:2400::9", 1))
