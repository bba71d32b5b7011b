"""A member that lies: it may lose its place or hold things up, and nothing is ever raised."""

import math
import sys
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import RUN, Play

from p2pswarm.net.wire.message import encode
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import GROUP_MAX, REASON_CHARS
from p2pswarm.run.messages.membership import Ready
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Undelivered
from p2pswarm.run.messages.step import Committed, Reduce, Reduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost, StepDone
from p2pswarm.trainer.step.in_flight import EVALUATION_BASE

HUGE = sys.float_info.max
steps = st.sampled_from([0, 1, 2, 2**48])
microbatches = st.sampled_from([0, 1, 2, 3, 4, 5, EVALUATION_BASE, EVALUATION_BASE + 1, 2**62])
attempts = st.sampled_from([0, 1, 2, 2**31])
losses = st.sampled_from([0.0, -1.0, 2.5, HUGE, -HUGE])
digests = st.sampled_from([b"", b"w0", b"w1", b"x" * 32])
numbers = st.sampled_from([0, 1, 2, 3, 2**62])
names = st.sampled_from("abc")
lies = st.one_of(
    st.tuples(st.just("join"), names, st.sampled_from([None, 0, 1, 255]), st.none() | steps),
    st.tuples(st.just("on_withdrawal"), names),
    st.tuples(st.just("on_ready"), names, st.builds(Ready, steps, digests)),
    st.tuples(st.just("on_stream_end"), names),
    st.tuples(
        st.just("on_handoff"),
        st.builds(
            Handed, steps, microbatches, attempts, names.map(lambda n: n.encode() * 32), numbers
        ),
    ),
    st.tuples(
        st.just("on_count"),
        names,
        st.builds(Counted, steps, microbatches, attempts, st.booleans(), st.none() | losses),
    ),
    st.tuples(
        st.just("on_delivery_failure"),
        st.builds(Undelivered, steps, microbatches, attempts, st.just("")),
    ),
    st.tuples(st.just("on_evaluation"), names, st.builds(Evaluated, steps, microbatches, losses)),
    st.tuples(st.just("on_fence_answer"), names, st.lists(microbatches, max_size=4).map(tuple)),
    st.tuples(
        st.just("on_reduction"), names, numbers, st.builds(Reduced, digests, st.none() | losses)
    ),
    st.tuples(st.just("on_reduction_failure"), names, numbers),
    st.tuples(st.just("on_commit_answer"), names, steps, st.builds(Committed, steps, digests)),
    st.tuples(st.just("on_commit_failure"), names, steps),
    st.tuples(st.just("wait"), st.sampled_from([0.0, 0.1, 5.0, 30.0, 120.0])),
)


def tell(play: Play, lie: tuple) -> None:
    """One lie, by the present incarnation of its name, or by one that never was."""
    kind, *rest = lie
    coordinator, now_s = play.coordinator, play.now_s
    match kind:
        case "join":
            play.join(rest[0], stage=rest[1], version=rest[2], digest=b"w0")
        case "on_withdrawal":
            coordinator.on_withdrawal(rest[0].encode() * 32)
        case "wait":
            play.wait(rest[0])
        case "on_handoff":
            coordinator.on_handoff(Incarnation(rest[0].peer, rest[0].incarnation), rest[0], now_s)
        case "on_delivery_failure":
            coordinator.on_delivery_failure(rest[0], now_s)
        case _:
            name, *told = rest
            member = coordinator.members.of_peer(name.encode() * 32)
            by = member.incarnation if member else Incarnation(b"?" * 32, 7)
            reason = (
                ["it says so"]
                if kind in ("on_stream_end", "on_reduction_failure", "on_commit_failure")
                else []
            )
            getattr(coordinator, kind)(by, *told, *reason, now_s)


@given(st.lists(lies, max_size=60))
def test_no_lie_is_an_exception_and_no_deadline_is_in_the_past(told):
    config = RunConfig(
        stages=2,
        steps=2,
        batch=BatchConfig(microbatches=2, evaluate_every=1, evaluate_microbatches=1),
    )
    play = Play(config)
    for name in "ab":
        play.serve(name)

    for lie in told:
        tell(play, lie)
        for action in play.seen(act.SendReduce | act.SendCommit | act.SendFence):
            encode(action.message)
        due_s = play.coordinator.next_deadline_s()
        if due_s is not None and due_s <= play.now_s:
            play.wait(0.0)
            due_s = play.coordinator.next_deadline_s()
        assert due_s is None or due_s > play.now_s


def test_a_norm_that_no_gradient_has_puts_its_member_out():
    for square in (-1.0, HUGE):
        play = Play()
        ann = play.serve("a")
        play.count(ann, 0, 1)
        play.coordinator.on_reduction(ann, 1, Reduced(b"g", square, state=b"w0"), play.now_s)

        assert [e.incarnation for e in play.seen(act.Evict)] == [ann]


def test_a_strangers_bad_norm_is_ignored():
    play = Play()
    ann, bob = play.serve("a"), play.join("b")
    play.count(ann, 0, 1)
    play.coordinator.on_reduction(bob, 1, Reduced(b"g", -1.0, state=b"w0"), play.now_s)

    assert play.seen(act.Evict) == []


def test_a_step_whose_losses_nobody_told_has_none():
    play = Play()
    ann = play.serve("a")
    for microbatch in (0, 1):
        note = Counted(0, microbatch, 0, counted=True, loss=None)
        play.coordinator.on_count(ann, note, play.now_s)
    play.reduce(ann)

    (done,) = play.seen(StepDone)
    assert math.isnan(done.loss)


