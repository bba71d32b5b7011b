"""Tests of `net/guard/fair_queue.py`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.guard.fair_queue import BURST_S, COST_MAX_S, SHARE, FairQueue, HandshakeQueue

GROUPS = st.tuples(st.sampled_from("ab"), st.sampled_from("cde"), st.sampled_from("fgh"))


def drained(turns: FairQueue[int]) -> list[int]:
    found = []
    while (item := turns.next()) is not None:
        found.append(item)
    return found


def test_networks_take_turns_and_hosts_within_them():
    turns: FairQueue[int] = FairQueue()
    for item, groups in enumerate(["ax", "ax", "ay", "bz", "bz"]):
        turns.add(item, tuple(groups))

    assert drained(turns) == [0, 3, 2, 4, 1]


def test_who_has_left_has_no_turn():
    turns: FairQueue[int] = FairQueue()
    for item in range(3):
        turns.add(item, ("a",))

    turns.remove(1)
    turns.remove(1)

    assert 1 not in turns
    assert drained(turns) == [0, 2]
    assert turns.next() is None


@given(st.lists(st.one_of(GROUPS, st.none(), st.integers(0, 30))))
def test_each_comes_once_and_the_oldest_of_a_host_first(steps):
    turns: FairQueue[int] = FairQueue()
    waiting: dict[int, tuple[str, ...]] = {}
    for number, step in enumerate(steps):
        if isinstance(step, tuple):
            turns.add(number, step)
            waiting[number] = step
        elif step is None:
            item = turns.next()
            if not waiting:
                assert item is None
                continue
            assert item is not None
            groups = waiting[item]
            assert item == min(each for each, of in waiting.items() if of == groups)
            del waiting[item]
        else:
            turns.remove(step)
            waiting.pop(step, None)
        assert len(turns) == len(waiting)
        assert all(item in turns for item in waiting)
    assert sorted(drained(turns)) == sorted(waiting)


@given(
    st.lists(GROUPS, max_size=60),
    st.lists(GROUPS, min_size=60, max_size=60),
    st.integers(0, 20),
)
def test_a_newcomer_waits_for_one_turn_of_each_group_beside_its_own(crowd, more, before):
    """A crowd that goes on coming: a host of its own network waits 2 x 4 turns at the most."""
    turns: FairQueue[int] = FairQueue()
    for number, groups in enumerate(crowd):
        turns.add(number, groups)
    for _ in range(before):
        turns.next()
    turns.add(-1, ("a", "c", "honest"))

    served = []
    for number, groups in enumerate(more):
        served.append(turns.next())
        if served[-1] == -1:
            break
        turns.add(1000 + number, groups)

    assert served[-1] == -1
    assert len(served) <= 2 * 3 * 4


COST_S = 0.00025
HONEST = "198.51.100.9"


def hosts(count: int, prefix: str) -> list[str]:
    return [f"{prefix}.{i // 200}.{i % 200 + 1}" for i in range(count)]


def test_who_comes_alone_has_its_turn_at_once():
    turns = HandshakeQueue()
    assert turns.next_deadline_s() is None
    assert turns.next(0.0) is None

    turns.enter(7, HONEST)

    assert turns.next_deadline_s() <= 0.0
    assert turns.next(0.0) == 7
    assert turns.next_deadline_s() is None


def test_who_has_left_has_no_turn_in_the_queue():
    turns = HandshakeQueue()
    turns.enter(7, HONEST)

    turns.leave(7)
    turns.leave(7)

    assert turns.next(0.0) is None


def test_a_few_that_join_together_do_not_wait():
    turns = HandshakeQueue()
    for ticket in range(40):
        turns.enter(ticket, HONEST)

    for ticket in range(40):
        assert turns.next(1.0) == ticket
        turns.charge(COST_S, 1.0)


def test_first_words_and_proofs_come_in_turn():
    """So neither a flood of first messages nor one of whole handshakes starves the other kind."""
    turns = HandshakeQueue()
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
    turns = HandshakeQueue()
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
        turns.charge(cost_s, now_s)
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
    turns = HandshakeQueue()
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
                turns.charge(COST_S, now_s)
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
