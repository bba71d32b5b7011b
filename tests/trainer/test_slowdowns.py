"""Servers that become slow: however slow, the run goes on, and few attempts are done again."""

import heapq
import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from trainer.harness import RUN, PromptCoordinator

from p2pswarm.run.messages.membership import Join, Ready
from p2pswarm.run.messages.microbatch import Counted
from p2pswarm.run.messages.step import Committed, Reduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import RoadBroken, ServerFails, StepDone
from p2pswarm.trainer.step.in_flight import BACKOFF_MAX_S

ANN = b"a" * 32
FAST_S = 0.1
FENCE_S = 0.01
DAY_S = 86_400.0


class SlowServer:
    """One server of a run of one stage: each attempt takes its time, and none is lost."""

    def __init__(self, takes_s: list[float], microbatches: int, window: int) -> None:
        """`takes_s`: an attempt, step by step."""
        batch = BatchConfig(microbatches=microbatches, window=window, evaluate_every=0)
        self.coordinator = PromptCoordinator(
            RunConfig(stages=1, steps=len(takes_s), min_replicas=1, batch=batch), RUN
        )
        self.now_s = 0.0
        self.takes_s = takes_s
        self.ends_s: list[float] = []
        """Of the steps that are done."""
        self.launched: Counter = Counter()
        """Attempts, by step."""
        self.heap: list = []
        self.order = itertools.count()
        self.fenced: set = set()
        self.reports: list[act.Action] = []
        self.coordinator.on_join(ANN, Join(RUN, "h:1", 0, None, b"", ()), 0.0)
        self.ann = self.coordinator.members.of_peer(ANN).incarnation
        self.coordinator.on_ready(self.ann, Ready(0, b"w0"), 0.0)
        self.obey()

    def later(self, delay_s: float, action: act.Action) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.order), action))

    def obey(self) -> None:
        for action in self.coordinator.drain():
            match action:
                case act.Launch():
                    self.launched[action.step] += 1
                    self.later(self.takes_s[action.step], action)
                case act.SendFence(_, message):
                    self.fenced |= {(work.microbatch, work.attempt) for work in message.work}
                    self.later(FENCE_S, action)
                case act.SendReduce() | act.SendCommit():
                    self.later(FENCE_S, action)
                case StepDone():
                    self.ends_s.append(self.now_s)
                case ServerFails() | RoadBroken():
                    self.reports.append(action)

    def answer(self, action: act.Action) -> None:
        match action:
            case act.Launch() if (action.microbatch, action.attempt) not in self.fenced:
                note = Counted(action.step, action.microbatch, action.attempt, True, 1.0)
                self.coordinator.on_count(self.ann, note, self.now_s)
            case act.SendFence():
                self.coordinator.on_fence_answer(self.ann, (), self.now_s)
            case act.SendReduce(_, message):
                self.coordinator.on_reduction(
                    self.ann, message.generation, Reduced(b"g", 1.0, state=b"w0"), self.now_s
                )
            case act.SendCommit(_, message):
                answer = Committed(message.step + 1, applied=True)
                self.coordinator.on_commit_answer(self.ann, message.step, answer, self.now_s)
                made = Ready(message.step + 1, b"w0")
                self.coordinator.on_ready(self.ann, made, self.now_s)

    def run(self, until_s: float) -> None:
        while len(self.ends_s) < len(self.takes_s) and self.now_s < until_s:
            due_s = self.coordinator.next_deadline_s()
            if self.heap and (due_s is None or self.heap[0][0] <= due_s):
                self.now_s, _, action = heapq.heappop(self.heap)
                self.answer(action)
            else:
                self.now_s = due_s
                self.coordinator.on_deadline(self.now_s)
            self.obey()


def test_servers_that_slow_down_after_a_fast_start_do_not_stop_the_run():
    """The time for an attempt was learned from those that finished; here none would any more."""
    server = SlowServer([FAST_S] * 10 + [15.0] * 2, microbatches=8, window=2)

    server.run(3600.0)

    assert len(server.ends_s) == 12
    assert server.launched[10] <= 8 + 2
    assert server.launched[11] == 8


@given(
    st.lists(st.floats(0.001, BACKOFF_MAX_S - 1.0), min_size=1, max_size=4),
    st.integers(1, 5),
    st.integers(1, 9),
)
def test_any_slowdown_to_an_hour_an_attempt_is_survived(slownesses_s, window, microbatches):
    server = SlowServer([FAST_S, *slownesses_s], microbatches, window)

    server.run(1e9)

    assert len(server.ends_s) == 1 + len(slownesses_s)
    assert max(server.launched.values()) <= microbatches * 11  # doubled from 10 s to an hour


def test_people_hear_of_a_server_that_needs_more_than_an_hour_for_every_attempt():
    """It cannot be told from one that loses all that it is given."""
    server = SlowServer([FAST_S, BACKOFF_MAX_S + 1.0], microbatches=1, window=1)

    server.run(3 * DAY_S)

    assert len(server.ends_s) == 1
    assert {report.incarnation for report in server.reports if isinstance(report, ServerFails)}


class SwallowingServer(SlowServer):
    """For a while it loses all that it is given, without a word; before that it is slow to end."""

    def __init__(self, lost_s: float, stagger_s: float, microbatches: int, window: int) -> None:
        self.lost_s, self.stagger_s = lost_s, stagger_s
        self.from_s = self.to_s = float("inf")
        self.slow = 0
        super().__init__([FAST_S] * 2, microbatches, window)

    def later(self, delay_s: float, action: act.Action) -> None:
        if isinstance(action, act.Launch) and action.step == 1:
            if self.from_s == float("inf"):
                self.from_s, self.to_s = self.now_s + 5.0, self.now_s + 5.0 + self.lost_s
            if self.from_s <= self.now_s < self.to_s:
                return
            if self.now_s < self.from_s:
                delay_s = self.from_s - self.now_s + self.stagger_s * self.slow
                self.slow += 1
        super().later(delay_s, action)


@given(st.floats(1.0, 200.0), st.floats(0.001, 0.05), st.integers(1, 32))
def test_run_goes_on_soon_after_attempts_were_lost_however_many_they_were(
    lost_s, stagger_s, window
):
    """What was launched one after the other must not be waited for one after the other."""
    server = SwallowingServer(lost_s, stagger_s, microbatches=32, window=window)

    server.run(DAY_S)

    assert server.ends_s[1] - server.to_s < 4 * lost_s + 60.0


def test_one_that_was_late_has_twice_the_time_then():
    server = SlowServer([FAST_S, 35.0], microbatches=1, window=1)

    server.run(DAY_S)

    assert server.launched == {0: 1, 1: 3}  # 10 s, 20 s, and 35 s of 40
    assert 65.0 < server.ends_s[1] - server.ends_s[0] < 66.0
