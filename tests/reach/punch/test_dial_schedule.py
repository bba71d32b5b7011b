"""When each side dials: at the same moment, and after pauses that do not lock."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import Address
from p2pswarm.reach.punch.dial_schedule import (
    DIAL_S,
    RETRY_S_MAX,
    TRIES_MAX,
    WAIT_S_MAX,
    DialSchedule,
    PunchDial,
    wait_s,
)

HERE, THERE = PunchDial(Address("11.1.0.1", 1), 4000), PunchDial(Address("11.2.0.1", 2), 4000)
ways_s = st.floats(0.0, 0.5)


def test_a_dial_is_due_once_until_it_fails():
    schedule = DialSchedule(Random(0))
    schedule.add([HERE, THERE], 1.0)
    schedule.end(1.0 + DIAL_S)

    assert schedule.due(0.9) == []
    assert schedule.next_deadline_s() == 1.0
    assert schedule.due(1.0) == [HERE, THERE]
    schedule.add([HERE], 1.0)
    assert schedule.due(1.1) == []

    schedule.on_failure(HERE, 1.1)

    assert 1.1 <= schedule.next_deadline_s() <= 1.1 + RETRY_S_MAX
    assert schedule.due(1.1 + RETRY_S_MAX) == [HERE]


def test_nothing_more_begins_when_a_connection_is_up():
    schedule = DialSchedule(Random(0))
    schedule.add([HERE], 0.0)
    assert schedule.due(0.0) == [HERE]

    schedule.stop()

    schedule.on_failure(HERE, 0.1)
    schedule.add([THERE], 0.1)
    assert schedule.due(10.0) == []


def test_a_schedule_without_end_or_dials_waits_for_news():
    assert DialSchedule(Random(0)).next_deadline_s() is None


@given(seed=st.integers(0, 99), fails=st.lists(st.floats(0.0, 1.0), max_size=20))
def test_nothing_is_dialled_when_the_attempt_is_over(seed, fails):
    schedule, now_s = DialSchedule(Random(seed)), 0.0
    schedule.add([HERE], 0.0)
    schedule.end(2.0)

    for took_s in fails:
        if not schedule.due(now_s):
            now_s = schedule.next_deadline_s()
            assert now_s <= 2.0
        schedule.due(now_s)
        now_s += took_s
        schedule.on_failure(HERE, now_s)

    assert schedule.due(2.0) == []
    assert schedule.next_deadline_s() == 2.0


@given(out_s=ways_s, back_s=ways_s, held_ms=st.integers(0, 1000))
def test_both_sides_dial_within_the_asymmetry_of_their_path(out_s, back_s, held_ms):
    """The responder dials when the word arrives, the initiator half of a round trip later."""
    round_trip_s = out_s + held_ms / 1000 + back_s

    initiator_s = wait_s(round_trip_s, held_ms)
    responder_s = out_s

    assert abs(initiator_s - responder_s) <= abs(out_s - back_s) / 2 + 1e-9


@given(round_trip_s=st.floats(0.0, 100.0), held_ms=st.integers(0, 60_000))
def test_a_peer_that_lies_about_its_time_does_not_make_us_wait_long(round_trip_s, held_ms):
    assert 0.0 <= wait_s(round_trip_s, held_ms) <= WAIT_S_MAX


def passes(seed: int, skew_s: float, way_s: float) -> bool:
    """Whether two sides whose routers refuse early packets have two SYNs under way at once."""
    sides = [DialSchedule(Random(2 * seed)), DialSchedule(Random(2 * seed + 1))]
    events = [(0.0, 0), (skew_s, 1)]
    for at_s, number in events:
        sides[number].add([HERE], at_s)
        sides[number].end(at_s + DIAL_S)
    left_s: list[list[float]] = [[], []]
    while events:
        events.sort()
        now_s, number = events.pop(0)
        if not sides[number].due(now_s):
            continue
        left_s[number].append(now_s)
        if any(abs(now_s - other_s) < way_s for other_s in left_s[1 - number]):
            return True
        sides[number].on_failure(HERE, now_s + 2 * way_s)
        events.append((sides[number].next_deadline_s(), number))
    return False


@pytest.mark.parametrize("skew_s", [0.0, 0.03, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("way_s", [0.01, 0.025, 0.04])
def test_routers_that_refuse_early_packets_are_passed_by_luck_and_never_locked(skew_s, way_s):
    assert sum(passes(seed, skew_s, way_s) for seed in range(200)) >= 190


def test_who_refuses_is_dialled_so_often_and_no_more():
    schedule, dials = DialSchedule(Random(0)), 0
    schedule.add([HERE], 0.0)
    while (now_s := schedule.next_deadline_s()) is not None:
        assert schedule.due(now_s) == [HERE]
        dials += 1
        schedule.on_failure(HERE, now_s)

    schedule.add([HERE], 10.0)

    assert dials == TRIES_MAX
    assert schedule.next_deadline_s() is None
