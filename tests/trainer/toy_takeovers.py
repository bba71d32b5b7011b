"""A toy swarm whose coordinators die: the next one begins with what was decided, and no more."""

import heapq

from trainer.toy_server import Server
from trainer.toy_swarm import RUN, World

from p2pswarm.run.chain.record import term_of
from p2pswarm.run.member_view import Incarnation
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart, DecidedStep
from p2pswarm.trainer.reports import actions as act


class Takeovers(World):
    """Coordinators one after the other; what each was about to do dies with it."""

    def __init__(
        self, seed: int, stages: int, steps: int, microbatches: int, delay: int = 0
    ) -> None:
        super().__init__(seed, stages, steps, microbatches, delay)
        self.term = 0
        self.takeovers = 0
        self.late_share = 0.2  # of the servers that find the new coordinator late
        self.proposed: act.Decide | None = None
        self.last: act.Decide | None = None
        self.decided_steps: list[int] = []

    def carry_out(self, action: act.Action) -> None:
        if isinstance(action, act.Decide):
            self.proposed = action
        super().carry_out(action)

    def decided(self, step: int) -> None:
        self.accept()
        super().decided(step)

    def accept(self) -> None:
        """A majority of the voters has accepted what was proposed."""
        assert self.proposed is not None
        self.last, self.proposed = self.proposed, None
        self.decided_steps.append(self.last.step)

    def push_ended(self, source, step, microbatch, attempt, incarnation, answer) -> None:
        if source is None and term_of(incarnation.number) != self.term:
            return  # the trainer that pushed it leads no more
        super().push_ended(source, step, microbatch, attempt, incarnation, answer)

    def as_known(self, server: Server, other: Server) -> Incarnation:
        """A server knows the members of its own coordinator only."""
        known, mine = super().as_known(server, other), server.incarnation
        same = mine is not None and term_of(known.number) == term_of(mine.number)
        return known if same else Incarnation(other.peer, 0)

    def take_over(self) -> None:
        """The coordinator dies; what it had proposed is decided after all, or never."""
        if self.proposed is not None and self.rng.random() < 0.5:
            self.accept()
        self.proposed = None
        self.term += 1
        self.takeovers += 1
        own = self.launch, self.handed, self.undelivered, self.decided
        self.heap = [entry for entry in self.heap if entry[2] not in own]
        heapq.heapify(self.heap)
        self.cancelled.clear()
        self.coordinator = Coordinator(self.config, RUN, self.start_of(self.term))
        for server in self.servers.values():
            self.lose_coordinator(server)
        self.pump()

    def lose_coordinator(self, server: Server) -> None:
        """It obeys the former coordinator until it finds the new one, and says what it holds."""
        server.linked = False
        if server.alive:
            late = self.rng.random() < self.late_share
            delay_s = self.rng.uniform(1.0, 6.0) if late else self.rng.uniform(0.05, 1.0)
            self.later(delay_s, self.guard(server, self.join), server)

    def start_of(self, term: int) -> CoordinatorStart:
        """As `CoordinatorStart.after` reads it in the last record."""
        if (last := self.last) is None:
            return CoordinatorStart(term)
        stages = dict(enumerate(last.stages))
        decided = DecidedStep(
            last.step,
            last.scale,
            last.learning_rate,
            {stage: commit.gradient for stage, commit in stages.items()},
            {stage: commit.state for stage, commit in stages.items()},
            {stage: tuple(one.peer for one in commit.members) for stage, commit in stages.items()},
        )
        return CoordinatorStart(term, last.step + 1, decided, gathers=False)
