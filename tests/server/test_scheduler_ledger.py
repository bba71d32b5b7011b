"""The scheduler: what may be counted, what is given up, and when a step begins and ends."""

import pytest
from server.pushes import (
    ABOVE,
    BELOW,
    ME,
    META,
    OTHER,
    RUN,
    TOKENS,
    B,
    backward,
    compute,
    count,
    evaluation,
    fence,
    forwarded,
    push,
    queue,
    scheduler,
)

from p2pswarm.base.errors import BadMessage, NotServing, Refused
from p2pswarm.models.compute.base import BackwardSpec
from p2pswarm.run.messages.microbatch import CHECK_BASE
from p2pswarm.run.messages.step import Reduce


@pytest.mark.parametrize(
    ("stage", "counting", "spec", "returns"),
    [
        (1, (0, 1, 2), BackwardSpec(counting=True, returning=True), True),
        (1, (1,), BackwardSpec(counting=True, returning=False), True),
        (1, (0,), BackwardSpec(counting=False, returning=True), True),
        (1, (2,), BackwardSpec(counting=False, returning=False), False),
        (0, (0,), BackwardSpec(counting=True, returning=False), True),
        (2, (0,), BackwardSpec(counting=False, returning=True), True),
    ],
)
def test_what_a_backward_is_for_follows_from_the_counting_stages(stage, counting, spec, returns):
    one = scheduler(stage=stage)
    tensors = (TOKENS,) if stage == 0 else (TOKENS, META)
    item = queue(one, push(stage=stage, counting=counting, tensors=tensors))

    assert one.spec(item) == spec
    assert one.returns(item) is returns


def test_what_is_in_the_ledger_is_not_counted_again():
    one = scheduler()
    count(one)
    item = queue(one, push(attempt=1))

    assert one.spec(item) == BackwardSpec(counting=False, returning=True)


def test_a_forward_whose_gradient_goes_elsewhere_is_not_held():
    one = scheduler()
    compute(one, queue(one, push(counting=(2,))))

    assert one.held_from((0, 0)) is None


def test_the_last_stage_holds_nothing():
    one = scheduler(stage=2)
    compute(one, queue(one, push(stage=2)), counted=True)

    assert one.held_from((0, 0)) is None
    assert one.bitmap == b"\x01"


def test_the_ledger_is_written_bit_by_bit():
    one = scheduler()
    for number in (0, 3):
        count(one, number)

    assert one.bitmap == b"\x09"


def test_the_ledger_starts_at_the_steps_first_microbatch():
    one = scheduler(version=3)
    count(one, 3 * B + 2)

    assert one.bitmap == b"\x04"


def test_what_cannot_be_computed_is_not_held_or_counted():
    one = scheduler()
    forwarded(one)
    item = queue(one, backward(), ABOVE)
    one.take(0.0)
    one.failed(item, 0.1)

    assert one.bitmap == b"\0"
    assert one.held_from((0, 0)) is None
    assert one.in_hand is None


def test_a_fence_drops_what_has_not_begun():
    one = scheduler()
    forwarded(one)
    coming = one.admit(push(1), BELOW)
    waiting = queue(one, push(2))
    kept = queue(one, push(3))
    dropped = one.fence(fence((0, 0), (1, 0), (2, 3)))

    assert dropped.items == (coming, waiting)
    assert dropped.keys == ((0, 0),)
    assert one.take(0.0) is kept
    with pytest.raises(NotServing, match="given up"):
        one.arrived(coming, 0.0)
    with pytest.raises(NotServing):
        one.admit(backward(), ABOVE)


def test_a_fence_stands_for_all_earlier_attempts_and_no_later_one():
    one = scheduler()
    one.fence(fence((0, 3)))
    one.fence(fence((0, 1)))

    with pytest.raises(NotServing, match="over"):
        one.admit(push(attempt=3), BELOW)
    one.admit(push(attempt=4), BELOW)


def reduce_order(counted, group=(ME, OTHER), step=0, incarnation=5):
    return Reduce(RUN, step, 1, incarnation, counted, group, ())


def backward_in_hand(one):
    """A backward on the compute thread, and what it is to do."""
    forwarded(one)
    item = queue(one, backward(), ABOVE)
    one.take(0.0)
    return item, one.spec(item)


def test_a_fence_takes_the_right_to_count_from_what_is_in_hand():
    one = scheduler()
    item, spec = backward_in_hand(one)
    order = fence((0, 0), (1, 0))
    dropped = one.fence(order)

    assert dropped.keys == ()
    assert one.counted(order) == ()
    assert not spec.may_add()
    assert not one.done(item, 0.1, counted=spec.added)
    assert one.bitmap == b"\0"


def test_a_fence_tells_of_a_gradient_that_is_just_being_added():
    one = scheduler()
    item, spec = backward_in_hand(one)
    assert spec.may_add()
    order = fence((0, 0))

    one.fence(order)

    assert one.counted(order) == (0,)
    assert one.bitmap == b"\x01"
    assert not one.done(item, 0.1, counted=spec.added)
    assert one.counted(order) == (0,)


def test_a_fence_of_another_attempt_or_microbatch_leaves_what_is_in_hand_alone():
    one = scheduler()
    forwarded(one, push(attempt=1))
    item = queue(one, backward(attempt=1), ABOVE)
    one.take(0.0)
    spec = one.spec(item)

    one.fence(fence((0, 0), (1, 5)))

    assert spec.may_add()
    assert one.done(item, 0.1, counted=spec.added)


def test_what_is_in_hand_when_the_incarnation_ends_is_not_counted():
    one = scheduler()
    _, spec = backward_in_hand(one)

    one.close()

    assert not spec.may_add()


