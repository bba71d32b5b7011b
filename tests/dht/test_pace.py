"""How long to wait for whom."""

from p2pswarm.dht.config import DhtConfig
from p2pswarm.dht.pace import (
    HEDGE_FIRST_S,
    HEDGE_LEAST_S,
    OUTCOMES,
    OUTCOMES_LEAST,
    PEERS_MAX,
    Pace,
)

PEER = bytes(32)
CONFIG = DhtConfig()


def steady(rtt_s: float) -> Pace:
    """A peer that has answered so fast many times."""
    pace = Pace(CONFIG)
    for _ in range(100):
        pace.answered(PEER, rtt_s)
    return pace


def test_a_stranger_gets_time_for_a_dial():
    assert Pace(CONFIG).deadline_s(PEER) == CONFIG.deadline_dial_s
    assert Pace(CONFIG).hedge_s(PEER) == HEDGE_FIRST_S


def test_deadlines_keep_their_bounds():
    assert steady(0.001).deadline_s(PEER) == CONFIG.deadline_least_s
    assert steady(1.4).deadline_s(PEER) == CONFIG.deadline_most_s
    assert 0.4 <= steady(0.4).deadline_s(PEER) < 0.45


def test_a_busy_processor_is_no_reason_to_ask_more_peers():
    assert steady(0.001).hedge_s(PEER) == HEDGE_LEAST_S


def test_a_peer_is_slow_soon_after_its_usual_round_trip():
    pace = steady(0.2)

    assert 0.2 <= pace.hedge_s(PEER) < 0.22
    assert 0.19 < pace.expected_s(PEER) < 0.21


def test_a_stranger_is_slow_when_nine_of_ten_strangers_would_have_answered():
    pace = Pace(CONFIG)
    for i in range(101):
        pace.answered(bytes([i]) * 32, 0.1 + i / 1000)

    assert abs(pace.hedge_s(b"new" * 10 + b"!!") - 0.19) < 1e-9
    assert pace.expected_s(b"new" * 10 + b"!!") == pace.hedge_s(b"new" * 10 + b"!!")


def test_an_answer_that_others_took_part_in_tells_nothing_of_the_round_trip():
    pace = Pace(CONFIG)

    pace.answered(PEER, None)

    assert pace.deadline_s(PEER) == CONFIG.deadline_dial_s


def test_lookups_widen_when_many_fail():
    pace = Pace(CONFIG)
    for _ in range(OUTCOMES_LEAST - 1):
        pace.failed()
    assert pace.alpha == CONFIG.alpha

    pace.failed()
    assert pace.failure_share == 1.0
    assert pace.alpha == CONFIG.alpha_lossy


def test_old_failures_are_forgotten():
    pace = Pace(CONFIG)
    for _ in range(OUTCOMES):
        pace.failed()
    for _ in range(OUTCOMES):
        pace.answered(PEER, 0.1)

    assert pace.failure_share == 0.0


def test_only_so_many_peers_are_remembered():
    pace = Pace(CONFIG)
    for i in range(PEERS_MAX + 1):
        pace.answered(i.to_bytes(32), 0.01)

    assert pace.deadline_s((0).to_bytes(32)) == CONFIG.deadline_dial_s
    assert pace.deadline_s((1).to_bytes(32)) == CONFIG.deadline_least_s
