"""The scheduler under whatever comes: the ledger is what is in the sum."""

import dataclasses

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from server.pushes import ABOVE, BELOW, B, backward, fence, push, scheduler

from p2pswarm.errors import Busy, NotServing
from p2pswarm.swarm.messages.types import Work


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
    def every_item_is_accounted_for(self):
        in_hand = self.scheduler.in_hand is not None
        assert self.scheduler.queued() + in_hand == len(self.open)


ExactlyOnce.TestCase.settings = settings(max_examples=150, stateful_step_count=60)
TestExactlyOnce = ExactlyOnce.TestCase
