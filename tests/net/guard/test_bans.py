"""Tests of `net/guard/bans.py`."""

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
from p2pswarm.net.guard.bans import (
    BAN_MAX_S,
    BAN_MIN_S,
    BAN_POINTS,
    FORGIVEN_S,
    HALF_LIFE_S,
    HOST_IDS,
    HOST_LEVEL,
    POINTS,
    TOLD_MAX,
    Offence,
    PeerBans,
    PeerOrigin,
    PeerScores,
    time_left,
    told_ban,
)
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.message import UnknownCode

EVE, ANN = b"e" * 32, b"a" * 32
HOME, AWAY = (
    PeerOrigin("203.0.113.7", "203.0.113.0/24"),
    PeerOrigin("198.51.100.7", "198.51.100.0/24"),
)
offences = st.sampled_from(list(Offence))


def offend(scores, peer, now_s, place=HOME, most=100):
    """Break the protocol until a ban follows; returns it."""
    for _ in range(most):
        if (ban := scores.report(peer, place, Offence.FRAME, now_s)) is not None:
            return ban
    raise AssertionError("never banned")


def test_one_breach_is_no_ban_and_three_at_once_are():
    scores = PeerScores()
    assert scores.report(EVE, HOME, Offence.FRAME, 0.0) is None
    assert scores.report(EVE, HOME, Offence.MESSAGE, 0.0) is None

    ban = scores.report(EVE, HOME, Offence.CHUNK, 0.0)

    assert (ban.peer, ban.offence, ban.until_s) == (EVE, Offence.CHUNK, BAN_MIN_S)
    assert scores.ban(EVE, BAN_MIN_S - 0.001) == ban
    assert scores.ban(EVE, BAN_MIN_S) is None


def test_a_rare_fault_never_bans():
    scores = PeerScores()
    for hour in range(1000):
        assert scores.report(EVE, HOME, Offence.FRAME, hour * 3600.0) is None


def test_each_ban_in_a_row_is_twice_as_long_up_to_a_day_and_a_day_forgives():
    scores, now_s, lasts = PeerScores(), 0.0, []
    for _ in range(14):
        ban = offend(scores, EVE, now_s)
        lasts.append(ban.left_s(now_s))
        now_s = ban.until_s
    assert lasts == [min(BAN_MAX_S, BAN_MIN_S * 2**n) for n in range(14)]

    assert offend(scores, EVE, now_s + FORGIVEN_S).left_s(now_s + FORGIVEN_S) == BAN_MIN_S


def test_what_comes_during_a_ban_adds_nothing():
    scores = PeerScores()
    ban = offend(scores, EVE, 0.0)
    for _ in range(50):
        assert scores.report(EVE, HOME, Offence.FRAME, 1.0) is None

    assert scores.ban(EVE, 2.0) == ban
    assert scores.report(EVE, HOME, Offence.FRAME, ban.until_s) is None


@given(
    st.lists(
        st.tuples(st.integers(0, 30), offences, st.floats(0.0, 4000.0), st.booleans()), max_size=200
    )
)
def test_nobody_is_banned_for_what_others_did(reports):
    """A peer's ban needs enough of its own points, whoever shares its host."""
    scores, now_s, points, banned = PeerScores(), 0.0, {}, {}
    for number, offence, pause_s, home in reports:
        now_s += pause_s
        peer = bytes([number]) * 32
        ban = scores.report(peer, HOME if home else AWAY, offence, now_s)
        if banned.get(peer, 0.0) > now_s:
            assert ban is None
            continue
        points[peer] = points.get(peer, 0.0) + POINTS[offence]
        if ban is not None:
            crowd = sum(until_s > now_s for until_s in banned.values()) >= HOST_IDS
            assert points[peer] >= BAN_POINTS or crowd
            assert BAN_MIN_S <= ban.left_s(now_s) <= BAN_MAX_S + 1e-6
            points[peer], banned[peer] = 0.0, ban.until_s
        for other in range(31):
            raw = bytes([other]) * 32
            assert (scores.ban(raw, now_s) is not None) == (banned.get(raw, 0.0) > now_s)


@given(st.integers(1, 40), st.integers(0, 200))
def test_memory_is_bounded(most, comers):
    scores = PeerScores(most)
    for number in range(comers):
        scores.report(number.to_bytes(32), HOME, Offence.FRAME, float(number))

    assert len(scores) <= most


def test_points_halve():
    scores = PeerScores()
    scores.report(EVE, HOME, Offence.FRAME, 0.0)
    scores.report(EVE, HOME, Offence.FRAME, 0.0)

    assert scores.report(EVE, HOME, Offence.FRAME, HALF_LIFE_S) is None  # 80 / 2 + 40
    assert scores.report(EVE, HOME, Offence.FRAME, HALF_LIFE_S) is not None


