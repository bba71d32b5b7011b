"""The scheduler: what is taken on, in which order, and what may be counted."""

import dataclasses

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from p2pswarm.compute.base import BackwardSpec
from p2pswarm.errors import BadMessage, Busy, NotServing, Refused
from p2pswarm.server.scheduler import (
    EVALUATIONS_MAX,
    HELD_MAX,
    QUEUE_MAX,
    RETRY_FIRST_S,
    RETRY_MAX_S,
    RETRY_MIN_S,
    Scheduler,
)
from p2pswarm.swarm.messages.microbatch import Push
from p2pswarm.swarm.messages.step import Commit, Fence, FencedWork, Reduce
from p2pswarm.swarm.messages.types import Work
from p2pswarm.tensors.meta import TensorMeta

RUN = b"r" * 16
ME, ABOVE, BELOW, OTHER = (bytes([n]) * 32 for n in range(4))
META = TensorMeta(1, (1,), 1, 4, b"1234")
ALL = (0, 1, 2)
B = 8


def scheduler(stage=1, version=0, incarnation=5):
    one = Scheduler(stage, 3, incarnation, B)
    if version is not None:
        one.moved_to(version)
    return one


def push(microbatch=0, attempt=0, work=Work.FORWARD, **changes):
    tensors = (META,) if work is Work.BACKWARD else (META, META)
    fields = {"run": RUN, "step": microbatch // B, "stage": 1, "incarnation": 5, "counting": ALL}
    rest = {"microbatch": microbatch, "attempt": attempt, "work": work, "tensors": tensors}
    return Push(**{**fields, **rest, **changes})


def backward(microbatch=0, attempt=0, **changes):
    return push(microbatch, attempt, Work.BACKWARD, **changes)


def evaluation(number=0, **changes):
    return push(2**61 + number, 0, Work.EVALUATE, **{"step": 0, **changes})


def fence(*work, step=0, incarnation=5):
    return Fence(RUN, step, incarnation, tuple(FencedWork(m, a) for m, a in work))


def queue(one, message, sender=BELOW, now_s=0.0):
    item = one.admit(message, sender)
    one.arrived(item, now_s)
    return item


def compute(one, item, *, counted=False, compute_s=0.1):
    assert one.take(0.0) is item
    return one.done(item, compute_s, counted=counted)


def forwarded(one, message=None, to=ABOVE):
    """A microbatch that has gone on, and whose gradient is due from `to`."""
    message = message or push()
    assert compute(one, queue(one, message))
    one.handed((message.microbatch, message.attempt), to)
    return message


def count(one, microbatch=0, attempt=0):
    forwarded(one, push(microbatch, attempt))
    item = queue(one, backward(microbatch, attempt), ABOVE)
    assert compute(one, item, counted=True)


def test_a_gradient_goes_before_a_microbatch_and_that_before_an_evaluation():
    one = scheduler()
    forwarded(one)
    last = queue(one, evaluation())
    second, third = queue(one, push(1)), queue(one, push(2))
    first = queue(one, backward(), ABOVE)

    for item in (first, second, third, last):
        assert compute(one, item)


def test_nothing_is_taken_up_while_something_is_in_hand():
    one = scheduler()
    item = queue(one, push())
    queue(one, push(1))

    assert one.take(0.0) is item
    assert one.in_hand is item
    assert one.take(0.0) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"stage": 2},
        {"incarnation": 4},
        {"step": 2, "microbatch": 2 * B},
    ],
)
def test_another_stage_life_or_step_is_not_served(changes):
    with pytest.raises(NotServing):
        scheduler().admit(push(**changes), BELOW)


def test_nothing_is_served_before_the_weights_are_here():
    with pytest.raises(NotServing):
        scheduler(version=None).admit(push(), BELOW)


def test_a_former_step_is_not_served():
    with pytest.raises(NotServing):
        scheduler(version=1).admit(push(), BELOW)


def test_a_push_for_the_next_step_waits_for_its_commit():
    one = scheduler()
    item = queue(one, push(B))

    assert one.take(0.0) is None
    assert one.moved_to(1).items == ()
    assert one.take(0.0) is item


def test_the_same_push_twice_is_refused():
    one = scheduler()
    one.admit(push(), BELOW)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_a_push_of_what_is_held_is_refused():
    one = scheduler()
    forwarded(one)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_a_push_of_what_is_in_hand_is_refused():
    one = scheduler()
    queue(one, push())
    one.take(0.0)
    with pytest.raises(NotServing, match="already"):
        one.admit(push(), BELOW)


def test_another_attempt_of_the_same_microbatch_is_another_push():
    one = scheduler()
    one.admit(push(), BELOW)
    one.admit(push(attempt=1), BELOW)

    assert one.queued() == 2


