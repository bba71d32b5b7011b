"""Tests of `trainer/coordinator_io/server_reports.py`."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import CONFIG, RUN, Play

from p2pswarm.base.errors import BadMessage, Late, LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import REASON_CHARS, Work
from p2pswarm.run.messages.membership import Load, Ready
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.run.messages.step import (
    CannotAverage,
    Commit,
    Committed,
    Fence,
    Fenced,
    Reduce,
    Reduced,
)
from p2pswarm.sim.compute import number_in, numbered_corpus
from p2pswarm.tensors.codecs.meta import TensorMeta
from p2pswarm.trainer.coordinator.admission import COMMIT_MAX_S
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.server_reports import (
    GRACE_S,
    PEERS_MAX,
    SAY_EVERY_S,
    VERSIONS_MAX,
    VersionRefusals,
    first_push,
    limit_s,
    on_answer,
    on_report,
    samples_of,
    undelivered_note,
)
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import Loaded, VersionsRefused
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE

TO = Incarnation(b"a" * 32, 3)
LAUNCH = act.Launch(4, 9, 1, Work.FORWARD, (0, 2))
FENCE = act.SendFence(TO, Fence(RUN, 4, 3, ()), 11.0)
REDUCE = act.SendReduce(TO, Reduce(RUN, 4, 2, 3, b"", (), ()), 90.0)
COMMIT = act.SendCommit(TO, Commit(RUN, 4, 2, 3, 1.0, 0.1))
REDUCED, COMMITTED = Reduced(b"g", 1.0), Committed(5, applied=True)


class Ears(Coordinator):
    """A coordinator that writes down what it is told."""

    def __init__(self) -> None:
        super().__init__(CONFIG, RUN)
        self.heard: list[tuple] = []

    def __getattribute__(self, name: str):
        told = {
            *(
                "on_fence_answer",
                "on_stream_end",
                "on_reduction",
                "on_reduction_failure",
                "on_commit_answer",
                "on_commit_failure",
            ),
            *(
                "on_handoff",
                "on_count",
                "on_delivery_failure",
                "on_evaluation",
                "on_ready",
                "on_load",
            ),
        }
        if name in told:
            return lambda *args: self.heard.append((name, *args))
        return super().__getattribute__(name)


@pytest.mark.parametrize(
    ("order", "answer", "heard"),
    [
        (FENCE, Fenced((7,)), ("on_fence_answer", TO, (7,), 5.0, FENCE.message.step)),
        (FENCE, LinkLost("gone"), ("on_stream_end", TO, "it did not answer a fence: gone")),
        (REDUCE, REDUCED, ("on_reduction", TO, 2, REDUCED)),
        (REDUCE, LinkLost("gone"), ("on_reduction_failure", TO, 2, "gone")),
        (
            REDUCE,
            CannotAverage(b"b" * 32, "cut"),
            ("on_reduction_failure", TO, 2, "cut", 5.0, b"b" * 32),
        ),
        (COMMIT, COMMITTED, ("on_commit_answer", TO, 4, COMMITTED)),
        (COMMIT, Late(), ("on_commit_failure", TO, 4, "Late")),
        (COMMIT, REDUCED, ("on_commit_failure", TO, 4, "Reduced is no answer to that")),
        (REDUCE, COMMITTED, ("on_reduction_failure", TO, 2, "Committed is no answer to that")),
    ],
)
def test_an_answer_or_a_failure_becomes_an_event(order, answer, heard):
    ears = Ears()

    on_answer(ears, order, answer, 5.0)

    assert ears.heard == [heard if 5.0 in heard else (*heard, 5.0)]


@pytest.mark.parametrize(
    ("order", "expected_s"),
    [(FENCE, 11.0 + GRACE_S), (REDUCE, 90.0 + GRACE_S), (COMMIT, COMMIT_MAX_S + GRACE_S)],
)
def test_every_call_has_its_limit(order, expected_s):
    assert limit_s(order) == expected_s


def test_a_launch_carries_its_microbatch_and_who_counts_it():
    meta = TensorMeta(1, (2, 3), 1, 6)

    push = first_push(LAUNCH, RUN, meta)

    assert (push.step, push.microbatch, push.attempt) == (4, 9, 1)
    assert (push.counting, push.tensors, push.stage) == ((0, 2), (meta,), 0)


def test_samples_are_those_of_the_number_and_held_out_ones_apart():
    corpus = numbered_corpus(CONFIG)
    held_out = act.Launch(4, EVALUATION_BASE + 5, 0, Work.EVALUATE, ())

    assert number_in(samples_of(LAUNCH.microbatch, corpus)) == 9
    assert number_in(samples_of(held_out.microbatch, corpus)) == 5


def test_what_became_of_a_launch_is_said_as_servers_say_it():
    assert undelivered_note(LAUNCH, "x" * 999) == Undelivered(4, 9, 1, "x" * REASON_CHARS)


HANDED = Handed(0, 1, 0, b"p" * 32, 8)
COUNTED = Counted(0, 1, 0, counted=True, loss=None)
UNDELIVERED = Undelivered(0, 1, 0, "no road")
EVALUATED = Evaluated(0, 1, 2.0)
READY = Ready(0, b"w")
LOAD = Load(1, 0.1, 0.1, 2.0, 0)


@pytest.mark.parametrize(
    ("note", "heard"),
    [
        (HANDED, ("on_handoff", Incarnation(b"p" * 32, 8), HANDED, 5.0, TO)),
        (COUNTED, ("on_count", TO, COUNTED, 5.0)),
        (UNDELIVERED, ("on_delivery_failure", UNDELIVERED, 5.0, TO)),
        (EVALUATED, ("on_evaluation", TO, EVALUATED, 5.0)),
        (READY, ("on_ready", TO, READY, 5.0)),
        (LOAD, ("on_load", TO, LOAD)),
    ],
)
def test_a_note_becomes_an_event(note, heard):
    ears = Ears()

    on_report(ears, TO, note, 5.0)

    assert ears.heard == [heard]


def test_what_is_no_note_or_comes_too_early_breaks_the_protocol():
    with pytest.raises(BadMessage, match="a Reduced where a note is due"):
        on_report(Ears(), TO, REDUCED, 5.0)
    with pytest.raises(BadMessage, match="a Ready before Assigned"):
        on_report(Ears(), None, READY, 5.0)


def test_a_members_load_is_reported_while_it_lives():
    play = Play()
    ann = play.serve("a")
    play.seen(object)

    play.coordinator.on_load(ann, LOAD)
    assert play.seen(Loaded) == [Loaded(ann, 0, LOAD)]

    play.lose(ann)
    play.coordinator.on_load(ann, LOAD)
    assert play.seen(Loaded) == []


def peer(number: int) -> PeerId:
    return PeerId(number.to_bytes(32))


def test_the_first_server_is_told_of_at_once():
    refusals = VersionRefusals(ours=1)

    refusals.on_notice(peer(1), 2, 5.0)

    assert refusals.drain() == [VersionsRefused(1, (2,), 1)]
    assert refusals.drain() == []
    assert refusals.next_deadline_s() is None


def test_those_who_follow_are_told_of_together_when_it_is_time():
    refusals = VersionRefusals(ours=1)
    for number in (1, 2, 3):
        refusals.on_notice(peer(number), 2, 5.0)
    assert refusals.drain() == [VersionsRefused(1, (2,), 1)]

    refusals.on_deadline(4.9 + SAY_EVERY_S)
    assert refusals.drain() == []
    assert refusals.next_deadline_s() == 5.0 + SAY_EVERY_S
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.drain() == [VersionsRefused(3, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_a_server_that_calls_a_thousand_times_is_told_of_once():
    refusals = VersionRefusals(ours=1)

    for number in range(1000):
        refusals.on_notice(peer(1), 2 + number % 3, number * SAY_EVERY_S)

    assert refusals.drain() == [VersionsRefused(1, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_a_server_that_speaks_our_version_is_no_news():
    refusals = VersionRefusals(ours=7)

    refusals.on_notice(peer(1), 7, 5.0)

    assert refusals.drain() == []
    assert refusals.next_deadline_s() is None


def test_the_common_versions_are_named_by_what_each_server_said_last():
    refusals = VersionRefusals(ours=1)
    said = [(1, 9), (1, 3), (2, 2), (3, 3), *((10 + n, 20 + n) for n in range(VERSIONS_MAX))]

    for number, speaks in said:
        refusals.on_notice(peer(number), speaks, 5.0)
    refusals.drain()
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.drain() == [VersionsRefused(3 + VERSIONS_MAX, (3, 2, 20, 21), 1)]


def test_a_crowd_is_counted_up_to_the_limit():
    refusals = VersionRefusals(ours=1)

    for number in range(PEERS_MAX + 10):
        refusals.on_notice(peer(number), 2, 5.0)
    refusals.drain()
    refusals.on_deadline(50.0)
    refusals.on_notice(peer(PEERS_MAX + 10), 2, 100.0)

    assert refusals.drain() == [VersionsRefused(PEERS_MAX, (2,), 1)]
    assert refusals.next_deadline_s() is None


def test_whoever_is_counted_may_correct_itself_in_a_crowd():
    refusals = VersionRefusals(ours=1, peers_max=2)

    for number, speaks in ((1, 9), (2, 3), (3, 9), (1, 3)):
        refusals.on_notice(peer(number), speaks, 5.0)
    refusals.drain()
    refusals.on_deadline(5.0 + SAY_EVERY_S)

    assert refusals.drain() == [VersionsRefused(2, (3,), 1)]


def test_after_the_run_nothing_is_told():
    refusals = VersionRefusals(ours=1)
    refusals.on_notice(peer(1), 2, 5.0)

    refusals.close()
    refusals.on_notice(peer(2), 2, 50.0)
    refusals.on_deadline(60.0)

    assert refusals.drain() == []
    assert refusals.next_deadline_s() is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.floats(0.0, 7.0)), max_size=60))
def test_reports_grow_and_keep_their_distance_and_nobody_is_left_out(calls):
    refusals, now_s, told = VersionRefusals(ours=1, peers_max=4), 0.0, []

    def heard() -> None:
        told.extend((now_s, report.servers) for report in refusals.drain())

    for number, speaks, pause_s in calls:
        due_s = refusals.next_deadline_s()
        if due_s is not None and due_s <= now_s + pause_s:
            now_s = due_s
            refusals.on_deadline(now_s)
            heard()
        else:
            now_s += pause_s
        refusals.on_notice(peer(number), speaks, now_s)
        heard()
    if (due_s := refusals.next_deadline_s()) is not None:
        now_s = due_s
        refusals.on_deadline(now_s)
        heard()

    others = {number for number, speaks, _ in calls if speaks != 1}
    assert [count for _, count in told] == sorted({count for _, count in told})
    assert all(b[0] >= a[0] + SAY_EVERY_S for a, b in pairwise(told))
    assert (told[-1][1] if told else 0) == min(len(others), 4)
