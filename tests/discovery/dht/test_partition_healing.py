"""Peers that are gone are asked again, and strangers are asked whom they know."""

import random

from discovery.dht.harness import contact, contacts
from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.discovery.dht.partition_healing import (
    FOUND_AGAIN_S,
    FRESH_S,
    MERGING_S,
    NEWCOMER_S,
    PROBE_LATE_S,
    PROBE_S,
    REMEMBERED_MAX,
    REMEMBERED_S,
    SETTLED_S,
    PartitionHealing,
)


def healing() -> PartitionHealing:
    return PartitionHealing(random.Random(1))


def probes(made: PartitionHealing, until_s: float) -> list[float]:
    """When somebody is asked, if nobody ever answers."""
    times = []
    while (due_s := made.next_deadline_s()) is not None and due_s < until_s:
        if made.probe(due_s) is not None:
            times.append(due_s)
    return times


def test_where_nobody_is_missing_nothing_is_due():
    assert healing().next_deadline_s() is None
    assert healing().probe(1e9) is None


def test_who_is_gone_is_asked_every_five_seconds_then_every_twenty_for_an_hour():
    made = healing()
    made.on_loss(contact(1), 0.0)

    times = probes(made, 2 * REMEMBERED_S)

    early = [each for each in times if each < FRESH_S]
    assert 0.9 * FRESH_S / PROBE_S < len(early) < 1.1 * FRESH_S / PROBE_S
    late = len(times) - len(early)
    assert 0.9 < late / ((REMEMBERED_S - FRESH_S) / PROBE_LATE_S) < 1.1
    assert times[-1] < REMEMBERED_S
    assert not made._lost


def test_many_who_are_gone_cost_no_more_calls_than_one():
    one, many = healing(), healing()
    one.on_loss(contact(1), 0.0)
    for each in contacts(*range(1, 100)):
        many.on_loss(each, 0.0)

    assert abs(len(probes(one, 600.0)) - len(probes(many, 600.0))) < 15


def test_whoever_comes_back_is_asked_for_no_longer_and_the_others_at_once():
    made = healing()
    for each in contacts(1, 2):
        made.on_loss(each, 0.0)

    made.on_entry(contact(1), 100.0)

    assert made.next_deadline_s() == 100.0 + FOUND_AGAIN_S
    assert made.probe(101.0) == contact(2)
    made.on_entry(contact(2), 102.0)
    assert made.next_deadline_s() is None


def test_a_stranger_is_greeted_soon_and_no_other_for_a_while():
    made = healing()
    for each in contacts(1, 2, 3):
        made.on_stranger(each, 0.0)
    due_s = made.next_deadline_s()
    assert SETTLED_S[0] <= due_s <= SETTLED_S[1]
    assert made.newcomer(due_s - 0.1) is None
    assert made.newcomer(due_s) == contact(3)
    assert made.newcomer(due_s) is None

    made.on_stranger(contact(4), due_s)

    assert made.next_deadline_s() == due_s + NEWCOMER_S


def test_another_part_is_looked_at_once_in_a_while_and_never_by_a_node_that_is_new_itself():
    made, named = healing(), contacts(1, 2)
    assert not made.on_partition(named, 0.0)
    made.on_stranger(contact(1), 0.0)
    assert not made.on_partition(named, MERGING_S - 1)

    assert made.on_partition(named, MERGING_S)

    assert not made.on_partition(contacts(3), MERGING_S + 1)
    assert made.others(MERGING_S + 1) == named
    assert made.others(2 * MERGING_S) == ()
    assert made.on_partition(contacts(3), 2 * MERGING_S)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["lost", "came", "probe", "greet"]),
            st.integers(0, 300),
            st.floats(0, 100),
            st.booleans(),
        ),
        max_size=300,
    )
)
def test_memory_and_calls_are_bounded_whatever_happens(steps):
    made, now_s, asked, greeted = healing(), 0.0, 0, 0
    for step, number, later_s, near in steps:
        now_s += later_s
        match step:
            case "lost":
                made.on_loss(contact(number), now_s)
            case "came":
                made.on_entry(contact(number), now_s)
                if near:
                    made.on_stranger(contact(number), now_s)
            case "probe":
                asked += made.probe(now_s) is not None
            case _:
                greeted += made.newcomer(now_s) is not None
        assert len(made._lost) <= REMEMBERED_MAX
    assert greeted <= 1 + now_s / NEWCOMER_S
    assert asked <= 1 + now_s / FOUND_AGAIN_S