def test_a_gradient_is_taken_only_from_whom_the_microbatch_went_to():
    one = scheduler()
    forwarded(one)

    with pytest.raises(NotServing, match="due from you"):
        one.admit(backward(), OTHER)
    with pytest.raises(NotServing, match="due from you"):
        one.admit(backward(1), ABOVE)
    one.admit(backward(), ABOVE)


def test_a_microbatch_handed_on_by_a_former_step_is_forgotten():
    one = scheduler()
    one.handed((0, 0), ABOVE)

    assert one.held_from((0, 0)) is None


@pytest.mark.parametrize(
    "message",
    [
        push(tensors=(META,)),
        push(stage=1, tensors=()),
        push(B, step=0),
        backward(tensors=(META, META)),
    ],
)
def test_what_no_honest_peer_sends_is_named(message):
    with pytest.raises(BadMessage):
        scheduler().admit(message, BELOW)


def test_the_first_stage_takes_tokens_alone():
    one = scheduler(stage=0)

    with pytest.raises(BadMessage):
        one.admit(push(stage=0), BELOW)
    one.admit(push(stage=0, tensors=(META,)), BELOW)


def test_the_queue_is_bounded_and_says_when_to_come_again():
    one = Scheduler(1, 3, 5, 2 * QUEUE_MAX)
    one.moved_to(0)
    for number in range(QUEUE_MAX):
        one.admit(push(number, step=0), BELOW)

    with pytest.raises(Busy) as refusal:
        one.admit(push(QUEUE_MAX, step=0), BELOW)
    assert refusal.value.retry_after_s == RETRY_FIRST_S
    one.admit(evaluation(), BELOW)


def test_evaluations_are_bounded_apart():
    one = scheduler()
    for number in range(EVALUATIONS_MAX):
        one.admit(evaluation(number), BELOW)

    with pytest.raises(Busy):
        one.admit(evaluation(EVALUATIONS_MAX), BELOW)
    one.admit(push(), BELOW)


def test_held_microbatches_are_bounded():
    one = Scheduler(1, 3, 5, 2 * HELD_MAX)
    one.moved_to(0)
    for number in range(HELD_MAX):
        forwarded(one, push(number, step=0))

    with pytest.raises(Busy):
        one.admit(push(HELD_MAX, step=0), BELOW)
    one.admit(backward(0), ABOVE)


def test_a_server_that_leaves_takes_gradients_only():
    one = scheduler()
    forwarded(one)
    one.closing = True

    with pytest.raises(NotServing, match="leaving"):
        one.admit(push(1), BELOW)
    one.admit(backward(), ABOVE)


@pytest.mark.parametrize(
    ("compute_s", "retry_s"), [(1e-6, RETRY_MIN_S), (0.3, 0.3), (1e3, RETRY_MAX_S)]
)
def test_the_wait_that_is_told_is_the_measured_time_within_limits(compute_s, retry_s):
    one = scheduler()
    compute(one, queue(one, push()), compute_s=compute_s)

    assert one.retry_after_s() == pytest.approx(retry_s)


def test_the_measured_time_follows_slowly():
    one = scheduler()
    compute(one, queue(one, push()), compute_s=1.0)
    compute(one, queue(one, push(1)), compute_s=2.0)
    compute(one, queue(one, evaluation()), compute_s=9.0)

    assert one.retry_after_s() == pytest.approx(1.1)


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
def test_a_duty_follows_from_the_counting_stages(stage, counting, spec, returns):
    one = scheduler(stage=stage)
    tensors = (META,) if stage == 0 else (META, META)
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


def test_bytes_that_do_not_come_make_room():
    one = scheduler()
    item = one.admit(push(), BELOW)
    one.withdraw(item)
    one.withdraw(item)

    assert one.queued() == 0
    one.admit(push(), BELOW)


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


def test_a_fence_waits_for_what_is_in_hand_and_tells_that_it_counted():
    one = scheduler()
    forwarded(one)
    item = queue(one, backward(), ABOVE)
    one.take(0.0)
    order = fence((0, 0), (1, 0))
    dropped = one.fence(order)

    assert dropped.keys == ()
    assert one.fences_in_hand(order)
    assert not one.fences_in_hand(fence((1, 0)))
    assert not one.done(item, 0.1, counted=True)
    assert not one.fences_in_hand(order)
    assert one.counted(order) == (0,)


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
def test_a_fence_for_another_life_or_step_is_refused(order):
    with pytest.raises(NotServing):
        scheduler().fence(order)


def reduce_order(counted, group=(ME, OTHER), step=0, incarnation=5):
    return Reduce(RUN, step, 1, incarnation, counted, group, ())


