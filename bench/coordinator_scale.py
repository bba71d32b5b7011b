"""What a swarm's notes and views cost the coordinator: processor time a note, bytes of views.

    python bench/coordinator_scale.py [--servers 1000] [--stages 10] [--notes 20000]
                                      [--no-cards] [--rounds 3] [--profile] [--json FILE]

The coordinator is alone: no network, no tensors, no other process. Synthetic servers join within
a minute of the coordinator's clock and are ready a second later. Then four microbatches a server
are in flight, and each note of a server is fed as the trainer feeds it: the rule, its actions,
the next deadline. Only that is timed, in processor time, and the least of the rounds is given.
The bytes of views are those of all messages to all members while they join, each with its frame
and its record. A server has a card with an address and two relays, of some 300 bytes. A step has
as many microbatches as its record has room for beside so many members.
"""

import cProfile
import json
import pstats
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from results import command_line, write_json

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.records import OVERHEAD_BYTES
from p2pswarm.net.wire.frames import HEADER_BYTES
from p2pswarm.net.wire.message import Message, encode
from p2pswarm.run.chain.record import members_that_fit
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.membership import Join, Ready, View
from p2pswarm.run.messages.microbatch import Counted, Handed
from p2pswarm.run.messages.step import Committed, Fenced, Reduced
from p2pswarm.settings.config import BatchConfig, ModelConfig, RunConfig
from p2pswarm.trainer.coordinator.coordinator import Coordinator
from p2pswarm.trainer.coordinator_io.connections import Connections
from p2pswarm.trainer.coordinator_io.server_reports import on_report
from p2pswarm.trainer.coordinator_io.views import Views
from p2pswarm.trainer.reports import actions as act

RUN = b"r" * 16
JOIN_S = 60.0  # all servers join within it
CATCH_UP_S = 1.0  # from a server's assignment until it is ready
IN_FLIGHT = 4  # microbatches a server
BURST = 256  # notes that are prepared together, so that the clock is seldom read
STATUS_BYTES = 1  # of a stream's frame
MESSAGE_OVERHEAD_BYTES = STATUS_BYTES + HEADER_BYTES + OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Note:
    """One word to the coordinator."""

    by: Incarnation
    message: Message


