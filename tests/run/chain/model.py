"""Every interleaving of a few voters and leaders, by breadth-first search over the real machines.

A state is what is on the voters' disks, what each leader knows, and every request that was ever
sent: a request may arrive at any time, more than once, or never, and its answer may be lost. A
voter is built anew from its disk for each request, so a restart at any moment is one of the
interleavings; a leader that takes no turn for a while is a frozen one.

Three kinds of steps are left out, because whatever can go wrong after them can go wrong without:
* A refusal is not heard: a leader that gives up can only do less than one that goes on.
* A promise that its leader does not hear is not made: a voter that promised less can only do more.
* Who accepts is heard at once: a leader may wait as long as it likes before it does anything more.

What a machine does depends on its own state and input only. So each such step is taken once, by the
real machine, and remembered; states are tuples of numbers. The oracle is not the leaders' word: it
remembers who ever accepted what under which term.

A plan may have members, too: servers of one stage, each with its real `CommitLog`. A leader has the
step reduced by all of them, in its own generation, before it proposes; then whatever is decided has
to be applicable by each, whoever had it reduced again in between.
"""

import itertools
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple

from run.chain.harness import RUN, commit, genesis, peer, revote, voter

from p2pswarm.run.averaging.base import AveragedGradient
from p2pswarm.run.averaging.round import RoundId
from p2pswarm.run.chain.acceptor import ChainAcceptor, Register
from p2pswarm.run.chain.actions import Ask, Fetch, Leading, Persist, RecordDecided, Reply
from p2pswarm.run.chain.chain import Chain, ChainHead, Genesis
from p2pswarm.run.chain.electorate import Votes
from p2pswarm.run.chain.leader import Attempt, Leader, LeaderPhase
from p2pswarm.run.chain.messages import Denied, Heartbeat, Prepare, Promise, Propose
from p2pswarm.run.chain.record import CommitRecord, RecordKind, digest, first_number
from p2pswarm.run.messages.step import Commit, Reduce
from p2pswarm.server.commit_log import CommitDecision, CommitLog, ReducedGradient

NOT_YET = -1
Make = Callable[..., CommitRecord]


class Violation(AssertionError):
    """An interleaving after which the chain is not one chain."""


@dataclass(frozen=True)
class Plan:
    """What one model has: who stands, how far, and what leaders may propose."""

    trainers: str = "ab"
    """Who stands in term 1, 2, ...; a trainer that comes twice stands again."""
    genesis: Genesis = field(default_factory=genesis)
    terms: tuple[int, ...] = (1, 2, 3)
    voters: str = "abcd"
    changes: tuple[tuple[str, ...], ...] = (("abc",), ("abc", "abd"))
    """For each height, the voters that a record there may name."""
    also: tuple[int, ...] = ()
    """The heights where a leader may change the voters only, instead of deciding a step."""
    begun: bool = True
    """The first trainer leads already; else its election is searched, too."""
    acceptor_class: type[ChainAcceptor] = ChainAcceptor
    leader_class: type[Leader] = Leader
    members: int = 0
    """Servers that reduce each step before its record is proposed."""
    log_class: type[CommitLog] = CommitLog


class State(NamedTuple):
    registers: tuple[int, ...]
    leaders: tuple[int, ...]
    sent: int
    """A bit for each request that was ever sent."""
    accepted: int
    """A bit for each (voter, term, record) that was ever accepted."""
    decided: tuple[int, ...]
    """Records by height, as the oracle says."""
    logs: tuple[int, ...] = ()
    """What each member holds."""


