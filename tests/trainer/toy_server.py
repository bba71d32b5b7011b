"""The servers of the toy swarm: what one takes on, counts, averages and commits, and when."""

from dataclasses import dataclass, field

from p2pswarm.run.chain.record import term_of
from p2pswarm.run.member_view import Incarnation, MemberView
from p2pswarm.run.messages.field_limits import Obstacle, Work
from p2pswarm.run.messages.membership import HeldSum
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Undelivered
from p2pswarm.run.messages.step import Commit, Committed, FencedWork, Reduce, Reduced


def digest(weights: tuple) -> bytes:
    return hash(weights).to_bytes(8, "little", signed=True)


@dataclass
class Server:
    """One process; `epoch` changes when it restarts or rejoins, and old callbacks die with it."""

    peer: bytes
    epoch: int = 0
    alive: bool = True
    linked: bool = False
    stage: int | None = None
    incarnation: Incarnation | None = None
    version: int | None = None
    weights: tuple = ()
    ready: bool = False
    since: int = 0
    roster: MemberView = field(default_factory=MemberView)
    summed: list = field(default_factory=list)
    sum_of: Incarnation | None = None
    """The incarnation in which that was counted."""
    fences: dict = field(default_factory=dict)
    held: dict = field(default_factory=dict)
    reductions: dict = field(default_factory=dict)
    averaging: set = field(default_factory=set)
    commits: dict = field(default_factory=dict)
    waiting: list = field(default_factory=list)
    kept: dict[int, tuple] = field(default_factory=dict)
    """The reductions that the weights could apply, by term: round, what is in it."""
    frozen_s: float = 0.0
    """Until when it does nothing."""


