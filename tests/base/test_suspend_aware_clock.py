"""The clock that stands still while its process is stopped."""

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.suspend_aware_clock import DRAIN_S, LATE_S, ROUNDING_S, TICK_S, SuspendAwareClock


def test_it_goes_with_the_loop_while_the_process_runs():
    clock = SuspendAwareClock(10.0)

    assert [clock.read(10.0 + 0.5 * tick) for tick in range(4)] == [10.0, 10.5, 11.0, 11.5]


def test_a_busy_loop_that_is_a_little_late_was_not_stopped():
    clock = SuspendAwareClock(0.0)

    assert clock.read(TICK_S + LATE_S) == TICK_S + LATE_S


def test_a_stop_does_not_count_and_what_waits_is_read_first():
    clock = SuspendAwareClock(0.0)

    woken_s = clock.read(60.0)
    later_s = clock.read(60.0 + DRAIN_S)
    then_s = clock.read(61.0 + DRAIN_S)

    assert woken_s == later_s - TICK_S == 0.0
    assert then_s == TICK_S + 1.0


def test_a_timer_fires_in_time_to_notice_the_next_stop():
    clock = SuspendAwareClock(5.0)

    assert clock.timer_s(100.0) == 5.0 + TICK_S + ROUNDING_S
    assert clock.timer_s(5.2) == 5.2 + ROUNDING_S  # a loop's timer may be early by less


@given(
    stops_s=st.lists(st.floats(min_value=1.6, max_value=1e4), max_size=5),
    ahead_s=st.floats(min_value=0.0, max_value=0.4),
)
def test_timers_come_to_what_is_due_however_often_the_process_was_stopped(stops_s, ahead_s):
    clock, loop_s = SuspendAwareClock(0.0), 0.0
    for stop_s in stops_s:
        loop_s += stop_s
        clock.read(loop_s)
    due_s = clock.read(loop_s) + ahead_s

    for _ in range(20):  # a tick each half second of at most five drains, then the timer itself
        if clock.read(loop_s) >= due_s:
            break
        assert clock.timer_s(due_s) > loop_s, "the loop would spin"
        loop_s = clock.timer_s(due_s)

    assert clock.read(loop_s) >= due_s


@given(st.lists(st.floats(min_value=0.0, max_value=100.0), max_size=50))
def test_it_never_goes_back(gaps_s):
    clock, loop_s, before_s = SuspendAwareClock(0.0), 0.0, 0.0

    for gap_s in gaps_s:
        loop_s += gap_s
        now_s = clock.read(loop_s)
        assert before_s <= now_s <= loop_s
        before_s = now_s