def test_an_averaging_is_of_the_ledger_that_the_trainer_knows():
    one = scheduler()
    count(one, 2)

    one.check_reduce(reduce_order(b"\x04"), ME)
    one.check_reduce(reduce_order(b"\x04\0\0"), ME)
    with pytest.raises(Refused, match="ledger"):
        one.check_reduce(reduce_order(b"\x06"), ME)


def test_an_observer_has_no_ledger_to_compare():
    scheduler(version=None).check_reduce(reduce_order(b"\x04", group=(OTHER,), step=9), ME)


@pytest.mark.parametrize("order", [reduce_order(b"", step=1), reduce_order(b"", incarnation=4)])
def test_an_averaging_of_another_step_or_life_is_refused(order):
    with pytest.raises(NotServing):
        scheduler().check_reduce(order, ME)


def test_a_commit_for_a_former_life_is_refused():
    order = Commit(RUN, 0, 1, 5, 1.0, 0.1)

    scheduler().check_commit(order)
    with pytest.raises(NotServing):
        scheduler().check_commit(dataclasses.replace(order, incarnation=4))


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


def test_a_period_tells_what_was_done_since_the_last():
    one = scheduler()
    queue(one, push(), now_s=1.0)
    item = one.take(3.0)
    one.done(item, 0.5, counted=True)
    period = one.period(4.0)

    assert (period.started_s, period.counted) == (0.0, 1)
    assert (period.waits_s, period.computes_s) == ([2.0], [0.5])
    assert one.period(5.0).started_s == 4.0


class ExactlyOnce(RuleBasedStateMachine):
    """Whatever comes in whatever order, the ledger says what is in the sum, once."""

    def __init__(self):
        super().__init__()
        self.scheduler = scheduler()
        self.sum = []
        self.fenced = {}
        self.open = {}
        self.coming = []

    @rule(m=st.integers(0, 2 * B - 1), attempt=st.integers(0, 3), back=st.booleans())
    def something_comes(self, m, attempt, back):
        message = (backward if back else push)(m, attempt, step=m // B + self.first // B)
        message = dataclasses.replace(message, microbatch=self.first + m)
        try:
            item = self.scheduler.admit(message, ABOVE if back else BELOW)
        except (NotServing, Busy):
            return
        mark = (message.step, message.microbatch)
        assert attempt > self.fenced.get(mark, -1)
        self.coming.append(item)
        self.open[item] = None

    @property
    def first(self):
        return self.scheduler.version * B

    @precondition(lambda self: self.coming)
    @rule(data=st.data(), arrives=st.booleans())
    def bytes_come_or_not(self, data, arrives):
        item = self.coming.pop(data.draw(st.integers(0, len(self.coming) - 1)))
        if not arrives:
            self.scheduler.withdraw(item)
            self.open.pop(item, None)
        elif item in self.open:
            self.scheduler.arrived(item, 0.0)

    @rule()
    def take(self):
        self.scheduler.take(0.0)

    @precondition(lambda self: self.scheduler.in_hand)
    @rule(fails=st.booleans())
    def computed(self, fails):
        item = self.scheduler.in_hand
        self.open.pop(item)
        if fails:
            self.scheduler.failed(item, 0.1)
            return
        counted = item.work is Work.BACKWARD and self.scheduler.spec(item).counting
        if counted:
            self.sum.append(item.push.microbatch)
        self.scheduler.done(item, 0.1, counted=counted)
        self.scheduler.handed(item.key, ABOVE)

    @rule(m=st.integers(0, 2 * B - 1), attempt=st.integers(0, 3))
    def fence(self, m, attempt):
        number, step = self.first + m, self.scheduler.version + m // B
        order = fence((number, attempt), step=step)
        self.end(self.scheduler.fence(order).items)
        mark = (step, number)
        self.fenced[mark] = max(attempt, self.fenced.get(mark, -1))
        if not self.scheduler.fences_in_hand(order):
            assert (number in self.scheduler.counted(order)) == (number in self.sum)

    @precondition(lambda self: self.scheduler.in_hand is None)
    @rule()
    def commit(self):
        self.end(self.scheduler.moved_to(self.scheduler.version + 1).items)
        self.sum = []

    def end(self, items):
        for item in items:
            self.open.pop(item)

    @invariant()
    def the_ledger_is_the_sum(self):
        assert len(set(self.sum)) == len(self.sum)
        bits = sum(1 << (m - self.first) for m in self.sum)
        assert int.from_bytes(self.scheduler.bitmap, "little") == bits

    @invariant()
    def every_ticket_is_accounted_for(self):
        in_hand = self.scheduler.in_hand is not None
        assert self.scheduler.queued() + in_hand == len(self.open)


ExactlyOnce.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestExactlyOnce = ExactlyOnce.TestCase
