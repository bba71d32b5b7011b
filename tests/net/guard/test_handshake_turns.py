"""Turns: strangers take a share of the loop's time, and another network's dialler gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.guard.handshake_turns import BURST_S, COST_MAX_S, SHARE, HandshakeTurns

COST_S = 0.00025
HONEST = "198.51.100.9"


def hosts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}.{i // 200}.{i % 200 + 1}" for i in range(count)]


def test_who_comes_alone_has_its_turn_at_once():
    turns = HandshakeTurns()
    assert turns.next_deadline_s() is None
    assert turns.next(0.0) is None

    turns.enter(7, HONEST)

    assert turns.next_deadline_s() <= 0.0
    assert turns.next(0.0) == 7
    assert turns.next_deadline_s() is None


def test_who_has_left_has_no_turn():
    turns = HandshakeTurns()
    turns.enter(7, HONEST)

    turns.leave(7)
    turns.leave(7)

    assert turns.next(0.0) is None


def test_a_few_that_join_together_do_not_wait():
    turns = HandshakeTurns()
    for ticket in range(40):
        turns.enter(ticket, HONEST)

    for ticket in range(40):
        assert turns.next(1.0) == ticket
        turns.computed(COST_S, 1.0)


def test_first_words_and_proofs_come_in_turn():
    """So neither a flood of first messages nor one of whole handshakes starves the other kind."""
    turns = HandshakeTurns()
    for ticket in range(4):
        turns.enter(ticket, HONEST)
        turns.enter(10 + ticket, HONEST, answered=True)
    turns.enter(20, HONEST, answered=True)
    turns.leave(13)

    assert len(turns) == 8
    assert [turns.next(0.0) for _ in range(9)] == [10, 0, 11, 1, 12, 2, 20, 3, None]


@given(st.lists(st.tuples(st.floats(0.0, 0.02), st.floats(0.0, 0.05)), max_size=200))
def test_computations_take_their_share_of_the_time_and_no_more(steps):
    """Each pair: how late the turn is asked for, and what it takes; a pause counts as the most."""
    turns = HandshakeTurns()
    now_s, used_s = 10.0, 0.0
    for late_s, cost_s in steps:
        turns.enter(0, HONEST)
        at_s = turns.next_deadline_s()
        assert at_s is not None
        if now_s < at_s:
            assert turns.next(now_s) is None
            now_s = at_s
        now_s += late_s
        assert turns.next(now_s) == 0
        turns.computed(cost_s, now_s)
        used_s += min(cost_s, COST_MAX_S)
        assert used_s <= SHARE * (now_s - 10.0) + BURST_S + COST_MAX_S + 1e-6


@pytest.mark.parametrize(
    ("crowd", "within_s"),
    [
        (hosts(100, "192.0"), 0.02),
        ([f"10.{i}.0.1" for i in range(100)], 0.25),
        ([f"2001:db8:{i:x}::1" for i in range(200)], 0.02),
    ],
    ids=["100 hosts of a network", "100 networks", "200 sites of IPv6"],
)
def test_a_dialler_of_another_network_gets_through_4000_first_messages_a_second(crowd, within_s):
    """Both its computations, the greeting and its proof, come within the stated time."""
    turns = HandshakeTurns()
    now_s, come = 0.0, 0
    wait_s: list[float] = []
    honest: tuple[float, int] | None = None
    for tick in range(4000):
        now_s = tick / 1000
        while come < now_s * 4000:
            turns.enter(come, crowd[come % len(crowd)])
            come += 1
        if honest is None:
            honest = now_s, 2
            turns.enter(-1, HONEST)
        if turns.next_deadline_s() is not None:
            while (ticket := turns.next(now_s)) is not None:
                turns.computed(COST_S, now_s)
                if ticket == -1:
                    begun_s, left = honest
                    if left > 1:
                        honest = begun_s, left - 1
                        turns.enter(-1, HONEST, answered=True)
                    else:
                        wait_s.append(now_s - begun_s)
                        honest = None

    assert len(wait_s) > 4 / within_s / 2
    assert max(wait_s) <= within_s
    served = come - len(turns)
    assert served <= 4.0 * SHARE / COST_S + BURST_S / COST_S + 1
