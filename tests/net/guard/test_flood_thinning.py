"""Whose connections are thinned: a flood's, while the queue is full, and nobody else's."""

from hypothesis import given, settings
from hypothesis import strategies as st

from p2pswarm.net.guard.flood_thinning import (
    FULL_COUNT,
    FULL_S,
    HOLD_MAX_S,
    HOLD_S,
    LEVEL_FIRST,
    PERIOD_S,
    SCORES_MAX,
    FloodThinning,
    thinned_text,
)
from p2pswarm.net.os.arrival_filter import GROUPS_MAX, LEVEL_MAX

CALM = "198.51.100.9"


def hosts(networks: int, each: int = 5) -> list[str]:
    """Hosts of so many networks, in turn."""
    return [f"60.{net}.{host}.1" for host in range(each) for net in range(networks)]


def flooded(sources: list[str], seconds: float, per_s: float = 300.0) -> FloodThinning:
    """What is thought of hosts that fill the queue for so long."""
    flood, now_s = FloodThinning(), 0.0
    for number in range(int(seconds * per_s)):
        now_s = number / per_s
        flood.on_arrival(sources[number % len(sources)], number + 1, now_s)
        look(flood, number + 1, now_s)
    return flood


def look(flood: FloodThinning, in_a_row: int, now_s: float) -> None:
    due_s = flood.next_deadline_s()
    if due_s is not None and due_s <= now_s:
        flood.on_deadline(in_a_row, now_s)
        assert flood.next_deadline_s() is None or flood.next_deadline_s() > now_s


def test_a_hundred_networks_that_fill_the_queue_are_thinned_within_two_seconds():
    flood = flooded(hosts(100), seconds=2.0)

    assert set(flood.levels) == {f"60.{net}.0.0/16" for net in range(100)}
    assert set(flood.levels.values()) <= {LEVEL_FIRST, LEVEL_FIRST + 1}


def test_a_flood_is_hung_up_on_while_the_queue_is_full_and_a_calm_network_is_greeted():
    flood = flooded(hosts(100), seconds=2.0)

    assert not flood.on_arrival("60.7.200.200", 601, 2.0)
    assert flood.on_arrival(CALM, 602, 2.0)
    assert flood.on_arrival("60.7.200.200", 1, 2.1)  # nobody waits


def test_one_host_that_floods_does_not_cost_its_neighbours_anything():
    flood = flooded(["60.1.2.3"], seconds=1.0)

    assert set(flood.levels) == {"60.1.2.3/32"}
    assert (
        flood.on_arrival("60.1.2.4", 301, 1.0) is False
    )  # in the full queue it is not known apart
    assert flood.on_arrival("60.1.2.4", 1, 2.0)


def test_a_home_with_ipv6_is_thinned_as_one_host():
    flood = flooded([f"2001:db8:1:2{n:02x}::{n:x}" for n in range(50)], seconds=1.0)

    assert set(flood.levels) == {"2001:db8:1:200::/56"}


def test_hosts_that_are_no_numbers_are_let_in():
    flood = flooded(["somewhere"], seconds=1.0)

    assert not flood.levels
    assert flood.on_arrival("somewhere", 301, 1.0)


def test_a_crowd_that_proves_itself_is_not_thinned_however_long_the_queue_is_full():
    flood, rate, away_s = FloodThinning(), 400.0, 0.2
    for number in range(2000):
        now_s = number / rate
        assert flood.on_arrival(f"192.168.{number % 7}.{number % 100 + 1}", number + 1, now_s)
        proven = number - int(away_s * rate)
        if proven >= 0:
            flood.on_proof(f"192.168.{proven % 7}.{proven % 100 + 1}")
        look(flood, number + 1, now_s)

    assert not flood.levels


def test_a_flood_that_ends_is_let_in_again_by_steps():
    flood = flooded(["60.1.2.3"], seconds=1.0)
    levels = []
    while (due_s := flood.next_deadline_s()) is not None:
        if flood.on_deadline(0, due_s):
            levels.append(flood.levels.get("60.1.2.3/32", 0))

    assert levels == list(range(levels[0], -1, -1))
    assert len(levels) >= LEVEL_FIRST
    assert due_s is None


