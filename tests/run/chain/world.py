"""Voters with files, trainers that stand, and messages under way, one step at a time."""

from dataclasses import dataclass, field

from run.chain.harness import commit, genesis, peer, voter

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.acceptor import ChainAcceptor
from p2pswarm.run.chain.actions import (
    Ask,
    Deposed,
    Fetch,
    Leading,
    Persist,
    RecordDecided,
    Reply,
)
from p2pswarm.run.chain.chain import ChainHead
from p2pswarm.run.chain.chain_log import LogEntry, restore
from p2pswarm.run.chain.leader import Attempt, Leader
from p2pswarm.run.chain.learner import Learner
from p2pswarm.run.chain.messages import Heartbeat, Propose
from p2pswarm.run.chain.record import CommitRecord, VoterId, digest


@dataclass
class Node:
    """A voter: its acceptor, its learner, and its file."""

    name: str
    memory: int = 0
    log: list[Message] = field(default_factory=list)
    acceptor: ChainAcceptor = None
    learner: Learner = None

    def start(self, origin) -> None:
        """From the file alone, as after a crash."""
        entries = (LogEntry(i, entry) for i, entry in enumerate(self.log))
        restored = restore(origin, entries, self.name)
        self.learner = restored.learner
        self.acceptor = ChainAcceptor(self.voter_id, self.learner.chain, restored.register)

    @property
    def voter_id(self) -> VoterId:
        return voter(self.name, self.memory)


@dataclass(frozen=True)
class Call:
    leader: int
    to: bytes
    message: Message


@dataclass(frozen=True)
class Answer:
    leader: int
    sender: bytes
    message: Message


class World:
    """Nobody has a clock: who stands and what arrives, the test decides."""

    def __init__(self, trainers: str = "ab", voters: str = "abc", names: str = "abcde") -> None:
        self.genesis = genesis(trainers, voters)
        self.nodes = {peer(name): Node(name) for name in names}
        self.leaders: list[Leader] = []
        self.names: list[str] = []
        self.under_way: list[Call | Answer] = []
        self.accepted: set[tuple[VoterId, int, CommitRecord]] = set()
        self.decided: dict[int, CommitRecord] = {}
        self.decided_under: dict[int, int] = {}
        self.deposed: list[Deposed] = []
        for node in self.nodes.values():
            node.start(self.genesis)

    def node(self, name: str) -> Node:
        return self.nodes[peer(name)]

    def stand(self, name: str, term: int, head: ChainHead | None = None, kind=Leader) -> int:
        head = head or self.node(name).learner.chain.head
        attempt = Attempt(peer(name), term, len(self.leaders).to_bytes(16))
        self.leaders.append(kind(attempt, self.genesis, head, 0.0))
        self.names.append(name)
        self.settle(len(self.leaders) - 1)
        return len(self.leaders) - 1

    def propose(self, number: int, **changes) -> CommitRecord:
        leader = self.leaders[number]
        record = commit(leader.head, self.names[number], leader.attempt.term, **changes)
        leader.propose(record)
        self.settle(number)
        return record

    def resend(self, number: int) -> None:
        self.leaders[number].on_deadline(0.0)
        self.settle(number)

    def deliver(self, thing: Call | Answer) -> None:
        if isinstance(thing, Answer):
            self.leaders[thing.leader].receive(thing.sender, thing.message)
            self.settle(thing.leader)
            return
        node, caller = self.nodes[thing.to], peer(self.names[thing.leader])
        node.acceptor.link_lost(node.acceptor.coordinator)  # calm is no matter of safety
        node.acceptor.receive(caller, thing.message, 0.0)
        for action in node.acceptor.actions():
            if isinstance(action, Persist):
                node.log.append(action.entry)
                self.heard(node, action.entry, caller)
            elif isinstance(action, Reply):
                self.under_way.append(Answer(thing.leader, thing.to, action.message))
        if isinstance(thing.message, Heartbeat):
            node.learner.on_heartbeat(thing.message, caller)
            self.fetch(node)

    def heard(self, node: Node, entry: Message, caller: bytes) -> None:
        if isinstance(entry, Propose):
            self.accepted.add((node.voter_id, entry.term, entry.record))
            self.judge(entry)
            node.learner.on_proposal(entry.record, caller)
            self.fetch(node)

    def fetch(self, node: Node) -> None:
        for action in node.learner.actions():
            if isinstance(action, Fetch):
                self.learn(node, action.height)
            else:
                node.log.append(action.entry)

    def learn(self, node: Node, height: int, until: int | None = None) -> None:
        """Somebody has the decided records: here, the oracle."""
        for at in range(height, len(self.decided) if until is None else until):
            node.learner.on_record(self.decided[at])
        self.fetch(node)

    def judge(self, entry: Propose) -> None:
        record = entry.record
        who = {v for v, term, what in self.accepted if (term, what) == (entry.term, record)}
        if any(2 * len(who & set(voters)) <= len(voters) for voters in record.electorates):
            return
        assert self.decided.setdefault(record.height, record) == record, "decided twice"
        self.decided_under.setdefault(record.height, entry.term)
        assert record.height == 0 or digest(self.decided[record.height - 1]) == record.prev

    def settle(self, number: int) -> None:
        leader = self.leaders[number]
        for action in leader.actions():
            match action:
                case Ask(to=to, message=message):
                    self.under_way.append(Call(number, to, message))
                case Fetch():
                    node = self.node(self.names[number])
                    self.learn(node, node.learner.chain.head.height, leader._best().height)
                    leader.on_head(node.learner.chain.head)
                    self.settle(number)
                case RecordDecided(record=record):
                    assert self.decided.get(record.height) == record, "no majority"
                    node = self.node(self.names[number])
                    node.learner.on_record(record)
                    self.fetch(node)
                case Leading(term=term):
                    assert leader.head.height >= self.known_before(term), "it does not know all"
                case Deposed():
                    self.deposed.append(action)

    def known_before(self, term: int) -> int:
        """How many records were decided under lower terms."""
        return max((at + 1 for at, under in self.decided_under.items() if under < term), default=0)

    def run(self, reached: str | None = None) -> None:
        """Deliver all that is under way, but what goes to others than `reached`."""
        while self.under_way:
            thing = self.under_way.pop(0)
            other = thing.to if isinstance(thing, Call) else thing.sender
            if reached is None or self.nodes[other].name in reached:
                self.deliver(thing)
