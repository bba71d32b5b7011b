"""Servers that cannot read the run: counted once each, and told of seldom."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from p2pswarm.base.ids import PeerId
from p2pswarm.trainer.members.version_refusals import (
    PEERS_MAX,
    SAY_EVERY_S,
    VERSIONS_MAX,
    VersionRefusals,
)
from p2pswarm.trainer.reports import actions as act


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


def test_the_first_server_is_told_of_at_once():
    refusals = VersionRefusals(ours=1)

    refusals.receive(peer(1), 2, 5.0)

    assert refusals.events() == [act.VersionsRefused(1, (2,), 1)]
    assert refusals.events() == []
    assert refusals.next_deadline_s() is None


def test_those_who_follow_are_told_of_together_when_it_is_time():
    refusals = VersionRefusals(ours=1)
    for number in (1, 2, 3):
        refusals.receive(peer(number), 2, 5.0)
    assert refusals.events() == [act.VersionsRefused(1, (2,), 1)]

    refusals.on_deadline(4.9 + SAY_EVERY_S)
    assert refusals.events() == []
    assert refusals.next_deadline_s() == 5.0 + SAY_EVERY_S
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.events() == [act.VersionsRefused(3, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_a_server_that_calls_a_thousand_times_is_told_of_once():
    refusals = VersionRefusals(ours=1)

    for number in range(1000):
        refusals.receive(peer(1), 2 + number % 3, number * SAY_EVERY_S)

    assert refusals.events() == [act.VersionsRefused(1, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_a_server_that_speaks_our_version_is_no_news():
    refusals = VersionRefusals(ours=7)

    refusals.receive(peer(1), 7, 5.0)

    assert refusals.events() == []
    assert refusals.next_deadline_s() is None


def test_the_common_versions_are_named_by_what_each_server_said_last():
    refusals = VersionRefusals(ours=1)
    said = [(1, 9), (1, 3), (2, 2), (3, 3), *((10 + n, 20 + n) for n in range(VERSIONS_MAX))]

    for number, speaks in said:
        refusals.receive(peer(number), speaks, 5.0)
    refusals.events()
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.events() == [act.VersionsRefused(3 + VERSIONS_MAX, (3, 2, 20, 21), 1)]


def test_a_crowd_is_counted_up_to_the_limit():
    refusals = VersionRefusals(ours=1)

    for number in range(PEERS_MAX + 10):
        refusals.receive(peer(number), 2, 5.0)
    refusals.events()
    refusals.on_deadline(50.0)
    refusals.receive(peer(PEERS_MAX + 10), 2, 100.0)

    assert refusals.events() == [act.VersionsRefused(PEERS_MAX, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_whoever_is_counted_may_correct_itself_in_a_crowd():
    refusals = VersionRefusals(ours=1, peers_max=2)

    for number, speaks in ((1, 9), (2, 3), (3, 9), (1, 3)):
        refusals.receive(peer(number), speaks, 5.0)
    refusals.events()
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.events() == [act.VersionsRefused(2, (3,), 1)]


def test_after_the_run_nothing_is_told():
    refusals = VersionRefusals(ours=1)
    refusals.receive(peer(1), 2, 5.0)

    refusals.close()
    refusals.receive(peer(2), 2, 50.0)
    refusals.on_deadline(60.0)

    assert refusals.events() == []
    assert refusals.next_deadline_s() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0.0, 7.0)), max_size=60))
def test_reports_grow_and_keep_their_distance_and_nobody_is_left_out(calls):
    refusals, now_s, told = VersionRefusals(ours=1, peers_max=4), 0.0, []

    def heard() -> None:
        told.extend((now_s, report.servers) for report in refusals.events())

    for number, speaks, pause_s in calls:
        due_s = refusals.next_deadline_s()
        if due_s is not None and due_s <= now_s + pause_s:
            now_s = due_s
            refusals.on_deadline(now_s)
            heard()
        else:
            now_s += pause_s
        refusals.receive(peer(number), speaks, now_s)
        heard()
    if (due_s := refusals.next_deadline_s()) is not None:
        now_s = due_s
        refusals.on_deadline(now_s)
        heard()

    others = {number for number, speaks, _ in calls if speaks != 1}
    assert [count for _, count in told] == sorted({count for _, count in told})
    assert all(b[0] >= a[0] + SAY_EVERY_S for a, b in pairwise(told))
    assert (told[-1][1] if told else 0) == min(len(others), 4)
