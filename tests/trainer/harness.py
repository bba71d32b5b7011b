"""A coordinator that is told things one at a time, for tests of single rules."""

from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.membership import Join, Ready
from p2pswarm.run.messages.microbatch import Counted, Handed, Sketch, Undelivered
from p2pswarm.run.messages.step import Committed, Reduced, TiedReduced
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator.decision import CoordinatorStart
from p2pswarm.trainer.reports import actions as act

RUN = b"r" * 16
CONFIG = RunConfig(stages=1, steps=2, batch=BatchConfig(microbatches=2, evaluate_every=0))


class PromptCoordinator(Coordinator):
    """A coordinator whose voters accept each record at once."""

    def on_reduction(self, by: Incarnation, generation: int, answer: Reduced, now_s: float) -> None:
        super().on_reduction(by, generation, answer, now_s)
        self.on_decision(self.step, now_s)


class Play:
    """A coordinator and what it has asked for since the last look."""

    def __init__(
        self,
        config: RunConfig = CONFIG,
        kind: type = PromptCoordinator,
        start: CoordinatorStart | None = None,
    ) -> None:
        self.coordinator = kind(config, RUN, start or CoordinatorStart())
        self.now_s = 0.0
        self.states: dict[Incarnation, bytes] = {}
        """The digest that each member said last: it says the same when it has reduced."""
        self.tied: dict[Incarnation, TiedReduced] = {}
        """What each says of a tied tensor."""

    def seen(self, kind: type) -> list:
        return [a for a in self.coordinator.drain() if isinstance(a, kind)]

    def join(
        self, name: str, *, stage: int | None = None, version=None, digest=b"", held=()
    ) -> Incarnation:
        join = self.join_message(stage, version, digest, held)
        self.coordinator.on_join(name.encode() * 32, join, self.now_s)
        member = self.coordinator.members.of_peer(name.encode() * 32)
        if member and version is not None:
            self.states[member.incarnation] = digest
        return member.incarnation if member else None

    def join_message(self, stage: int | None = None, version=None, digest=b"", held=()) -> Join:
        return Join(RUN, "h:1", stage, version, digest, held)

    def ready(self, incarnation: Incarnation, version: int = 0, digest: bytes = b"w0") -> None:
        self.states[incarnation] = digest
        self.coordinator.on_ready(incarnation, Ready(version, digest), self.now_s)

    def serve(self, name: str) -> Incarnation:
        incarnation = self.join(name)
        self.ready(incarnation)
        return incarnation

    def count(
        self,
        incarnation: Incarnation,
        *microbatches: int,
        step: int = 0,
        attempt: int = 0,
        counted: bool = True,
    ) -> None:
        for microbatch in microbatches:
            note = Counted(step, microbatch, attempt, counted=counted, loss=1.0)
            self.coordinator.on_count(incarnation, note, self.now_s)

    def sketch(
        self,
        by: Incarnation,
        microbatch: int,
        attempt: int,
        work: Work,
        took: tuple[float, ...],
        gave: tuple[float, ...],
        step: int = 0,
    ) -> None:
        note = Sketch(step, microbatch, attempt, work, took, gave, 1.0)
        self.coordinator.on_sketch(by, note, self.now_s)

    def stuck(
        self,
        microbatch: int,
        attempt: int = 0,
        *,
        by: Incarnation | None = None,
        obstacle: Obstacle = Obstacle.ROAD,
    ) -> None:
        note = Undelivered(0, microbatch, attempt, "no road", obstacle)
        self.coordinator.on_delivery_failure(note, self.now_s, by)

    def promise(self, *incarnations: Incarnation, counted: tuple[int, ...] = ()) -> None:
        """Members answer a fence, and say which microbatches they have counted already."""
        for incarnation in incarnations:
            self.coordinator.on_fence_answer(incarnation, counted, self.now_s)

    def hand(
        self, incarnation: Incarnation, microbatch: int, attempt: int = 0, step: int = 0
    ) -> None:
        note = Handed(step, microbatch, attempt, incarnation.peer, incarnation.number)
        self.coordinator.on_handoff(incarnation, note, self.now_s)

    def reduce(self, *incarnations: Incarnation, digest: bytes = b"g") -> None:
        generation = self.seen(act.SendReduce)[-1].message.generation
        for incarnation in incarnations:
            self.told_reduced(incarnation, generation, digest)

    def averaged(self, *names: str) -> list[Incarnation]:
        """Members that have counted one microbatch each, in order, and averaged them."""
        members = [self.serve(name) for name in names]
        for microbatch, member in enumerate(members):
            self.count(member, microbatch)
        self.reduce(*members)
        return members

    def lose(self, *incarnations: Incarnation) -> None:
        for incarnation in incarnations:
            self.coordinator.on_stream_end(incarnation, "its link ended", self.now_s)

    def told_reduced(
        self, by: Incarnation, generation: int, digest: bytes = b"g", norm: float | None = 1.0
    ) -> None:
        answer = Reduced(digest, norm, state=self.states.get(by, b"w0"), tied=self.tied.get(by))
        self.coordinator.on_reduction(by, generation, answer, self.now_s)

    def commit(self, incarnation: Incarnation, digest: bytes, step: int = 0) -> None:
        """A member applies a commit, and says the digest of what it has made."""
        answer = Committed(step + 1, applied=True)
        self.coordinator.on_commit_answer(incarnation, step, answer, self.now_s)
        self.ready(incarnation, step + 1, digest)

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.coordinator.on_deadline(self.now_s)
