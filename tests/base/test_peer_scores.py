"""Scores and bans: who is banned, for how long, and who never is."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.peer_scores import (
    BAN_MAX_S,
    BAN_MIN_S,
    BAN_POINTS,
    FORGIVEN_S,
    HALF_LIFE_S,
    HOST_IDS,
    HOST_LEVEL,
    POINTS,
    Offence,
    PeerScores,
    time_left,
)

EVE, ANN = b"e" * 32, b"a" * 32
HOME, AWAY = ("203.0.113.7", "203.0.113.0/24"), ("198.51.100.7", "198.51.100.0/24")
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
    assert scores.report(b"x" * 32, ("", ""), Offence.FRAME, 1.0) is None, "behind a relay"
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
