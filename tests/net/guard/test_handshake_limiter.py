"""The limiter: strangers take bounded places, and who is about to prove itself keeps its own."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.config import TransportConfig
from p2pswarm.net.guard.handshake_limiter import HandshakeLimiter

HONEST = "198.51.100.9"
ROUND_TRIP_S = 0.3  # a host 150 ms away
CONFIG = TransportConfig()
BOOL = st.booleans()


def test_a_newcomer_displaces_the_oldest_when_all_is_full():
    limiter = HandshakeLimiter(2, 2)
    first, _ = limiter.enter("192.0.2.1")
    limiter.enter("198.51.100.2")

    _, displaced = limiter.enter("203.0.113.3")

    assert displaced == first


def test_a_crowd_from_one_host_displaces_its_own():
    limiter = HandshakeLimiter(3, 3)
    limiter.enter("198.51.100.9")
    crowd = [limiter.enter("192.0.2.1")[0] for _ in range(2)]

    _, displaced = limiter.enter("192.0.2.1")

    assert displaced == crowd[0]


def test_silence_never_displaces_who_was_answered():
    limiter = HandshakeLimiter(1, 1)
    honest, _ = limiter.enter("192.0.2.1")
    limiter.answered(honest)

    displaced = [limiter.enter("192.0.2.1")[1] for _ in range(100)]

    assert honest not in displaced


def test_who_was_answered_makes_way_for_others_who_were():
    limiter = HandshakeLimiter(9, 2)
    tickets = [limiter.enter("192.0.2.1")[0] for _ in range(3)]

    assert [limiter.answered(ticket) for ticket in tickets] == [None, None, tickets[0]]


def test_who_has_left_or_was_displaced_displaces_nobody():
    limiter = HandshakeLimiter(1, 1)
    gone, _ = limiter.enter("192.0.2.1")
    _, displaced = limiter.enter("192.0.2.1")
    assert displaced == gone

    assert limiter.answered(gone) is None
    last, _ = limiter.enter("192.0.2.1")
    limiter.leave(last)

    assert limiter.enter("192.0.2.1")[1] is None


def test_a_simulated_host_counts_by_its_name():
    limiter = HandshakeLimiter(2, 2)
    first, _ = limiter.enter("host-1")
    limiter.enter("host-2")

    assert limiter.enter("host-1")[1] == first


def test_leaving_twice_is_harmless():
    limiter = HandshakeLimiter(1, 1)
    ticket, _ = limiter.enter("192.0.2.1")

    limiter.leave(ticket)
    limiter.leave(ticket)


@given(
    st.lists(st.tuples(st.sampled_from(["10.0.0.1", "10.0.0.2", "10.1.0.1", "::1", "x"]), BOOL)),
    st.integers(1, 3),
    st.data(),
)
def test_nobody_is_displaced_by_its_own_coming_or_when_it_has_gone(comers, most, data):
    limiter = HandshakeLimiter(most, most)
    here: dict[int, bool] = {}  # ticket: answered
    for host, speaks in comers:
        ticket, displaced = limiter.enter(host)
        assert displaced is None or here.pop(displaced) is False
        here[ticket] = False
        if speaks:
            here[ticket] = True
            displaced = limiter.answered(ticket)
            assert displaced != ticket
            assert displaced is None or here.pop(displaced) is True
        if data.draw(BOOL):
            gone = data.draw(st.sampled_from(sorted(here)))
            limiter.leave(gone)
            del here[gone]
        assert all(sum(v is kind for v in here.values()) <= most for kind in (False, True))


def hosts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}.{i // 200}.{i % 200 + 1}" for i in range(count)]


@pytest.mark.parametrize(
    ("crowd", "rate_per_s", "speaks"),
    [
        ([HONEST], 200, False),  # the dialler's own host
        (hosts(100, "192.0"), 600, False),
        (hosts(500, "192.0"), 2000, True),
        (hosts(100, "192.0"), 4000, True),
        ([HONEST], 400, True),
    ],
    ids=["own host", "100 hosts", "500 hosts speak", "4000 first messages", "own host speaks"],
)
def test_a_dialler_far_away_keeps_its_place_for_its_round_trip(crowd, rate_per_s, speaks):
    """Every honest handshake among a crowd that stays as long as it may, second by second."""
    limiter = HandshakeLimiter(CONFIG.silent_max, CONFIG.answered_max)
    waiting: deque[tuple[float, int]] = deque()
    displaced: set[int | None] = set()
    for n in range(int(rate_per_s * 3)):
        now_s = n / rate_per_s
        ticket, out = limiter.enter(crowd[n % len(crowd)])
        displaced.add(out)
        if speaks:
            displaced.add(limiter.answered(ticket))
        if n % (rate_per_s // 10) == 0:
            honest, out = limiter.enter(HONEST)
            displaced |= {out, limiter.answered(honest)}
            waiting.append((now_s + ROUND_TRIP_S, honest))
        while waiting and waiting[0][0] <= now_s:
            _, done = waiting.popleft()
            assert done not in displaced
            limiter.leave(done)