class Table:
    """Numbers for values, in the order in which they came."""

    def __init__(self) -> None:
        self.values: list = []
        self._numbers: dict = {}

    def number(self, key: object, value: object = None) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.values)
            self.values.append(key if value is None else value)
        return self._numbers[key]


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class Model:
    """A breadth-first search; `run` raises Violation, or returns how many states there are."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chain = Chain(plan.genesis)
        self.names = list(plan.voters)
        self.seats = [voter(name) for name in self.names]
        self.place = {peer(name): i for i, name in enumerate(self.names)}
        self.records, self.registers, self.leaders = Table(), Table(), Table()
        self.requests, self.answers, self.acceptances = Table(), Table(), Table()
        self.logs = Table()
        self.log_steps: dict = {}
        self.voter_steps: dict = {}
        self.leader_steps: dict = {}
        self.decisions = 0

    def run(self, states_max: int) -> int:
        frontier = [self.first()]
        seen = set(frontier)
        while frontier:
            following = []
            for state in frontier:
                for after in self.steps(state):
                    if after not in seen:
                        seen.add(after)
                        following.append(after)
            assert len(seen) <= states_max, f"more than {states_max} states"
            frontier = following
        return len(seen)

    def first(self) -> State:
        trainers = len(self.plan.trainers)
        blank = self.registers.number((0, b"", 0, None), Register())
        log = self.plan.log_class()
        log.begin(0, keep=False)
        log.became(0)
        log.hashed(b"w0")
        logs = (self.logs.number(log_key(log), log),) * self.plan.members
        state = State((blank,) * len(self.names), (NOT_YET,) * trainers, 0, 0, (), logs)
        if not self.plan.begun:
            return state
        state = next(iter(self.starts(state, 0)))
        while self.leaders.values[state.leaders[0]].phase is LeaderPhase.PREPARING:
            for request in bits(state.sent):
                *_, state = self.deliveries(state, request)
        return state

    # --- what may happen next

    def steps(self, state: State) -> Iterator[State]:
        for number, leader in enumerate(state.leaders):
            if leader != NOT_YET:
                yield from self.reductions(state, number)
                yield from self.proposals(state, number)
            elif NOT_YET not in state.leaders[:number]:  # terms begin in their order
                yield from self.starts(state, number)
        for request in bits(state.sent):
            yield from self.deliveries(state, request)

    def starts(self, state: State, number: int) -> Iterator[State]:
        """A trainer stands, knowing all that was decided, or nothing of it."""
        heads = [self.plan.genesis.head()]
        if state.decided:
            heads.append(ChainHead.of(self.records.values[state.decided[-1]]))
        for head in heads:
            attempt = Attempt(
                peer(self.plan.trainers[number]), self.plan.terms[number], bytes([number]) * 16
            )
            leader = self.plan.leader_class(attempt, self.plan.genesis, head, 0.0)
            yield self.after(state, number, self.settled(number, leader))

    def reductions(self, state: State, number: int) -> Iterator[State]:
        """A member reduces the step that a leader has due, unless it has served a later one."""
        leader = self.leaders.values[state.leaders[number]]
        if not leader.leads or leader.pending or leader.head.height >= len(self.plan.changes):
            return
        round_ = RoundId(leader.head.version, self.generation(leader.head, number))
        for place, log in enumerate(state.logs):
            key = log, round_
            if key not in self.log_steps:
                self.log_steps[key] = self.reduced(self.logs.values[log], round_)
            if self.log_steps[key] is not None:
                logs = (*state.logs[:place], self.log_steps[key], *state.logs[place + 1 :])
                yield state._replace(logs=logs)

    def generation(self, head: ChainHead, number: int) -> int:
        return first_number(self.plan.terms[number]) + head.height

    def reduced(self, log: CommitLog, round_: RoundId) -> int | None:
        """What a member holds after it; None if it does not reduce this."""
        if log.version != round_.step or log._over >= round_:
            return None
        after = copy(log)
        after._reduced = dict(log._reduced)
        gradient = AveragedGradient(b"g%d" % round_.generation, 1.0)
        after.reduction_begun(Reduce(RUN, round_.step, round_.generation, 0, b"", (), ()))
        after.reduction_over(round_, ReducedGradient(round_, object(), gradient))
        return self.logs.number(log_key(after), after)

    def all_reduced(self, state: State, head: ChainHead, number: int) -> bool:
        round_ = RoundId(head.version, self.generation(head, number))
        return all(self.logs.values[log]._over == round_ for log in state.logs)

    def proposals(self, state: State, number: int) -> Iterator[State]:
        leader = self.leaders.values[state.leaders[number]]
        height = leader.head.height
        if not leader.leads or leader.pending or height >= len(self.plan.changes):
            return
        if not self.all_reduced(state, leader.head, number):
            return
        makers = [commit, revote] if height in self.plan.also else [commit]
        for names, make in itertools.product(self.plan.changes[height], makers):
            key = state.leaders[number], names, make
            if key not in self.leader_steps:
                turn = copied(leader)
                turn.propose(self.record(leader.head, number, names, make))
                self.leader_steps[key] = self.settled(number, turn)
            yield self.after(state, number, self.leader_steps[key])

    def record(self, head: ChainHead, number: int, names: str, make: Make) -> CommitRecord:
        voters = tuple(voter(name) for name in names)
        record = make(head, self.plan.trainers[number], self.plan.terms[number], voters=voters)
        return self.records.values[self.records.number(digest(record), record)]

    def deliveries(self, state: State, request: int) -> Iterator[State]:
        """A request arrives, and its answer."""
        number, place, _ = self.requests.values[request]
        key = place, state.registers[place], request
        if key not in self.voter_steps:
            self.voter_steps[key] = self.voter_step(*key)
        register, acceptance, answer = self.voter_steps[key]
        if answer is None:
            return
        registers = (*state.registers[:place], register, *state.registers[place + 1 :])
        after = state._replace(registers=registers)
        if acceptance is not None and not state.accepted >> acceptance & 1:
            after = self.judged(after._replace(accepted=state.accepted | 1 << acceptance))
        key = state.leaders[number], place, answer
        if key not in self.leader_steps:
            turn = copied(self.leaders.values[state.leaders[number]])
            turn.receive(peer(self.names[place]), self.answers.values[answer])
            self.leader_steps[key] = self.settled(number, turn)
        step = self.leader_steps[key]
        if acceptance is None and step[0] == state.leaders[number]:
            return  # a promise that nobody heard, or an answer that is known
        yield self.after(after, number, step)

    # --- single steps of single machines

    def voter_step(self, place: int, register: int, request: int) -> tuple:
        number, _, message = self.requests.values[request]
        machine = self.plan.acceptor_class(
            self.seats[place], self.chain, self.registers.values[register]
        )
        machine.receive(peer(self.plan.trainers[number]), message, 0.0)
        acceptance = answer = None
        for action in machine.actions():
            match action:
                case Persist(entry=Propose(term=term, record=record)):
                    what = self.records.number(digest(record))
                    acceptance = self.acceptances.number((self.seats[place], term, what))
                case Reply(message=reply) if not isinstance(reply, Denied):
                    answer = self.answers.number(reply)
        after = machine.register
        held = None if after.accepted is None else digest(after.accepted)
        key = after.promised, after.attempt, after.accepted_term, held
        return self.registers.number(key, after), acceptance, answer

    def settled(self, number: int, leader: Leader) -> tuple:
        """A leader's step: its new state, what it sends, what it takes for decided, if it leads."""
        sent, decided, leads = 0, [], False
        while actions := leader.actions():
            for action in actions:
                match action:
                    case Ask(to=to, message=message) if not isinstance(message, Heartbeat):
                        what = None if isinstance(message, Prepare) else digest(message.record)
                        key = number, self.place[to], what
                        sent |= 1 << self.requests.number(key, (*key[:2], message))
                    case Fetch():
                        leader.on_head(self.head_before(leader._best()))
                    case RecordDecided(record=record):
                        decided.append(self.records.number(digest(record)))
                    case Leading():
                        leads = True
        return self.leaders.number((number, *leader_key(leader)), leader), sent, decided, leads

    def head_before(self, record: CommitRecord) -> ChainHead:
        return ChainHead.of(self.records.values[self.records.number(record.prev)])

    # --- what must hold

    def after(self, state: State, number: int, step: tuple) -> State:
        leader, sent, decided, leads = step
        if any(record not in state.decided for record in decided):
            raise Violation("a leader took for decided what is not")
        if leads and self.leaders.values[leader].head.height < self.known_before(state, number):
            raise Violation("a leader does not know what was decided")
        leaders = (*state.leaders[:number], leader, *state.leaders[number + 1 :])
        return state._replace(leaders=leaders, sent=state.sent | sent)

    def known_before(self, state: State, number: int) -> int:
        """How many records were decided under terms below that of this trainer."""
        under = {
            what
            for _, term, what in (self.acceptances.values[bit] for bit in bits(state.accepted))
            if term < self.plan.terms[number] and self.by_majority(state, term, what)
        }
        return max((state.decided.index(what) + 1 for what in under), default=0)

    def judged(self, state: State) -> State:
        """Somebody accepted something: is a record decided now, and is it the only one?"""
        for _, term, what in {self.acceptances.values[bit] for bit in bits(state.accepted)}:
            if what in state.decided or not self.by_majority(state, term, what):
                continue
            record = self.records.values[what]
            if record.height != len(state.decided):
                raise Violation(f"place {record.height} is decided twice, or too early")
            if state.decided and record.prev != digest(self.records.values[state.decided[-1]]):
                raise Violation(f"place {record.height} follows what was not decided")
            if record.step != self.version(state):
                raise Violation(
                    f"place {record.height} is of another step than the one that is due"
                )
            self.decisions += 1
            logs = tuple(self.followed(log, record) for log in state.logs)
            return state._replace(decided=(*state.decided, what), logs=logs)
        return state

    def followed(self, log: int, record: CommitRecord) -> int:
        """What a member holds after a decided record, which it must be able to follow."""
        order = Commit(RUN, record.step, record.generation, 0, record.scale, 0.1)
        after = copy(self.logs.values[log])
        after._reduced = dict(after._reduced)
        after._made = dict(after._made)
        if after.committed(order, patient=False) is not CommitDecision.APPLY:
            raise Violation(f"a member cannot follow the record of step {record.step}")
        after.take(order)
        after.applied(order)
        return self.logs.number(log_key(after), after)

    def version(self, state: State) -> int:
        """How many steps are decided: records of voters are none."""
        decided = (self.records.values[what] for what in state.decided)
        return sum(record.kind == RecordKind.COMMIT for record in decided)

    def by_majority(self, state: State, term: int, what: int) -> bool:
        entries = (self.acceptances.values[bit] for bit in bits(state.accepted))
        accepted = {who for who, *rest in entries if rest == [term, what]}
        return all(
            2 * len(accepted & set(voters)) > len(voters)
            for voters in self.records.values[what].electorates
        )


def log_key(log: CommitLog) -> tuple:
    rounds = frozenset(each.round for each in log._reduced.values())
    return log.version, rounds, log._over, tuple(sorted(log._made.items()))


def leader_key(leader: Leader) -> tuple:
    return (
        leader.phase,
        leader.head.digest,
        frozenset((v, shown(promise)) for v, promise in leader._promises.items()),
        frozenset(leader._refused),
        leader.pending and digest(leader.pending),
        frozenset(leader._accepted),
    )


def shown(promise: Promise) -> tuple:
    return promise.accepted_term, promise.accepted and digest(promise.accepted)


def copied(leader: Leader) -> Leader:
    other = copy(leader)
    other._promises = dict(leader._promises)
    other._refused = dict(leader._refused)
    other._accepted = dict(leader._accepted)
    other._asked = {}  # it may ask again at any time
    other._actions = []
    other.votes = Votes()
    other._fetching = None
    return other


def check(plan: Plan, states_max: int = 1_000_000) -> tuple[int, int]:
    """How many states there are, and how many decisions were seen; raises Violation."""
    model = Model(plan)
    return model.run(states_max), model.decisions