def test_who_floods_again_at_once_is_thinned_for_longer():
    flood, now_s = flooded(["60.1.2.3"], seconds=0.6), 0.6
    holds = []
    for _ in range(8):
        thinned_s = now_s
        while max(flood.levels.values(), default=0) >= LEVEL_FIRST:
            now_s = flood.next_deadline_s()
            flood.on_deadline(0, now_s)
        holds.append(now_s - thinned_s)
        flood.on_arrival("60.1.2.3", 1, now_s)
        for number in range(2, 200):
            now_s += 0.01
            flood.on_arrival("60.1.2.3", number, now_s)
            look(flood, number, now_s)
            if max(flood.levels.values(), default=0) >= LEVEL_FIRST:
                break

    assert HOLD_S - PERIOD_S <= holds[0] < holds[1] < holds[2]
    assert holds[-1] <= HOLD_MAX_S + 2 * PERIOD_S


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(("flood", "calm", "proof", "wait")),
        st.integers(0, 3),
        st.floats(0.0, 0.4),
        st.booleans(),
    ),
    max_size=150,
)


@given(EVENTS)
@settings(deadline=None)
def test_whoever_proves_itself_is_never_thinned_and_nobody_is_without_a_full_queue(events):
    flood, now_s, in_a_row, filled_s = FloodThinning(), 0.0, 0, 0.0
    for kind, who, wait_s, emptied in events:
        now_s += wait_s
        in_a_row = 0 if emptied else in_a_row
        before = dict(flood.levels)
        if kind in ("flood", "calm"):
            filled_s = now_s if in_a_row == 0 else filled_s
            in_a_row += 1 if in_a_row == 0 else FULL_COUNT // 4
            host = f"60.{who}.0.1" if kind == "flood" else f"70.{who}.0.1"
            greeted = flood.on_arrival(host, in_a_row, now_s)
            assert greeted or (kind == "flood" and in_a_row >= FULL_COUNT)
            assert greeted or now_s - filled_s >= FULL_S
            if kind == "calm":
                flood.on_proof(host)
        elif kind == "proof":
            flood.on_proof(f"60.{who}.0.1")
        due_s = flood.next_deadline_s()
        if due_s is not None and due_s <= now_s:
            flood.on_deadline(in_a_row, now_s)
        levels = flood.levels
        assert all(name.startswith("60.") for name in levels)
        assert all(0 < level <= LEVEL_MAX for level in levels.values())
        if in_a_row < FULL_COUNT or now_s - filled_s < FULL_S:
            assert all(level <= before.get(name, 0) for name, level in levels.items())


def test_what_is_remembered_is_bounded():
    flood = flooded([f"{60 + n // 40_000}.{n // 200 % 200}.{n % 200}.1" for n in range(12_000)],
                    seconds=1.0, per_s=12_000.0)  # fmt: skip

    assert len(flood._scores) <= SCORES_MAX
    assert len(flood._thinned) <= GROUPS_MAX


def test_nothing_is_due_when_all_is_forgotten():
    flood = FloodThinning()
    assert flood.next_deadline_s() is None
    assert not flood.on_deadline(0, 5.0)
    flood.on_arrival(CALM, 1, 5.0)

    looks = 0
    while (due_s := flood.next_deadline_s()) is not None:
        assert not flood.on_deadline(0, due_s)
        looks += 1

    assert 0 < looks * PERIOD_S < 10.0


def test_people_are_told_who_floods_the_worst_first_and_that_it_is_over():
    levels = {
        "60.1.0.0/16": 2,
        "60.2.0.0/16": 3,
        "60.3.0.0/16": 2,
        "60.4.0.0/16": 2,
        "x": 2,
        "y": 2,
    }

    assert thinned_text({"60.1.0.0/16": 2}) == (
        "a flood of connections from 60.1.0.0/16: most of theirs are dropped until it ends;"
        " who is there waits a few seconds longer, all others are served"
    )
    names = "60.2.0.0/16, 60.1.0.0/16, 60.3.0.0/16, 60.4.0.0/16 and 2 more"
    assert names in thinned_text(levels)
    assert "over" in thinned_text({})
