"""A scheduler with a delay: two steps at a time, and the promises of each by itself."""

import pytest
from server.pushes import (
    ABOVE,
    LAST,
    ME,
    RUN,
    B,
    backward,
    compute,
    count,
    evaluation,
    expected,
    fence,
    forwarded,
    push,
    queue,
)

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.run.messages.microbatch import CHECK_BASE
from p2pswarm.run.messages.step import Reduce
from p2pswarm.server.scheduler import Scheduler, bitmap_of


def delayed(version: int = 0) -> Scheduler:
    one = Scheduler(1, LAST + 1, 5, B, expected(), delay=1)
    one.moved_to(version)
    return one


def reduce(step: int, *counted: int) -> Reduce:
    return Reduce(RUN, step, 1, 5, bitmap_of(counted, step, B), (ME,), ())


def test_the_next_step_is_computed_and_the_one_after_it_waits_for_a_commit():
    one = delayed()
    after = queue(one, push(2 * B))
    ahead = queue(one, push(B))

    assert compute(one, ahead)
    assert one.take(0.0) is None
    with pytest.raises(NotServing):
        one.admit(push(3 * B), ABOVE)
    one.moved_to(1)
    assert one.take(0.0) is after


def test_the_older_step_goes_first_also_its_held_out_batches():
    one = delayed()
    forwarded(one, push(B))
    fourth = queue(one, push(B + 1))
    third = queue(one, backward(B), ABOVE)
    second = queue(one, evaluation())
    first = queue(one, push(1))

    for item in (first, second, third, fourth):
        assert compute(one, item)


def test_a_held_out_batch_of_the_next_step_waits_for_its_weights():
    one = delayed()
    queue(one, evaluation(step=1))

    assert one.take(0.0) is None


def test_a_reduction_names_what_its_own_step_has_counted():
    one = delayed()
    count(one, 2)
    count(one, B + 3)

    with pytest.raises(Refused):
        one.reduce(reduce(0, 2, 3), ME)
    one.reduce(reduce(0, 2), ME)


def test_the_next_step_is_counted_while_its_step_is_reduced():
    one = delayed()
    one.reduce(reduce(0), ME)
    queue(one, push(4))

    count(one, B)

    assert one.take(0.0) is None


def test_a_fence_of_the_next_step_leaves_a_reduction_alone():
    one = delayed()
    one.reduce(reduce(0), ME)
    waits = queue(one, push(4))
    count(one, B)

    one.fence(answered := fence((B, 0), step=1))

    assert one.counted(answered) == (B,)
    assert one.take(0.0) is None
    one.fence(fence(step=0))
    assert one.take(0.0) is waits


def test_a_commit_keeps_what_the_next_step_has_counted_and_holds():
    one = delayed()
    count(one, 1)
    count(one, B + 1)
    forwarded(one, push(B + 2))
    queue(one, backward(B + 2), ABOVE)
    in_hand = one.take(0.0)

    dropped = one.moved_to(1)

    assert dropped.items == dropped.keys == ()
    assert one.done(in_hand, 0.1, counted=True)
    one.reduce(reduce(1, B + 1, B + 2), ME)


def test_a_commit_drops_what_is_held_of_a_check_of_its_step_alone():
    one = delayed()
    for number in (0, B):
        forwarded(one, push(CHECK_BASE + number, step=number // B))

    dropped = one.moved_to(1)

    assert dropped.keys == ((CHECK_BASE, 0),)
    assert one.held_from((CHECK_BASE + B, 0)) is not None


def test_a_commit_takes_the_permit_of_its_own_step():
    one = delayed()
    queue(one, push(1))
    in_hand = one.take(0.0)
    spec = one.spec(in_hand)

    one.moved_to(1)

    assert not spec.may_add()
