"""Which errors count against a peer, and what is told of a ban."""

from enum import Enum

import pytest
from hypothesis import given
from hypothesis import strategies as st
from net.link.harness import LinkPair

from p2pswarm.base.errors import (
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
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.base.peer_scores import HOST_IDS
from p2pswarm.net.guard.bans import TOLD_MAX, PeerBans, told_ban
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.message import UnknownCode

EVE, ANN = PeerId(b"e" * 32), PeerId(b"a" * 32)
HERE = Address("203.0.113.7", 4000)


def breach(bans, peer, error, times=3, remote=HERE):
    return [bans.on_breach(peer, remote, error, 0.0) for _ in range(times)][-1]


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


class Change(Enum):
    """What somebody on the way, or a relay, can do to the bytes of a link."""

    FLIP = "change a byte"
    CUT = "swallow some"
    AGAIN = "send some again"
    INSERT = "put in some of his own"


@given(
    st.lists(st.tuples(st.booleans(), st.binary(max_size=50)), min_size=1, max_size=6),
    st.sampled_from(Change),
    st.integers(0, 10_000),
    st.integers(1, 255),
)
def test_nobody_on_the_way_can_have_a_peer_banned(calls, change, place, value):
    """Whatever is done to the bytes of an honest peer: nothing that follows counts against it."""
    pair = LinkPair()
    for by_dialler, data in calls:
        side = pair.dialler if by_dialler else pair.acceptor
        side.mux.open(data or b"x", ended=True, priority=0)
    sent = bytearray()
    while record := pair.dialler.data_to_send(0.0):
        sent += record
    if sent:
        at = place % len(sent)
        match change:
            case Change.FLIP:
                sent[at] ^= value
            case Change.CUT:
                del sent[at : at + value]
            case Change.AGAIN:
                sent[at:at] = sent[max(0, at - value) : at]
            case Change.INSERT:
                sent[at:at] = bytes([value]) * value
    pair.acceptor.on_data(bytes(sent), 0.0)
    for now_s in (1.0, 20.0, 40.0):
        due_s = pair.acceptor.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            pair.acceptor.on_deadline(now_s)

    bans = PeerBans()
    assert breach(bans, EVE, pair.acceptor.error, times=10) is None


# What a banned peer is told


def test_who_is_not_banned_is_told_nothing():
    bans = PeerBans()
    breach(bans, EVE, BadFrame("x"))

    assert bans.notice(ANN, 0.0) == b""
    assert bans.notice(EVE, 61.0) == b""


def test_a_banned_peer_is_told_the_offence_and_whole_minutes():
    bans = PeerBans()
    breach(bans, EVE, BadMessage("x"))

    ((kind, *_, payload),) = frames.decode(bans.notice(EVE, 12.3))

    assert kind == frames.CLOSE
    assert told_ban(payload).startswith("it has banned this node for another 1 min: it says that")
    assert "malformed or forged" in told_ban(payload)


@given(st.binary(max_size=9))
def test_what_a_peer_says_of_a_ban_is_shown_in_our_words_or_ends_the_link(payload):
    try:
        said = told_ban(payload)
    except BadFrame:
        assert len(payload) != frames.BAN.size
        return
    assert said.isprintable()
    assert len(said) < 200
    assert "24 h" in said or " h" not in said or int(said.split(" h")[0].split()[-1]) <= 24


def test_who_says_again_and_again_that_it_has_banned_us_is_logged_once(caplog):
    bans = PeerBans()

    for at_s in range(20):
        bans.on_link_end(
            EVE, LinkLost(f"link to eve: {told_ban(frames.BAN.pack(0, 60))}"), float(at_s)
        )
        bans.on_link_end(ANN, LinkLost("link to ann: closed by the peer"), float(at_s))

    assert len([line for line in caplog.messages if "banned" in line]) == 1
    assert list(bans.banned_by) == [EVE.raw]


def test_many_that_say_so_are_not_all_remembered():
    bans = PeerBans()

    for number in range(2 * TOLD_MAX):
        peer = PeerId(number.to_bytes(32))
        bans.on_link_end(peer, LinkLost(told_ban(frames.BAN.pack(0, 60))), 0.0)

    assert len(bans.banned_by) == TOLD_MAX
