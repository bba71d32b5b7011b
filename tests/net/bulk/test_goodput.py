"""What bulk connections carry: seconds with work count, pauses and the first second do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.net.bulk.goodput import SETTLE_S, TICK_S, WINDOW_S, GoodputMeter


def carry(meter, rate, seconds, now_s=0.0, carried=0.0):
    """Work for so long; returns the goodputs, the time and what was carried."""
    meter.begin(int(carried), now_s)
    found, end_s = [], now_s + seconds
    while now_s < end_s:
        now_s += TICK_S
        carried += rate(now_s) * TICK_S
        goodput = meter.tick(int(carried), now_s, busy=True)
        if goodput is not None:
            found.append(goodput)
    return found, now_s, carried


def test_a_window_gives_what_was_carried_after_the_first_second():
    slow_then_fast = carry(
        GoodputMeter(), lambda now_s: 0 if now_s <= SETTLE_S else 1000, SETTLE_S + 2 * WINDOW_S
    )

    assert slow_then_fast[0] == pytest.approx([1000, 1000], rel=0.01)


def test_pauses_between_bursts_do_not_count():
    meter, now_s, carried, found = GoodputMeter(), 0.0, 0.0, []
    for _ in range(40):
        goodputs, now_s, carried = carry(meter, lambda _: 1000, 0.5, now_s, carried)
        found += goodputs
        assert meter.tick(int(carried), now_s, busy=False) is None
        assert meter.at_s is None
        now_s += 60.0

    assert len(found) >= 4
    assert found == pytest.approx([1000] * len(found), rel=0.01)


def test_after_a_change_it_begins_again():
    meter = GoodputMeter()
    carry(meter, lambda _: 1000, SETTLE_S + WINDOW_S - TICK_S)
    meter.settle()

    found, _, _ = carry(meter, lambda _: 5000, SETTLE_S + WINDOW_S, 100.0)

    assert found == pytest.approx([5000], rel=0.01)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10**9), st.booleans()), max_size=200))
def test_no_goodput_is_more_than_the_fastest_tick(steps):
    meter, now_s, carried, fastest = GoodputMeter(), 0.0, 0, 0.0
    for late_s, nbytes, busy in steps:
        meter.begin(carried, now_s)
        took_s = TICK_S + late_s
        now_s += took_s
        carried += nbytes
        fastest = max(fastest, nbytes / took_s)
        goodput = meter.tick(carried, now_s, busy=busy)
        assert goodput is None or 0 <= goodput <= fastest * 1.001 + 1