def test_a_host_that_makes_ids_has_a_shorter_rope_and_its_neighbours_are_not_refused():
    scores = PeerScores()
    for number in range(HOST_IDS):
        offend(scores, bytes([number]) * 32, 0.0)

    assert scores.ban(ANN, 0.0) is None, "a neighbour that did nothing"
    ban = scores.report(EVE, HOME, Offence.FRAME, 1.0)
    assert ban.left_s(1.0) == BAN_MIN_S * 2**HOST_LEVEL
    assert scores.report(ANN, AWAY, Offence.FRAME, 1.0) is None, "elsewhere nothing changes"
    assert scores.report(b"x" * 32, PeerOrigin("", ""), Offence.FRAME, 1.0) is None, (
        "behind a relay"
    )
    late_s = BAN_MIN_S * 2**HOST_LEVEL + 2.0
    assert scores.report(b"y" * 32, HOME, Offence.FRAME, late_s) is None, "the bans are over"


def test_who_makes_ids_forgets_its_own():
    scores = PeerScores(50)
    kept = offend(scores, ANN, 0.0, AWAY)
    for number in range(1000):
        scores.report(number.to_bytes(32), HOME, Offence.FRAME, 1.0)

    assert scores.ban(ANN, 1.0) == kept


def test_the_longest_bans_are_told_first():
    scores = PeerScores()
    offend(scores, EVE, 0.0)
    second = offend(scores, EVE, BAN_MIN_S)
    short = offend(scores, ANN, BAN_MIN_S, AWAY)

    assert scores.bans(BAN_MIN_S) == [second, short]
    assert scores.bans(2 * BAN_MIN_S) == [second]


def test_a_time_is_told_as_people_do():
    assert [time_left(s) for s in (7.2, 59.4, 60, 3599, 7200)] == [
        "7 s",
        "59 s",
        "1 min",
        "60 min",
        "2 h",
    ]


EVE_ID, ANN_ID = PeerId(b"e" * 32), PeerId(b"a" * 32)
HERE = Address("203.0.113.7", 4000)


def breach(bans, peer, error, times=3, remote=HERE):
    return [bans.on_breach(peer, remote, error, 0.0) for _ in range(times)][-1]


@pytest.mark.parametrize("error", [BadFrame("x"), BadMessage("x"), BadChunk("x"), UnknownCode("x")])
def test_what_a_peer_itself_has_sent_counts(error):
    bans = PeerBans()

    assert breach(bans, EVE_ID, error) is not None
    with pytest.raises(BadHandshake, match="is banned for another 1 min: it sent"):
        bans.check_peer(EVE_ID, 0.0)
    with pytest.raises(DialFailed, match=f"{EVE_ID.short} is banned"):
        bans.check_dial(EVE_ID, 0.0)
    bans.check_peer(EVE_ID, 61.0)
    bans.check_dial(EVE_ID, 61.0)
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

    assert breach(bans, EVE_ID, error, times=1000) is None
    assert bans.current(0.0) == []


def test_the_host_of_a_relay_is_nobodys():
    bans, relayed = PeerBans(), HERE.through(ANN_ID)
    for number in range(HOST_IDS):
        breach(bans, PeerId(bytes([number]) * 32), BadFrame("x"), remote=relayed)

    assert breach(bans, EVE_ID, BadFrame("x"), times=1, remote=relayed) is None
    assert breach(bans, ANN_ID, BadFrame("x"), times=1, remote=HERE) is None


@pytest.mark.parametrize("place", ["2001:db8:1:2300::{:x}", "2001:db8:1:23{:02x}::1"])
def test_a_home_has_one_host_in_ipv6(place):
    """A /56 is what a home gets: who has one makes as many addresses as ids."""
    bans = PeerBans()
    for number in range(1, HOST_IDS + 1):
        remote = Address(place.format(number), 4000)
        breach(bans, PeerId(bytes([number]) * 32), BadFrame("x"), remote=remote)

    assert breach(bans, EVE_ID, BadFrame("x"), times=1, remote=Address("2001:db8:1:23ff::9", 1))
    assert not breach(bans, ANN_ID, BadFrame("x"), times=1, remote=Address("2001:db8:1:2400::9", 1))


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
    assert breach(bans, EVE_ID, pair.acceptor.error, times=10) is None


# What a banned peer is told


def test_who_is_not_banned_is_told_nothing():
    bans = PeerBans()
    breach(bans, EVE_ID, BadFrame("x"))

    assert bans.notice(ANN_ID, 0.0) == b""
    assert bans.notice(EVE_ID, 61.0) == b""


def test_a_banned_peer_is_told_the_offence_and_whole_minutes():
    bans = PeerBans()
    breach(bans, EVE_ID, BadMessage("x"))

    ((kind, *_, payload),) = frames.decode(bans.notice(EVE_ID, 12.3))

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
            EVE_ID, LinkLost(f"link to eve: {told_ban(frames.BAN.pack(0, 60))}"), float(at_s)
        )
        bans.on_link_end(ANN_ID, LinkLost("link to ann: closed by the peer"), float(at_s))

    assert len([line for line in caplog.messages if "banned" in line]) == 1
    assert list(bans.banned_by) == [EVE_ID.raw]


def test_many_that_say_so_are_not_all_remembered():
    bans = PeerBans()

    for number in range(2 * TOLD_MAX):
        peer = PeerId(number.to_bytes(32))
        bans.on_link_end(peer, LinkLost(told_ban(frames.BAN.pack(0, 60))), 0.0)

    assert len(bans.banned_by) == TOLD_MAX
