"""The scheduler under whatever comes: the ledger is what is in the sum, and promises are kept."""

import dataclasses

from core import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server.pushes import ABOVE, BELOW, ME, RUN, B, backward, fence, push, scheduler

from p2pswarm.base.errors import Busy, NotServing, Refused
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.step import Reduce

MICROBATCHES = st.sampled_from([0, 1, B])  # few, so that gradients meet their forwards
ATTEMPTS = st.integers(0, 2)


class ExactlyOnce(RuleBasedStateMachine):
    """Whatever comes in whatever order, the ledger says what is in the sum, once.

    The compute thread adds a gradient at any moment between taking it up and being done. What a
    fence was answered holds from then on, and while the sum is averaged it does not change.
    """

    def __init__(self):
        super().__init__()
        self.scheduler = scheduler()
        self.sum = []
        self.fenced = {}
        self.open = {}
        self.coming = []
        self.spec = None
        self.averaged = None
        """The sum when its reduction began; None while none is under way."""

    @rule(m=MICROBATCHES, attempt=ATTEMPTS, back=st.booleans())
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

    @precondition(lambda self: not self.open and self.averaged is None)
    @rule(m=st.integers(0, 2), attempt=ATTEMPTS)
    def a_microbatch_goes_on_and_its_gradient_comes_back(self, m, attempt):
        """Many steps in one: by chance alone they are rare."""
        number, step = self.first + m, self.scheduler.version
        try:
            item = self.scheduler.admit(push(number, attempt, step=step), BELOW)
        except NotServing:
            return
        self.scheduler.arrived(item, 0.0)
        assert self.scheduler.take(0.0) is item
        self.scheduler.done(item, 0.1, counted=False)
        self.scheduler.handed(item.key, ABOVE)
        item = self.scheduler.admit(backward(number, attempt, step=step), ABOVE)
        self.scheduler.arrived(item, 0.0)
        self.open[item] = None
        self.take()

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
        item = self.scheduler.take(0.0)
        if item is not None:
            self.spec = self.scheduler.spec(item)
            assert self.averaged is None

    @precondition(lambda self: self.scheduler.in_hand and not self.spec.added)
    @rule()
    def the_compute_thread_adds(self):
        item = self.scheduler.in_hand
        if item.work is Work.BACKWARD and self.spec.may_add():
            attempts_over = self.fenced.get((item.push.step, item.push.microbatch), -1)
            assert item.push.attempt > attempts_over, "its fence was answered without it"
            assert self.averaged is None
            self.sum.append(item.push.microbatch)

    @precondition(lambda self: self.scheduler.in_hand)
    @rule()
    def computed(self):
        item = self.scheduler.in_hand
        self.open.pop(item)
        self.scheduler.done(item, 0.1, counted=self.spec.added)
        self.scheduler.handed(item.key, ABOVE)

    @precondition(lambda self: self.scheduler.in_hand and not self.spec.added)
    @rule()
    def failed(self):
        item = self.scheduler.in_hand
        self.open.pop(item)
        self.scheduler.failed(item, 0.1)

    @precondition(lambda self: self.scheduler.in_hand)
    @rule()
    def fence_what_is_in_hand(self):
        push = self.scheduler.in_hand.push
        if push.step == self.scheduler.version:
            self.fence(push.microbatch - self.first, push.attempt)

    @rule(m=MICROBATCHES, attempt=ATTEMPTS)
    def fence(self, m, attempt):
        number, step = self.first + m, self.scheduler.version + m // B
        order = fence((number, attempt), step=step)
        self.end(self.scheduler.fence(order).items)
        mark = (step, number)
        self.fenced[mark] = max(attempt, self.fenced.get(mark, -1))
        assert (number in self.scheduler.counted(order)) == (number in self.sum)
        if step == self.scheduler.version:
            self.averaged = None

    @rule(right=st.booleans())
    def reduce(self, right):
        """The order comes with our ledger, or with another."""
        bits = sum(1 << (m - self.first) for m in self.sum) ^ (not right)
        counted = bits.to_bytes(B // 8, "little")
        order = Reduce(RUN, self.scheduler.version, 1, 5, counted, (ME,), ())
        try:
            self.scheduler.reduce(order, ME)
            assert right
        except Refused:
            assert not right
        self.averaged = list(self.sum)

    @rule()
    def commit(self):
        self.end(self.scheduler.moved_to(self.scheduler.version + 1).items)
        self.sum, self.averaged = [], None
        if self.scheduler.in_hand is not None:  # of the former step
            assert not self.spec.may_add()

    def end(self, items):
        for item in items:
            self.open.pop(item)

    @invariant()
    def the_ledger_is_the_sum(self):
        assert len(set(self.sum)) == len(self.sum)
        bits = sum(1 << (m - self.first) for m in self.sum)
        assert int.from_bytes(self.scheduler.bitmap, "little") == bits

    @invariant()
    def a_sum_that_is_averaged_does_not_change(self):
        assert self.averaged in (None, self.sum)

    @invariant()
    def every_item_is_accounted_for(self):
        in_hand = self.scheduler.in_hand is not None
        assert self.scheduler.queued() + in_hand == len(self.open)


ExactlyOnce.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=60)
TestExactlyOnce = ExactlyOnce.TestCase