def test_while_its_sum_is_averaged_a_server_takes_up_nothing_of_the_step():
    one = scheduler()
    count(one, 2)
    _, spec = backward_in_hand(one)
    waiting = queue(one, push(3))

    one.reduce(reduce_order(b"\x04"), ME)

    assert not spec.may_add()
    one.done(one.in_hand, 0.1, counted=spec.added)
    assert one.take(0.0) is None
    one.fence(fence(step=1))
    assert one.take(0.0) is None
    one.fence(fence())
    assert one.take(0.0) is waiting


def test_a_gradient_that_is_being_added_at_a_reduction_is_missing_in_the_trainers_ledger():
    one = scheduler()
    _, spec = backward_in_hand(one)
    spec.may_add()

    with pytest.raises(Refused, match="ledger"):
        one.reduce(reduce_order(b""), ME)
    assert one.take(0.0) is None


def test_a_held_out_batch_is_computed_while_the_sum_is_averaged():
    one = scheduler()
    one.reduce(reduce_order(b""), ME)
    item = queue(one, evaluation())

    assert one.take(0.0) is item


def test_the_next_step_begins_after_the_commit_of_a_reduction():
    one = scheduler()
    one.reduce(reduce_order(b""), ME)
    item = queue(one, push(B))
    assert one.take(0.0) is None

    one.moved_to(1)

    assert one.take(0.0) is item


def test_a_server_is_idle_while_nothing_would_be_lost_with_it():
    one = scheduler()
    assert one.idle
    item = one.admit(push(), BELOW)
    assert not one.idle
    one.arrived(item, 0.0)
    assert not one.idle
    one.take(0.0)
    assert not one.idle
    one.done(item, 0.1, counted=False)
    assert not one.idle
    compute(one, queue_back(one), counted=True)
    assert not one.idle
    one.moved_to(1)
    assert one.idle


def queue_back(one):
    one.handed((0, 0), ABOVE)
    return queue(one, backward(), ABOVE)


def test_an_observer_goes_on():
    one = scheduler()
    one.reduce(reduce_order(b"", group=(OTHER,)), ME)
    item = queue(one, push())

    assert one.take(0.0) is item


def test_a_forward_that_was_fenced_in_hand_is_thrown_away():
    one = scheduler()
    item = queue(one, push())
    one.take(0.0)
    one.fence(fence((0, 0)))

    assert not one.done(item, 0.1, counted=False)
    assert one.held_from((0, 0)) is None


def test_a_fence_of_the_next_step_holds_when_that_begins():
    one = scheduler()
    waiting = queue(one, push(B))
    order = fence((B, 0), step=1)

    assert one.fence(order).items == (waiting,)
    assert one.counted(order) == ()
    one.moved_to(1)
    with pytest.raises(NotServing, match="over"):
        one.admit(push(B), BELOW)


def test_a_fence_of_one_step_does_not_touch_the_evaluation_of_the_next():
    one = scheduler()
    one.fence(fence((2**61, 0)))
    one.moved_to(1)

    one.admit(evaluation(step=1), BELOW)


@pytest.mark.parametrize("order", [fence((0, 0), incarnation=4), fence((0, 0), step=2)])
def test_a_fence_for_another_incarnation_or_step_is_refused(order):
    with pytest.raises(NotServing):
        scheduler().fence(order)


def test_an_averaging_is_of_the_ledger_that_the_trainer_knows():
    one = scheduler()
    count(one, 2)

    one.reduce(reduce_order(b"\x04"), ME)
    one.reduce(reduce_order(b"\x04\0\0"), ME)
    with pytest.raises(Refused, match="ledger"):
        one.reduce(reduce_order(b"\x06"), ME)


def test_an_observer_has_no_ledger_to_compare():
    scheduler(version=None).reduce(reduce_order(b"\x04", group=(OTHER,), step=9), ME)


@pytest.mark.parametrize("order", [reduce_order(b"", step=1), reduce_order(b"", incarnation=4)])
def test_an_averaging_of_another_step_or_incarnation_is_refused(order):
    with pytest.raises(NotServing):
        scheduler().reduce(order, ME)


def test_a_commit_for_a_former_incarnation_is_refused():
    scheduler().check_incarnation(5)
    with pytest.raises(NotServing):
        scheduler().check_incarnation(4)


def test_a_new_step_begins_with_an_empty_ledger_and_nothing_held():
    one = scheduler()
    count(one, 1)
    forwarded(one)
    old, new = queue(one, push(2)), queue(one, push(B + 1))
    dropped = one.moved_to(1)

    assert dropped.items == (old,)
    assert dropped.keys == ((0, 0),)
    assert one.held_from((0, 0)) is None
    assert one.bitmap == b"\0"
    assert one.take(0.0) is new


def test_what_was_in_hand_when_the_step_ended_does_not_enter_the_next():
    one = scheduler()
    item = queue(one, push())
    one.take(0.0)
    one.moved_to(1)

    assert not one.done(item, 0.1, counted=True)
    assert one.bitmap == b"\0"


def test_a_spot_check_computes_all_and_adds_nothing():
    one = scheduler()
    item = queue(one, push(CHECK_BASE + 1, step=0, counting=(0, 1, 2)))
    one.take(0.0)

    spec = one.spec(item)

    assert (spec.counting, spec.returning, spec.may_add()) == (True, True, False)
    assert one.bitmap == b"\0"


@pytest.mark.parametrize("number", [CHECK_BASE + B, 2 * CHECK_BASE, 3 * CHECK_BASE])
def test_a_check_of_another_steps_microbatch_is_refused(number):
    with pytest.raises(BadMessage):
        queue(scheduler(), push(number, step=0))
