"""Tests of `net/bulk/connection_count.py`."""

import itertools
import random

import pytest
from core import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.net.bulk.connection_count import (
    PAUSE_S,
    PAUSE_S_MAX,
    REMEMBERED_MAX,
    SETTLE_S,
    TICK_S,
    WINDOW_S,
    ConnectionCount,
    CountMemory,
    GoodputMeter,
)

ROUND_S = 2 * WINDOW_S  # from one window that counts to the next
CHANGES_MAX = 10  # between two pauses: from 16 to 2, to 1 and back, to 8, to 16 and back


def run(count, carries, rounds, *, now_s=0.0, noise=lambda: 1.0):
    """The numbers wanted after each window, if n connections carry `carries(n)`."""
    wanted = []
    for _ in range(rounds):
        now_s += ROUND_S
        count.on_goodput(carries(count.wanted) * noise(), count.wanted, now_s)
        wanted.append(count.wanted)
    return wanted


@pytest.mark.parametrize(
    ("each", "road", "best"),
    [
        (12.0, 200.0, 16),  # cubic, 0.1 % loss at 150 ms
        (180.0, 200.0, 1),  # bbr
        (60.0, 200.0, 4),
        (100.0, 200.0, 2),
        (1.1, 1000.0, 16),
    ],
)
def test_it_finds_what_a_road_takes_and_stays_there(each, road, best):
    count = ConnectionCount(1, 16, 0.0)

    wanted = run(count, lambda n: min(n * each, road), 1000)

    assert count.settled == best
    assert wanted[6:].count(best) > 0.95 * len(wanted[6:])
    assert wanted.index(best) <= 4, "within four steps"


def test_when_the_road_changes_it_follows():
    count = ConnectionCount(1, 16, 0.0)
    run(count, lambda n: min(n * 12.0, 200.0), 20)
    assert count.settled == 16

    run(count, lambda _: 180.0, 200, now_s=1000.0)
    assert count.settled <= 2

    run(count, lambda n: min(n * 12.0, 200.0), 1000, now_s=10_000.0)
    assert count.settled == 16


@settings(max_examples=examples(300))
@given(
    floor=st.integers(1, 16),
    most=st.integers(1, 16),
    begin=st.integers(0, 100),
    goodputs=st.lists(st.floats(0, 1e10), max_size=300),
    refusals=st.sets(st.integers(0, 299)),
)
def test_whatever_is_measured_it_is_bounded_and_changes_seldom(
    floor, most, begin, goodputs, refusals
):
    count = ConnectionCount(floor, most, 0.0, begin)
    now_s, changes, pauses = 0.0, 0, 1
    for at, goodput in enumerate(goodputs):
        now_s += ROUND_S
        before, rest = count.wanted, count._rest_until_s
        if at in refusals:
            count.on_refusal(count.wanted // 2, now_s)
        else:
            assert count.on_goodput(goodput, count.wanted, now_s) is (count.wanted != before)
        assert 1 <= count.wanted <= most
        assert 1 <= count.settled <= most
        changes += count.wanted != before
        pauses += count._rest_until_s != rest

    assert changes <= CHANGES_MAX * pauses
    assert pauses <= 2 + len(refusals) + now_s / PAUSE_S


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("carries", [lambda _: 100.0, lambda n: 100.0 + n])
def test_on_noise_it_stays_near_where_it_began(seed, carries):
    """Noise of 10 % on a road where more connections gain nothing, for a day."""
    rng = random.Random(seed)
    count = ConnectionCount(2, 16, 0.0)

    wanted = run(count, carries, 20_000, noise=lambda: rng.uniform(0.9, 1.1))

    changes = sum(a != b for a, b in itertools.pairwise(wanted))
    assert changes < 500, "a trial and back every ten minutes at most, and a few steps"
    assert sum(n <= 4 for n in wanted) > 0.8 * len(wanted)


def test_a_window_in_which_connections_were_missing_says_nothing():
    count = ConnectionCount(1, 16, 0.0)

    assert not count.on_goodput(1e6, 0, 1.0)
    assert count.on_goodput(1e6, 1, 2.0)
    assert not count.on_goodput(9e9, 1, 3.0), "the second one has not joined yet"
    assert count.settled == 1


def test_a_way_that_gives_no_other_connection_is_asked_again_ever_less_often():
    """As a punched pair of ports, which carries one."""
    count, now_s, asked = ConnectionCount(2, 16, 0.0), 0.0, []
    for _ in range(1000):
        now_s += ROUND_S
        count.on_goodput(1e6, 1, now_s)
        if count.wanted > 1:
            asked.append(now_s)
            count.on_refusal(1, now_s)
        assert count.wanted == 1

    gaps = [later - sooner for sooner, later in itertools.pairwise(asked)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= PAUSE_S_MAX
    assert len(asked) < 20, "in two hours"


def test_what_was_best_before_is_taken_up_again_and_left_alone_at_first():
    count = ConnectionCount(1, 16, 100.0, 8)
    assert count.wanted == 8

    assert not count.on_goodput(1e6, 8, 100.0 + PAUSE_S - 1)
    assert count.on_goodput(1e6, 8, 100.0 + PAUSE_S)


def carry(meter, rate, seconds, now_s=0.0, carried=0.0):
    """Work for so long; returns the goodputs, the time and what was carried."""
    meter.begin(int(carried), now_s)
    found, end_s = [], now_s + seconds
    while now_s < end_s:
        now_s += TICK_S
        carried += rate(now_s) * TICK_S
        goodput = meter.on_deadline(int(carried), now_s, busy=True)
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
        assert meter.on_deadline(int(carried), now_s, busy=False) is None
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
        goodput = meter.on_deadline(carried, now_s, busy=busy)
        assert goodput is None or 0 <= goodput <= fastest * 1.001 + 1


def test_what_is_written_is_found_again_for_the_same_peer_and_kind():
    memory = CountMemory()
    memory.best("peer", 0).count = 8

    assert memory.best("peer", 0).count == 8
    assert memory.best("peer", 2).count == 0
    assert memory.best("other", 0).count == 0


def test_few_are_remembered_and_those_the_latest_used():
    memory = CountMemory()
    memory.best("kept", 0).count = 4
    for number in range(3 * REMEMBERED_MAX):
        memory.best(number, 0).count = 2
        memory.best("kept", 0)

    assert memory.best("kept", 0).count == 4
    assert memory.best(1, 0).count == 0
    assert len(memory._best) <= REMEMBERED_MAX
