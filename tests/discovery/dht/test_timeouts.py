"""How long to wait for whom."""

from p2pswarm.discovery.dht.call_outcomes import (
    HEDGE_FIRST_S,
    HEDGE_LEAST_S,
    OUTCOMES,
    OUTCOMES_LEAST,
    PEERS_MAX,
    TimeoutEstimator,
)
from p2pswarm.discovery.dht.config import DhtConfig

PEER = bytes(32)
CONFIG = DhtConfig()


def steady(rtt_s: float) -> TimeoutEstimator:
    """A peer that has answered so fast many times."""
    timeouts = TimeoutEstimator(CONFIG)
    for _ in range(100):
        timeouts.on_answer(PEER, rtt_s)
    return timeouts


def test_a_stranger_gets_time_for_a_dial():
    assert TimeoutEstimator(CONFIG).deadline_s(PEER) == CONFIG.deadline_dial_s
    assert TimeoutEstimator(CONFIG).hedge_s(PEER) == HEDGE_FIRST_S


def test_deadlines_keep_their_bounds():
    assert steady(0.001).deadline_s(PEER) == CONFIG.deadline_least_s
    assert steady(1.4).deadline_s(PEER) == CONFIG.deadline_most_s
    assert 0.4 <= steady(0.4).deadline_s(PEER) < 0.45


def test_a_busy_processor_is_no_reason_to_ask_more_peers():
    assert steady(0.001).hedge_s(PEER) == HEDGE_LEAST_S


def test_a_peer_is_slow_soon_after_its_usual_round_trip():
    timeouts = steady(0.2)

    assert 0.2 <= timeouts.hedge_s(PEER) < 0.22
    assert 0.19 < timeouts.expected_s(PEER) < 0.21


def test_a_stranger_is_slow_when_nine_of_ten_strangers_would_have_answered():
    timeouts = TimeoutEstimator(CONFIG)
    for i in range(101):
        timeouts.on_answer(bytes([i]) * 32, 0.1 + i / 1000)

    assert abs(timeouts.hedge_s(b"new" * 10 + b"!!") - 0.19) < 1e-9
    assert timeouts.expected_s(b"new" * 10 + b"!!") == timeouts.hedge_s(b"new" * 10 + b"!!")


def test_an_answer_that_others_took_part_in_tells_nothing_of_the_round_trip():
    timeouts = TimeoutEstimator(CONFIG)

    timeouts.on_answer(PEER, None)

    assert timeouts.deadline_s(PEER) == CONFIG.deadline_dial_s


def test_lookups_widen_when_many_fail():
    timeouts = TimeoutEstimator(CONFIG)
    for _ in range(OUTCOMES_LEAST - 1):
        timeouts.on_failure()
    assert timeouts.alpha == CONFIG.alpha

    timeouts.on_failure()
    assert timeouts.failure_share == 1.0
    assert timeouts.alpha == CONFIG.alpha_lossy


def test_old_failures_are_forgotten():
    timeouts = TimeoutEstimator(CONFIG)
    for _ in range(OUTCOMES):
        timeouts.on_failure()
    for _ in range(OUTCOMES):
        timeouts.on_answer(PEER, 0.1)

    assert timeouts.failure_share == 0.0


def test_only_so_many_peers_are_remembered():
    timeouts = TimeoutEstimator(CONFIG)
    for i in range(PEERS_MAX + 1):
        timeouts.on_answer(i.to_bytes(32), 0.01)

    assert timeouts.deadline_s((0).to_bytes(32)) == CONFIG.deadline_dial_s
    assert timeouts.deadline_s((1).to_bytes(32)) == CONFIG.deadline_least_s