class SyntheticSwarm:
    """Servers that do all that they are asked, in virtual time, and one coordinator."""

    def __init__(self, servers: int, stages: int, *, cards: bool) -> None:
        microbatches = 2 * IN_FLIGHT * servers
        while members_that_fit(stages, microbatches) < servers:
            microbatches //= 2
        window = min(IN_FLIGHT * servers, microbatches)
        batch = BatchConfig(microbatches=microbatches, window=window, evaluate_every=0)
        model = ModelConfig(layers=stages)
        config = RunConfig(stages=stages, steps=1000, batch=batch, model=model)
        self.coordinator = Coordinator(config, RUN)
        self.connections = Connections(Views(stages))
        self.now_s = 0.0
        self.view_bytes = 0
        self.spent_s = 0.0
        self.notes = 0
        self._stages = stages
        self._cards = cards
        self._ready: list[list[Incarnation]] = [[] for _ in range(stages)]
        self._under_way: deque[Iterator[Note]] = deque()
        self._answers: deque[Note | act.Action] = deque()
        self._rng = random.Random(1)

    def gather(self, servers: int) -> None:
        """Let all servers join and become ready; count the bytes of the views."""
        happenings: list[tuple[float, bytes, bool]] = []
        for number in range(servers):
            peer, at_s = self._rng.randbytes(32), JOIN_S * number / servers
            happenings += [(at_s, peer, False), (at_s + CATCH_UP_S, peer, True)]
        for at_s, peer, catches_up in sorted(happenings):
            self._until(at_s)
            if catches_up:
                member = self.coordinator.members.of_peer(peer)
                assert member is not None, "the coordinator admits as many as its groups can hold"
                self._ready[member.stage].append(member.incarnation)
                note = Ready(0, f"weights {member.stage}".encode())
                self.coordinator.on_ready(member.incarnation, note, self.now_s)
            else:
                address = ".".join(("11", *(str(self._rng.randrange(1, 255)) for _ in range(3))))
                card = self._card(Address(address, 4000)) if self._cards else b""
                join = Join(RUN, f"{address}:4000", None, None, b"", (), card=card)
                self.connections.open(peer)
                self.coordinator.on_join(peer, join, self.now_s)
            self._carry_out()
        self._until(self.now_s + 10.0)

    def _card(self, at: Address) -> bytes:
        """A card with an address and two relays."""
        key = Identity.generate(self._rng.randbytes(32))
        relays = [Contact(PeerId(self._rng.randbytes(32)), at) for _ in range(2)]
        return Card.make(key, 1, [at], relays=relays).data

    def train(self, notes: int) -> None:
        """Feed that many notes of servers."""
        until = self.notes + notes
        while self.notes < until:
            burst = list(self._burst())
            begun_s = time.process_time()
            for note in burst:
                on_report(self.coordinator, note.by, note.message, self.now_s)
                self._answers.extend(self.coordinator.drain())
                self.coordinator.next_deadline_s()
            self.spent_s += time.process_time() - begun_s
            self.notes += len(burst)
            self.now_s += 0.001
            self._carry_out()

    def _burst(self) -> Iterator[Note]:
        """The next note of each of the microbatches that have been on their way longest."""
        for _ in range(min(BURST, len(self._under_way))):
            way = self._under_way.popleft()
            if (note := next(way, None)) is not None:
                self._under_way.append(way)
                yield note

    def _way(self, launch: act.Launch) -> Iterator[Note]:
        """A microbatch's way up and down through one server of each stage."""
        path = [self._rng.choice(ready) for ready in self._ready]
        work = launch.step, launch.microbatch, launch.attempt
        for below, to in zip([path[0], *path], path, strict=False):
            yield Note(below, Handed(*work, to.peer, to.number))
        for to in reversed(path):
            yield Note(to, Counted(*work, counted=True, loss=2.0 if to is path[-1] else None))

    def _until(self, at_s: float) -> None:
        """Let the time pass, deadline by deadline."""
        while (due_s := self.connections.next_deadline_s()) is not None and due_s <= at_s:
            self.now_s = due_s
            self.connections.on_deadline(due_s)
            self._weigh_views()
        self.now_s = at_s

    def _carry_out(self) -> None:
        """Do what the coordinator asks, until it asks no more; that is not timed."""
        self._answers.extend(self.coordinator.drain())
        while self._answers:
            match self._answers.popleft():
                case act.Assign(incarnation, message):
                    self.connections.assign(incarnation, message)
                case act.Publish(changes):
                    self.connections.publish(changes, self.now_s)
                case act.Launch() as launch:
                    self._under_way.append(self._way(launch))
                case act.SendFence(incarnation):
                    self.coordinator.on_fence_answer(incarnation, Fenced(()).counted, self.now_s)
                case act.SendReduce(incarnation, message):
                    answer = Reduced(b"gradient", 1.0)
                    self.coordinator.on_reduction(
                        incarnation, message.generation, answer, self.now_s
                    )
                case act.Decide(step):
                    self.coordinator.on_decision(step, self.now_s)
                case act.SendCommit(incarnation, message):
                    answer = Committed(message.step + 1, applied=True)
                    self.coordinator.on_commit_answer(incarnation, message.step, answer, self.now_s)
            self._answers.extend(self.coordinator.drain())
        self._weigh_views()

    def _weigh_views(self) -> None:
        sizes: dict[int, int] = {}  # many members are sent the same message
        for connection in self.connections.drain():
            while (message := self.connections.next(connection)) is not None:
                if isinstance(message, View):
                    if id(message) not in sizes:
                        sizes[id(message)] = len(encode(message)) + MESSAGE_OVERHEAD_BYTES
                    self.view_bytes += sizes[id(message)]


def main() -> None:
    """Measure, and print one line of JSON."""
    parser = command_line(__doc__)
    parser.add_argument("--servers", type=int, default=1000)
    parser.add_argument("--stages", type=int, default=10)
    parser.add_argument("--no-cards", action="store_true", help="servers have none")
    parser.add_argument("--notes", type=int, default=20_000, help="of each round")
    parser.add_argument("--rounds", type=int, default=3, help="the least of them is given")
    parser.add_argument("--profile", action="store_true", help="where the time goes, on stderr")
    arguments = parser.parse_args()

    swarm = SyntheticSwarm(arguments.servers, arguments.stages, cards=not arguments.no_cards)
    swarm.gather(arguments.servers)
    swarm.train(IN_FLIGHT * arguments.servers)  # the window is full, and the code is warm
    profile = cProfile.Profile() if arguments.profile else None
    least_us = float("inf")
    for _ in range(arguments.rounds):
        swarm.spent_s, swarm.notes = 0.0, 0
        if profile:
            profile.enable()
        swarm.train(arguments.notes)
        if profile:
            profile.disable()
        least_us = min(least_us, 1e6 * swarm.spent_s / swarm.notes)
    if profile:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("tottime").print_stats(20)
    result = {
        "servers": arguments.servers,
        "us_per_note": round(least_us, 1),
        "view_bytes": swarm.view_bytes,
    }
    print(json.dumps(result))
    write_json(arguments.json, result)


if __name__ == "__main__":
    main()