def test_losses_too_large_to_add_up_are_none():
    play = Play()
    ann = play.serve("a")
    for microbatch in (0, 1):
        note = Counted(0, microbatch, 0, counted=True, loss=HUGE)
        play.coordinator.on_count(ann, note, play.now_s)
    play.reduce(ann)

    (done,) = play.seen(StepDone)
    assert math.isnan(done.loss)


def test_only_the_last_stage_tells_a_loss_and_only_of_this_step():
    play = Play(RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=1, evaluate_every=0)))
    ann, bob = play.serve("a"), play.serve("b")
    for by, microbatch, loss in ((bob, 0, 2.0), (ann, 0, 9.0), (bob, 77, 9.0)):
        note = Counted(0, microbatch, 0, counted=True, loss=loss)
        play.coordinator.on_count(by, note, play.now_s)
    play.reduce(ann, bob)

    (done,) = play.seen(StepDone)
    assert done.loss == 2.0


def test_a_commit_to_another_version_puts_its_member_out():
    """Believed, it would end every comparison of weights from then on."""
    play = Play()
    ann = play.serve("a")
    play.count(ann, 0, 1)
    play.reduce(ann)
    play.coordinator.on_commit_answer(ann, 0, Committed(2**48, applied=True), play.now_s)

    assert [e.incarnation for e in play.seen(act.Evict)] == [ann]


def test_an_attempt_may_be_torn_a_thousand_times():
    """Handed to nobody again and again, it is launched again and again, two seconds apart."""
    play = Play()
    ann = play.serve("a")
    play.count(ann, 1)
    ghost = Incarnation(b"g" * 32, 99)
    for attempt in range(1100):
        play.coordinator.on_handoff(ghost, Handed(0, 0, attempt, ghost.peer, 99), play.now_s)
        play.promise(ann)
        play.wait(2.0)

    assert play.seen(act.Launch)[-1].attempt == 1100


def test_a_stage_has_no_more_servers_than_an_order_has_room_for():
    play = Play()
    members = []
    for number in range(GROUP_MAX):
        peer = number.to_bytes(32)
        play.coordinator.on_join(peer, play.join_message(), play.now_s)
        members.append(play.coordinator.members.of_peer(peer).incarnation)
        if number % 2 == 0:
            play.ready(members[-1])
    play.seen(object)
    one_more, by_name = b"x" * 32, b"y" * 32
    play.coordinator.on_join(one_more, play.join_message(), play.now_s)
    play.coordinator.on_join(by_name, replace(play.join_message(0), pinned=True), play.now_s)

    declined = play.seen(act.Decline)

    assert [decline.peer for decline in declined] == [one_more, by_name]
    assert "every stage has all the" in declined[0].reason
    assert "stage 0 has all the" in declined[1].reason
    assert all(len(decline.reason) <= REASON_CHARS for decline in declined)
    play.count(members[0], 0)
    play.count(members[0], 1)
    orders = [order.message for order in play.seen(act.SendReduce)]
    assert all(isinstance(order, Reduce) and encode(order) for order in orders)
    assert len(orders) == GROUP_MAX
    assert len(orders[0].group) == len(orders[0].observers) == GROUP_MAX // 2
    assert orders[0].run == RUN


def test_one_that_rejoins_a_stage_that_is_full_by_now_is_given_another():
    config = RunConfig(stages=2, steps=2, batch=BatchConfig(microbatches=2))
    play = Play(config)
    for number in range(GROUP_MAX):
        play.coordinator.on_join(number.to_bytes(32), play.join_message(0), play.now_s)
    play.seen(object)

    play.join("x", stage=0, version=0, digest=b"w0")

    (assign,) = play.seen(act.Assign)
    assert (assign.message.stage, assign.message.keep) == (1, False)


def test_who_was_given_nothing_counts_nothing_and_is_out():
    """A stranger could count what others compute, and have each of them put out for it."""
    play = Play()
    ann, bob = play.serve("a"), play.join("b")

    play.count(bob, 0)
    play.count(ann, 0)

    assert [evict.incarnation for evict in play.seen(act.Evict)] == [bob]
    assert play.coordinator.members.alive(ann)


def test_of_two_that_count_one_microbatch_that_one_is_out_that_it_was_not_handed_to():
    play = Play()
    ann, bob = play.serve("a"), play.serve("b")
    play.hand(ann, 0)

    play.count(bob, 0)
    play.count(ann, 0)

    assert [evict.incarnation for evict in play.seen(act.Evict)] == [bob]


def test_a_thousand_joins_of_one_peer_are_one_member():
    play = Play()
    for _ in range(1000):
        play.join("a")

    assert len(play.coordinator.members.records()) == 1
    assert len(play.seen(MemberLost)) == 999


def test_only_the_member_that_has_a_microbatch_hands_it_on_and_only_to_the_next_stage():
    """Else it could give up all that is under way, or name whom it likes as the one to wait for."""
    batch = BatchConfig(microbatches=1, evaluate_every=0)
    play = Play(RunConfig(stages=2, steps=2, min_replicas=1, batch=batch))
    ann, bob, eve = play.serve("a"), play.serve("b"), play.serve("e")
    play.hand(ann, 0)
    ghost = Incarnation(b"g" * 32, 99)

    for to, by in ((ghost, eve), (bob, eve), (eve, ann), (bob, ghost)):
        note = Handed(0, 0, 0, to.peer, to.number)
        play.coordinator.on_handoff(to, note, play.now_s, by)
    play.promise(ann, eve, bob)
    play.wait(1.0)

    assert [one.attempt for one in play.seen(act.Launch)] == [0]
    play.coordinator.on_handoff(ghost, Handed(0, 0, 0, ghost.peer, 99), play.now_s, ann)
    play.promise(ann, eve, bob)
    play.wait(1.0)
    assert [one.attempt for one in play.seen(act.Launch)][-1] == 1
