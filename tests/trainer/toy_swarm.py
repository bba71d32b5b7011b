"""A toy swarm in one heap of timed messages, to drive the coordinator through deaths and delays.

The servers here follow docs/training.md with symbolic gradients: a sum is the list of microbatches
in it. Every message takes a random time; what one sender tells one receiver by the membership
stream keeps its order, and nothing else does. Servers die, lose their link to the trainer and
come back, with their weights or without, freeze, and the roads between two of them fail. All links
may break in the moment when a step is decided.
"""

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable

from trainer.toy_server import Server, ToyServers, digest

from p2pswarm.progress.events import HeldOut
from p2pswarm.run.chain.record import QUARANTINED
from p2pswarm.run.member_view import Incarnation, MemberView, view_parts
from p2pswarm.run.messages.membership import HeldReduction, Join, Ready
from p2pswarm.run.messages.microbatch import Handed, Undelivered
from p2pswarm.run.messages.step import Commit
from p2pswarm.settings.config import BatchConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.reports import actions as act
from p2pswarm.trainer.reports.reports import MemberLost, RunFinished, StepDone, SumKept, SumVoided

RUN = b"r" * 16


class World(ToyServers):
    """Coordinator, servers and the roads between them."""

    def __init__(
        self, seed: int, stages: int, steps: int, microbatches: int, delay: int = 0
    ) -> None:
        super().__init__()
        self.rng = random.Random(seed)
        self.config = RunConfig(
            stages=stages,
            steps=steps,
            min_replicas=1,
            delay=delay,
            batch=BatchConfig(microbatches=microbatches, evaluate_every=2, evaluate_microbatches=2),
        )
        self.coordinator = Coordinator(self.config, RUN)
        self.now_s = 0.0
        self.heap: list = []
        self.order = itertools.count()
        self.servers: dict[bytes, Server] = {}
        self.roads: dict = {}  # (from, to) -> when its last ordered message arrives
        self.failure_share = 0.0
        self.refusal_share = 0.0  # of the servers of stage 0 that refuse after their grant
        self.lost_share = 0.0  # of the decisions after which all links break
        self.doomed: dict[int, bool] = {}
        self.cancelled: set[tuple[int, int]] = set()
        self.resent = 0
        self.miss_share = 0.0  # of the reductions that do not reach a newcomer
        self.ended: RunFinished | None = None
        self.done: list[StepDone] = []
        self.evaluations: list[HeldOut] = []
        self.deadline_s: float | None = None
        self.views = 0
        self.poison: dict[int, int] = {}  # microbatch -> the stage where it is not finite
        self.launched: Counter = Counter()
        self.skipped = 0
        self.lost: list[MemberLost] = []
        self.kept = self.voided = 0  # microbatches in the sums of suspended incarnations

    # Time and roads.

    def later(self, delay_s: float, call: Callable, *args) -> None:
        heapq.heappush(self.heap, (self.now_s + delay_s, next(self.order), call, args))

    def delay_s(self) -> float:
        """Most messages are quick; one in eight takes long enough to be overtaken by everything."""
        return (
            self.rng.uniform(0.2, 4.0) if self.rng.random() < 0.12 else self.rng.uniform(0.001, 0.2)
        )

    def send(self, call: Callable, *args) -> None:
        self.later(self.delay_s(), call, *args)

    def note(self, server: Server, call: Callable, *args) -> None:
        """In order from one server to the trainer; lost if the link breaks first."""
        epoch, incarnation = server.epoch, server.incarnation

        def deliver() -> None:
            if server.linked and server.epoch == epoch and server.incarnation == incarnation:
                call(*args)
                self.pump()

        road = server.peer, "trainer"
        at_s = max(self.now_s + self.delay_s(), self.roads.get(road, 0.0))
        self.roads[road] = at_s
        heapq.heappush(self.heap, (at_s, next(self.order), deliver, ()))

    def guard(self, server: Server, call: Callable) -> Callable:
        epoch = server.epoch

        def guarded(*args) -> None:
            if self.now_s < server.frozen_s:
                self.later(server.frozen_s - self.now_s, guarded, *args)
            elif server.alive and server.epoch == epoch:
                call(*args)

        return guarded

    def run(self, until_s: float = 1e5) -> None:
        while self.ended is None and self.now_s < until_s:
            message_s = self.heap[0][0] if self.heap else float("inf")
            deadline_s = float("inf") if self.deadline_s is None else self.deadline_s
            assert min(message_s, deadline_s) < float("inf"), "stuck: nothing will ever happen"
            self.now_s = max(self.now_s, min(message_s, deadline_s))
            if deadline_s < message_s:
                self.coordinator.on_deadline(self.now_s)
            else:
                _, _, call, args = heapq.heappop(self.heap)
                call(*args)
            self.pump()

    # The trainer's side of the service.

    def pump(self) -> None:
        for action in self.coordinator.drain():
            self.carry_out(action)
        self.deadline_s = self.coordinator.next_deadline_s()

    def carry_out(self, action: act.Action) -> None:
        match action:
            case act.Assign(incarnation, message):
                server = self.servers[incarnation.peer]
                self.send(self.guard(server, self.assigned), server, incarnation, message)
            case act.Publish():
                self.views += 1
                (view,) = view_parts(self.views, self.coordinator.members.records())
                for server in self.servers.values():
                    if server.linked and server.incarnation:
                        self.send(self.guard(server, self.viewed), server, view)
            case act.Launch():
                self.launched[action.microbatch] += 1
                self.launch(action)
            case act.SendFence(incarnation, message):
                self.to_life(incarnation, self.fence, message.step, message.work)
            case act.SendReduce(incarnation, message):
                self.to_life(incarnation, self.reduce, message)
            case act.CancelLaunch(microbatch, attempt):
                self.cancelled.add((microbatch, attempt))
            case act.Decide(step=step):
                self.check(action)
                self.send(self.decided, step)
            case act.SendCommit(incarnation, message):
                self.send_commit(incarnation, message)
            case act.Evict(incarnation, _):
                self.drop_link(self.servers[incarnation.peer], incarnation)
            case StepDone():
                self.done.append(action)
                self.cancelled.clear()  # held-out batches have the same numbers in every step
            case HeldOut():
                self.evaluations.append(action)
            case MemberLost():
                self.lost.append(action)
            case SumKept():
                self.heirs[action.former] = action.incarnation
                self.kept += action.microbatches
            case SumVoided():
                self.voided += action.microbatches
            case RunFinished():
                self.ended = action
            case _:
                pass

    def decided(self, step: int) -> None:
        """The voters have accepted, a while after they were asked."""
        self.coordinator.on_decision(step, self.now_s)

    def to_life(self, incarnation: Incarnation, call: Callable, *args) -> None:
        server = self.servers[incarnation.peer]
        if server.incarnation == incarnation and server.linked:
            self.send(self.guard(server, call), server, *args)

    def send_commit(self, incarnation: Incarnation, message: Commit) -> None:
        server = self.servers[incarnation.peer]
        if message.step not in self.doomed:
            self.doomed[message.step] = self.rng.random() < self.lost_share
        if server.incarnation != incarnation:
            self.send(self.commit_again, server, incarnation, message)
        elif self.doomed[message.step]:
            self.drop_link(server, incarnation)
        else:
            self.to_life(incarnation, self.commit, message)

    def commit_again(self, server: Server, incarnation: Incarnation, message: Commit) -> None:
        """A commit may overtake the assignment of the one that it is for."""
        if server.incarnation == incarnation:
            self.resent += 1
            self.guard(server, self.commit)(server, message)
        elif self.coordinator.members.alive(incarnation):
            self.later(0.1, self.commit_again, server, incarnation, message)

    def launch(self, launch: act.Launch, since_s: float | None = None) -> None:
        """Push to a server of stage 0, or look for one for a minute; unless it is cancelled."""
        since_s = self.now_s if since_s is None else since_s
        if (launch.microbatch, launch.attempt) in self.cancelled:
            return
        ready = self.coordinator.members.ready(0)
        if not ready:
            if self.now_s < since_s + 60.0:
                self.later(0.5, self.launch, launch, since_s)
            else:
                self.undelivered(None, launch.step, launch.microbatch, launch.attempt)
            return
        target = self.servers[self.rng.choice(ready).incarnation.peer]
        incarnation = self.coordinator.members.of_peer(target.peer).incarnation
        if self.rng.random() < self.refusal_share:  # after the grant: the trainer looks on
            work = launch.step, launch.microbatch, launch.attempt
            self.later(0.0, self.handed, Handed(*work, target.peer, incarnation.number))
            self.later(0.5, self.launch, launch, since_s)
            return
        args = launch.step, launch.microbatch, launch.attempt, launch.work, launch.counting, None
        self.push(None, target, incarnation, *args)

    def push(self, source: Server | None, target: Server, incarnation: Incarnation, *job) -> None:
        """Hand a microbatch over; the road may fail before or after the receiver took it."""
        step, microbatch, attempt, *_ = job
        sender = self.guard(source, self.push_ended) if source else self.push_ended

        def arrive() -> None:
            if self.now_s < target.frozen_s:
                self.later(target.frozen_s - self.now_s, arrive)
                return
            if not target.alive or self.rng.random() < self.failure_share:
                self.send(sender, source, step, microbatch, attempt, incarnation, "lost")
                return
            taken = self.take(target, incarnation, source, *job)
            lost = self.rng.random() < self.failure_share
            answer = "lost" if lost else "taken" if taken else "refused"
            self.send(sender, source, step, microbatch, attempt, incarnation, answer)

        self.send(arrive)

    def push_ended(self, source, step, microbatch, attempt, incarnation, answer) -> None:
        if answer == "taken":
            note = Handed(step, microbatch, attempt, incarnation.peer, incarnation.number)
            if source:
                self.note(source, self.handed, note)
            else:
                self.handed(note)
        else:  # this toy never tries a second peer: always the trainer's matter
            self.undelivered(source, step, microbatch, attempt)

    def handed(self, note: Handed) -> None:
        self.coordinator.on_handoff(Incarnation(note.peer, note.incarnation), note, self.now_s)

    def undelivered(self, source, step, microbatch, attempt) -> None:
        note = Undelivered(step, microbatch, attempt, "a road failed")
        if source:
            self.note(source, lambda: self.coordinator.on_delivery_failure(note, self.now_s))
        else:
            self.coordinator.on_delivery_failure(note, self.now_s)

    # A server's incarnation.

    def start(self, name: int) -> Server:
        peer = bytes([name]) * 32 if name < 256 else name.to_bytes(32)
        server = self.servers.setdefault(peer, Server(peer))
        server.epoch += 1
        server.alive, server.linked = True, False
        server.version, server.stage, server.weights = None, None, ()
        server.summed, server.sum_of = [], None
        self.join(server)
        return server

    def join(self, server: Server) -> None:
        server.epoch += 1
        server.incarnation, server.ready = None, False
        version = server.version
        held = tuple(
            HeldReduction(*round_, digest(summed))
            for round_, summed in server.kept.values()
            if round_[0] == version
        )
        told = server.stage, version, digest(server.weights), held
        join = Join(RUN, "h:1", *told, sum=self.held_sum(server))

        def deliver() -> None:
            server.linked = True
            self.coordinator.on_join(server.peer, join, self.now_s)

        self.send(self.guard(server, deliver))

    def assigned(self, server: Server, incarnation: Incarnation, message) -> None:
        """A new incarnation: whatever was under way in the former one is forgotten."""
        server.epoch += 1
        server.incarnation, server.stage, server.since = incarnation, message.stage, message.since
        server.fences, server.held, server.waiting = {}, {}, []
        if not message.keep_sum:
            server.summed = []
        server.sum_of = incarnation
        server.reductions, server.commits, server.roster = {}, {}, MemberView()
        server.averaging = set()
        ours = self.coordinator.members.alive(incarnation)  # not a former coordinator's
        if ours:  # a member is told of the others at once, and no other view may follow
            (view,) = view_parts(self.views, self.coordinator.members.records())
            server.roster.receive(view)
        if message.keep and server.version == message.since - 1:
            server.reductions |= dict(server.kept.values())
        elif message.keep:
            assert server.version == message.since
        else:
            server.version = None
            if message.since == 0:
                server.version, server.weights = 0, ()
                self.say_ready(server)
            else:
                self.later(0.3, self.guard(server, self.fetch), server)

    def viewed(self, server: Server, view) -> None:
        server.roster.receive(view)

    def fetch(self, server: Server) -> None:
        """Take a snapshot from a donor whose version is new enough, or try again."""
        donors = [
            self.servers[m.peer] for m in server.roster.ready(server.stage) if m.peer != server.peer
        ]
        donors = [
            d
            for d in donors
            if d.alive and d.stage == server.stage and (d.version or -1) >= server.since
        ]
        if not donors:
            self.later(0.5, self.guard(server, self.fetch), server)
            return
        donor = self.rng.choice(donors)
        version, weights = donor.version, donor.weights

        def arrived() -> None:
            if server.version is None and version >= server.since:
                server.version, server.weights = version, weights
                self.catch_up(server)
            elif server.version is None:
                self.fetch(server)

        self.later(self.rng.uniform(0.1, 3.0), self.guard(server, arrived))

    def catch_up(self, server: Server) -> None:
        if server.version is None:
            return
        while server.version in server.commits:
            commit = server.commits[server.version]
            reduced = server.reductions.get((server.version, commit.generation))
            assert reduced is not None, "a commit reached a newcomer without its reduction"
            server.weights = (*server.weights, reduced)
            server.version += 1
            self.begin_step(server)
        hashed_s = self.rng.uniform(0.0, 0.5)  # the digest is known some time after the weights
        self.later(hashed_s, self.guard(server, self.say_ready), server)
        waiting, server.waiting = server.waiting, []
        for call in waiting:
            call()

    def begin_step(self, server: Server) -> None:
        """Forget what belonged to former steps; of the next one a delay lets something be here."""
        size, delay = self.config.batch.microbatches, self.config.delay
        here = range(server.version * size, (server.version + delay) * size)
        server.summed = [m for m in server.summed if m in here]
        server.held = {m: held for m, held in server.held.items() if m in here}
        server.fences = {m: attempt for m, attempt in server.fences.items() if m in here}

    def say_ready(self, server: Server) -> None:
        if server.version is None:
            return
        note, incarnation = Ready(server.version, digest(server.weights)), server.incarnation
        self.note(server, lambda: self.coordinator.on_ready(incarnation, note, self.now_s))

    # Trouble.

    def kill(self, server: Server) -> None:
        server.alive = False
        server.epoch += 1
        self.drop_link(server, server.incarnation)

    def drop_link(self, server: Server, incarnation: Incarnation | None) -> None:
        """The stream with the trainer ends: both sides notice, each in its own time."""
        if incarnation is None or server.incarnation != incarnation or not server.linked:
            return
        server.linked = False
        self.send(self.coordinator_lost, incarnation)
        if server.alive:
            self.later(self.rng.uniform(0.1, 1.0), self.guard(server, self.join), server)

    def coordinator_lost(self, incarnation: Incarnation) -> None:
        self.coordinator.on_stream_end(incarnation, "its link ended", self.now_s)

    def freeze(self, server: Server, seconds: float) -> None:
        server.frozen_s = self.now_s + seconds

    # The promise.

    def check(self, done: act.Decide) -> None:
        """The sums that are being decided hold every microbatch once, in every stage.

        With a delay a newcomer may be ready for the next step before it has heard of that.
        """
        batch = self.config.batch.microbatches
        holders = done.stages[0].holders
        whole = [done.step * batch + i for i in range(batch) if holders[i] != QUARANTINED]
        for stage in range(self.config.stages):
            gave = done.stages[stage].members
            incarnations = [Incarnation(one.peer, one.incarnation) for one in gave]
            servers = [self.servers[incarnation.peer] for incarnation in incarnations]
            assert list(map(self.sum_is_of, servers)) == incarnations
            summed = [m for server in servers for m in self.of_step(server, done.step)]
            assert sorted(summed) == whole, (done.step, stage)