class ToyServers:
    """What servers do; the swarm around them lends time, roads and a coordinator."""

    def __init__(self) -> None:
        self.heirs: dict[Incarnation, Incarnation] = {}
        """The incarnations that go on with the sum of another."""

    def held_sum(self, server: Server) -> HeldSum | None:
        """What a server says, on joining, of the sum that it still has."""
        if server.sum_of is None or server.version is None:
            return None

        def bitmap(step: int) -> bytes:
            first = step * self.config.batch.microbatches
            bits = sum(1 << m - first for m in self.of_step(server, step))
            return bits.to_bytes(-(-self.config.batch.microbatches // 8), "little")

        step = server.version
        ahead = bitmap(step + 1) if self.of_step(server, step + 1) else b""
        return HeldSum(server.sum_of.number, step, bitmap(step), ahead=ahead)

    def sum_is_of(self, server: Server) -> Incarnation | None:
        """Whose sum a server has, as the coordinator sees it."""
        one = server.sum_of
        while one in self.heirs:
            one = self.heirs[one]
        return one

    def counted_once(self, server: Server, microbatch: int) -> None:
        """Of a stage's members, also suspended ones, no two hold one microbatch, at any moment."""

        def holds(other: Server) -> bool:
            one = self.sum_is_of(other)
            there = one is not None and other.stage == server.stage
            return there and microbatch in other.summed and self.coordinator.holds(one)

        if holds(server):
            holders = [other for other in self.servers.values() if holds(other)]
            assert holders == [server], f"{len(holders)} hold microbatch {microbatch}"

    def live(self, server: Server, step: int) -> bool:
        """Whether a server computes a step with the weights that it has."""
        return server.version is not None and 0 <= step - server.version <= self.config.delay

    def of_step(self, server: Server, step: int) -> list[int]:
        """What a server has counted of a step."""
        return [m for m in server.summed if m // self.config.batch.microbatches == step]

    def take(
        self, server: Server, incarnation, source, step, microbatch, attempt, work, counting, path
    ):
        """Accept or refuse a push; returns whether it was taken."""
        if server.incarnation != incarnation or server.version is None:
            return False
        early = 1 if work is Work.EVALUATE else 1 + self.config.delay
        if early <= step - server.version <= 1 + self.config.delay:
            args = server, incarnation, source, step, microbatch, attempt, work, counting, path
            server.waiting.append(self.guard(server, lambda: self.work_or_tell(*args)))
            return True
        return self.work(server, source, step, microbatch, attempt, work, counting, path)

    def work_or_tell(
        self, server, incarnation, source, step, microbatch, attempt, work, counting, path
    ):
        if not self.work(server, source, step, microbatch, attempt, work, counting, path):
            self.undelivered(server, step, microbatch, attempt)

    def work(self, server, source, step, microbatch, attempt, work, counting, path) -> bool:
        if not self.live(server, step) or attempt <= server.fences.get(microbatch, -1):
            return False
        args = server, source, step, microbatch, attempt, work, counting
        compute = self.backward if work is Work.BACKWARD else self.forward
        if work is Work.BACKWARD and server.held.get(microbatch, (None, -1))[1] != attempt:
            return False
        self.later(self.rng.uniform(0.01, 0.1), self.guard(server, compute), *args)
        return True

    def forward(self, server, source, step, microbatch, attempt, work, counting) -> None:
        if not self.live(server, step) or attempt <= server.fences.get(microbatch, -1):
            return
        last = server.stage == self.config.stages - 1
        if work is Work.EVALUATE and last:
            note, incarnation = Evaluated(step, microbatch, 2.0), server.incarnation
            self.note(server, lambda: self.coordinator.on_evaluation(incarnation, note, self.now_s))
            return
        if work is Work.FORWARD:
            server.held[microbatch] = source, attempt
        if last:
            self.backward(server, source, step, microbatch, attempt, work, counting)
            return
        ready = server.roster.ready(server.stage + 1)
        if (
            not ready
        ):  # the view is still on its way, or nobody is left; the trainer's fence ends this
            again = self.guard(server, self.forward)
            self.later(0.1, again, server, source, step, microbatch, attempt, work, counting)
            return
        record = self.rng.choice(ready)
        target = self.servers[record.peer]
        incarnation = Incarnation(record.peer, record.incarnation)
        self.push(server, target, incarnation, step, microbatch, attempt, work, counting, None)

    def backward(self, server, source, step, microbatch, attempt, work, counting) -> None:
        """Count, tell the trainer, and send the gradient on if a stage below counts."""
        if not self.live(server, step) or attempt <= server.fences.get(microbatch, -1):
            return
        upstream, _ = server.held.pop(microbatch)
        if self.poison.get(microbatch) == server.stage:
            note = Undelivered(step, microbatch, attempt, "not finite", Obstacle.NOT_FINITE)
            by = server.incarnation
            self.note(server, lambda: self.coordinator.on_delivery_failure(note, self.now_s, by))
            return
        counts = server.stage in counting and microbatch not in server.summed
        if counts:
            server.summed.append(microbatch)
            self.counted_once(server, microbatch)
        loss = 1.0 if server.stage == self.config.stages - 1 else None
        note, incarnation = Counted(step, microbatch, attempt, counts, loss), server.incarnation
        self.note(server, lambda: self.coordinator.on_count(incarnation, note, self.now_s))
        if upstream and any(stage < server.stage for stage in counting):
            args = step, microbatch, attempt, Work.BACKWARD, counting, None
            self.push(server, upstream, self.as_known(server, upstream), *args)

    def as_known(self, _server: Server, other: Server) -> Incarnation:
        """The incarnation by which a server addresses another; 0 if it knows of none."""
        return other.incarnation or Incarnation(other.peer, 0)

    def fence(self, server: Server, step: int, work: tuple[FencedWork, ...]) -> None:
        incarnation = server.incarnation
        if self.live(server, step):
            for item in work:
                former = server.fences.get(item.microbatch, -1)
                server.fences[item.microbatch] = max(item.attempt, former)
        counted = tuple(w.microbatch for w in work if w.microbatch in server.summed)

        def answer() -> None:
            if server.linked and server.incarnation == incarnation:
                self.coordinator.on_fence_answer(incarnation, counted, self.now_s, step)

        ahead = 0 if server.version is None else step - server.version
        if ahead > self.config.delay:  # its commit is still on the way
            server.waiting.append(self.guard(server, lambda: self.fence(server, step, work)))
            return
        self.send(self.guard(server, answer))

    def reduce(self, server: Server, message: Reduce) -> None:
        incarnation = server.incarnation
        if server.version is not None and server.version < message.step:
            server.waiting.append(self.guard(server, lambda: self.reduce(server, message)))
            return
        if server.peer in message.group:
            first = message.step * self.config.batch.microbatches
            mine = sum(1 << m - first for m in self.of_step(server, message.step))
            if mine != int.from_bytes(message.counted, "little"):  # the command of a former try
                args = incarnation, message.generation, "another ledger"
                self.note(server, lambda: self.coordinator.on_reduction_failure(*args, self.now_s))
                return
        # The averaging itself takes a while, and fails if one of the group dies meanwhile.
        server.averaging.add((message.step, message.generation))
        self.later(
            self.rng.uniform(0.05, 0.5),
            self.guard(server, self.average),
            server,
            incarnation,
            message,
        )

    def average(self, server: Server, incarnation: Incarnation, message: Reduce) -> None:
        server.averaging.discard((message.step, message.generation))
        group = [self.servers[peer] for peer in message.group]
        base = message.step * self.config.batch.microbatches
        if server.peer not in message.group and self.rng.random() < self.miss_share:
            return
        partners = [self.servers[peer] for peer in message.partners]
        failed = self.rng.random() < self.failure_share / 4
        if failed or any(not s.alive or s.version != message.step for s in partners):
            args = incarnation, message.generation, "a peer is gone"
            self.note(server, lambda: self.coordinator.on_reduction_failure(*args, self.now_s))
            return
        counted = [m for s in group for m in self.of_step(s, message.step)]
        summed = tuple(sorted(m - base for m in counted))
        server.reductions[message.step, message.generation] = summed
        kept = {term: each for term, each in server.kept.items() if each[0][0] == message.step}
        kept[term_of(message.generation)] = (message.step, message.generation), summed
        server.kept = kept
        answer = self.reduced(server, message, summed)
        args = incarnation, message.generation, answer
        self.note(server, lambda: self.coordinator.on_reduction(*args, self.now_s))

    def reduced(self, server: Server, _message: Reduce, summed: tuple) -> Reduced:
        """What a server answers that has averaged."""
        return Reduced(digest(summed), 1.0, state=digest(server.weights))

    def commit(self, server: Server, message: Commit) -> None:
        round_ = message.step, message.generation
        if round_ in server.averaging:
            self.later(0.1, self.guard(server, self.commit), server, message)
            return
        if server.version is not None and server.version > message.step:
            late = server.incarnation, message.step, "a commit of an older step"
            self.note(server, lambda: self.coordinator.on_commit_failure(*late, self.now_s))
            return
        if round_ not in server.reductions:
            self.skip(server, message)
            return
        server.commits[message.step] = message
        former = server.version
        self.catch_up(server)
        if server.version is not None and server.version != former:
            args = (
                server.incarnation,
                message.step,
                Committed(server.version, applied=True),
            )
            self.note(server, lambda: self.coordinator.on_commit_answer(*args, self.now_s))

    def skip(self, server: Server, message: Commit) -> None:
        """A newcomer missed the reduction: it says so, and needs later weights."""
        record = server.roster.record(server.peer)
        early = record is None or not record.ready or self.config.delay  # ready since it began
        assert early, "a member of the group has the reduction"
        self.skipped += 1
        who, waits = server.incarnation, server.version is None
        answer = Committed(message.step + 1, applied=False)
        if waits:
            self.note(
                server,
                lambda: self.coordinator.on_commit_answer(who, message.step, answer, self.now_s),
            )
        else:
            args = who, message.step, "no reduction"
            self.note(server, lambda: self.coordinator.on_commit_failure(*args, self.now_s))
        server.since, server.version, server.commits = message.step + 1, None, {}
        self.later(0.3, self.guard(server, self.fetch), server)
