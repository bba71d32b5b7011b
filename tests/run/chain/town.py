"""Seats of a few trainers and voters, and the messages between them, in a time of its own."""

import heapq
import itertools
import random

from run.chain.harness import commit, genesis, peer
from run.chain.world import Node

from p2pswarm.run.chain.actions import (
    Ask,
    Deposed,
    Fetch,
    Leading,
    Persist,
    RecordDecided,
    Reply,
    VotesMissing,
)
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.chain.messages import Accepted, Denied, Promise
from p2pswarm.run.chain.participant import ChainParticipant

LATENCY_S = 0.05
ANSWERS = Promise | Accepted | Denied


class Town:
    """Seats that call each other; some are away, and what is said to them is lost."""

    def __init__(self, trainers: str = "ab", voters: str = "abc") -> None:
        self.now_s = 0.0
        self.genesis = genesis(trainers, voters)
        self.away: set[str] = set()
        self.nodes: dict[str, Node] = {}
        self.seats: dict[str, ChainParticipant] = {}
        self.said: dict[str, list] = {}
        self._queue: list = []
        self._count = itertools.count()
        for name in dict.fromkeys(trainers + voters):
            self.nodes[name] = Node(name)
            self.start(name)

    def start(self, name: str) -> None:
        """The process begins, with what its file says."""
        node = self.nodes[name]
        node.start(self.genesis)
        seed = f"{name} {self.now_s}"
        restored = Restored(node.acceptor.register, node.learner)
        self.seats[name] = ChainParticipant(
            node.voter_id, restored, random.Random(seed), self.now_s
        )
        self.said.setdefault(name, [])

    def run(self, until_s: float) -> None:
        while True:
            due = [
                (seat.next_deadline_s, name)
                for name, seat in self.seats.items()
                if name not in self.away and seat.next_deadline_s is not None
                if peer(name) in self.genesis.trainers
            ]
            first_s = min(due, default=(until_s, ""))
            if self._queue and self._queue[0][0] <= first_s[0]:
                at_s, _, to, by, thing = heapq.heappop(self._queue)
                if at_s > until_s:
                    heapq.heappush(self._queue, (at_s, next(self._count), to, by, thing))
                    break
                self.now_s = max(self.now_s, at_s)
                if not {to, by} & self.away:
                    self.arrive(to, by, thing)
                continue
            if first_s[0] >= until_s:
                break
            self.now_s = max(self.now_s, first_s[0])
            self.seats[first_s[1]].on_deadline(self.now_s)
            self.carry_out(first_s[1])
        self.now_s = until_s

    def arrive(self, to: str, by: str, thing) -> None:
        seat = self.seats[to]
        if isinstance(thing, Fetch):
            records = self.seats[by].learner.chain
            assert records is not None
        elif isinstance(thing, ANSWERS):
            seat.on_answer(peer(by), thing, self.now_s)
        else:
            seat.on_call(peer(by), thing, self.now_s)
        self.carry_out(to)

    def carry_out(self, name: str) -> None:
        for action in self.seats[name].actions():
            match action:
                case Persist(entry=entry):
                    self.nodes[name].log.append(entry)
                case Ask(to=to, message=message) | Reply(to=to, message=message):
                    self.post(name, self.named(to), message)
                case Fetch(to=to, height=height):
                    self.fetched(name, self.named(to), height)
                case Leading() | Deposed() | RecordDecided() | VotesMissing():
                    self.said[name].append((self.now_s, action))

    def fetched(self, name: str, holder: str, height: int) -> None:
        """The holder's file, as far as its chain goes."""
        entries = [getattr(entry, "record", entry) for entry in self.nodes[holder].log]
        head = self.seats[holder].learner.chain.head.height
        for at in range(height, head):
            records = [entry for entry in entries if getattr(entry, "height", None) == at]
            self.seats[name].on_record(records[-1], self.now_s)
        self.carry_out(name)

    def post(self, by: str, to: str, message) -> None:
        delay_s = 0.0 if by == to else LATENCY_S
        heapq.heappush(self._queue, (self.now_s + delay_s, next(self._count), to, by, message))

    def named(self, raw: bytes) -> str:
        return next(name for name in self.nodes if peer(name) == raw)

    def leaders(self) -> list[str]:
        return [n for n, seat in self.seats.items() if seat.leader and seat.leader.leads]

    def decide(self, name: str) -> None:
        seat = self.seats[name]
        record = commit(seat.leader.head, name, seat.leader.attempt.term)
        seat.propose(record, self.now_s)
        self.carry_out(name)
        self.run(self.now_s + 1.0)

    def kill(self, name: str) -> None:
        self.away.add(name)
        for other, seat in self.seats.items():
            if other != name:
                seat.link_lost(peer(name), self.now_s)


def begun(trainers: str = "ab", voters: str = "abc") -> Town:
    town = Town(trainers, voters)
    town.seats["a"].standby.start(0.0)
    town.run(1.0)
    assert town.leaders() == ["a"]
    return town


def taken_over_s(town: Town, name: str) -> float:
    return next(at_s for at_s, action in town.said[name] if isinstance(action, Leading))
