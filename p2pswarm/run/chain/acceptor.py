"""The acceptor of Paxos: its promises, what it has accepted, and what it must write down first.

Units:   seconds on the caller's clock; terms, heights and steps as in the record.
Source:  Lamport, "Paxos Made Simple" (2001), for the two rules; docs/chain.md.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from p2pswarm.base.token_bucket import TokenBucket
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import Persist, Reply
from p2pswarm.run.chain.chain import WINDOW, BrokenRecord, Chain, ChainHead, check_next
from p2pswarm.run.chain.messages import (
    TERM_EVERY_S,
    TERM_JUMP_MAX,
    Accepted,
    Denial,
    Denied,
    HandOver,
    Heartbeat,
    Prepare,
    Promise,
    Propose,
)
from p2pswarm.run.chain.record import NO_DIGEST, CommitRecord, VoterId, authentic, digest

CALM_S = 3.0  # three heartbeats; a standby that waits 4 s has let this pass


@dataclass(frozen=True, slots=True)
class Register:
    """All that an acceptor has on its disk, besides decided records."""

    promised: int = 0
    """It accepts nothing of a lower term."""
    attempt: bytes = b""
    """Whose attempt in that term it promised to follow; empty if it only accepted."""
    accepted_term: int = 0
    accepted: CommitRecord | None = None

    def after(self, entry: Message) -> "Register":
        """The register once a message that the voter said yes to has changed it."""
        match entry:
            case Prepare(term=term, attempt=attempt):
                return replace(self, promised=term, attempt=attempt)
            case Propose(term=term, record=record):
                attempt = self.attempt if term == self.promised else b""
                return Register(term, attempt, term, record)
        return self

    @property
    def rank(self) -> tuple[int, int]:
        """The place of what was accepted among all that voters ever accepted."""
        return self.accepted_term, -1 if self.accepted is None else self.accepted.height


class ChainAcceptor:
    """One node's vote in one run. The chain is its learner's: it is read here, never changed.

    The register is a few fields. Each of them is on the disk before the answer that tells of it,
    as the message that changed it, so the file is the list of these messages and reading them
    again gives the register. Nothing else that an acceptor knows is needed for safety.
    """

    def __init__(self, voter: VoterId, chain: Chain, register: Register) -> None:
        self.voter = voter
        """This node, with the file that its register is in."""
        self.register = register
        """What is on the disk, or will be before the next answer."""
        self.coordinator: bytes | None = None
        """The trainer that was heard last, as the leader of a term or about to be."""
        self._chain = chain
        self._named: frozenset[bytes] = frozenset()
        self._heard_s = -math.inf
        self._standing = 0
        self._rival = b""
        """The attempt of a trainer that stands for our term and goes before ours."""
        self._mute = False
        self._terms = TokenBucket(TERM_EVERY_S, TERM_JUMP_MAX)
        self._actions: list[Persist | Reply] = []

    def actions(self) -> list[Persist | Reply]:
        """Return what to do now, in this order; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def receive(self, sender: bytes, message: Message, now_s: float) -> None:
        """A trainer calls: answered by one `Reply`, after what must be on the disk first."""
        match message:
            case Prepare():
                asked, answer = message.term, self._prepared(sender, message, now_s)
            case Propose():
                asked, answer = message.term, self._proposed(sender, message, now_s)
            case Heartbeat():
                asked, answer = message.term, self._heard(sender, message, now_s)
            case HandOver():
                asked, answer = message.term, self._handed_over(sender, message)
            case _:
                raise TypeError(f"{type(message).__name__} is not for a voter")
        if isinstance(answer, Denial):
            run, promised = self._chain.genesis.run, self.register.promised
            answer = Denied(run, self.voter.memory, asked, promised, answer)
        self._actions.append(Reply(sender, answer))

    def on_trainers(self, trainers: Iterable[bytes]) -> None:
        """The coordinator that this node joined says who may lead: its chain may be behind that."""
        self._named = frozenset(trainers)

    def stand(self, term: int) -> None:
        """This node's own trainer asks others to follow it: no promise to a rival until `term`."""
        self._standing, self._rival = term, b""

    def link_lost(self, peer: bytes) -> None:
        """A peer's link ended: if it is the coordinator, there is nothing to be calm about."""
        if peer == self.coordinator:
            self._heard_s = -math.inf

    def disk_failed(self) -> None:
        """A `Persist` could not be carried out: vote no more until the node is started again."""
        self._mute = True
        self._actions.clear()

    def calm(self, now_s: float) -> bool:
        """Return whether the coordinator was heard a moment ago."""
        return now_s - self._heard_s < CALM_S

    def _prepared(self, sender: bytes, message: Prepare, now_s: float) -> Message | Denial:
        register = self.register
        if not self._knows(sender, message.run):
            return Denial.STRANGER
        again = (message.term, message.attempt) == (register.promised, register.attempt)
        if not again:
            if message.term <= register.promised:
                return Denial.TERM
            if self._is_rival(sender, message):
                return Denial.CALM
            if sender not in (self.coordinator, self.voter.peer) and self.calm(now_s):
                return Denial.CALM
            if not self._terms.take(now_s, self._rise(message.term)):
                return Denial.JUMP
            self._keep(message)
        self._follow(sender, now_s)
        return Promise(
            message.run,
            self.voter.memory,
            message.term,
            message.attempt,
            register.accepted_term,
            register.accepted,
        )

    def _is_rival(self, sender: bytes, message: Prepare) -> bool:
        """Return whether our own trainer stands, and another one asks in vain.

        Each of two that stand within a round trip would wait for the other's voter until both give
        up. So the one that ranks behind gives way when it is asked again, a second later: an
        attempt that needs no other's voter has succeeded by then.
        """
        if sender == self.voter.peer or message.term > self._standing:
            return False
        trainers = self._chain.head.trainers
        here = trainers.index(self.voter.peer) if self.voter.peer in trainers else len(trainers)
        again = message.attempt == self._rival
        if message.term == self._standing and sender in trainers[:here]:
            self._rival = message.attempt
            return not again
        return True

    def _proposed(self, sender: bytes, message: Propose, now_s: float) -> Message | Denial:
        register, record = self.register, message.record
        voters = (*record.voters_before, *record.voters)
        known = self._knows(sender, message.run) or self._vouched(sender, record)
        if not known or self.voter not in voters or record.run != message.run:
            return Denial.STRANGER
        if message.term < register.promised:
            return Denial.TERM
        rank = message.term, record.height
        if register.accepted is not None and rank == register.rank:
            if register.accepted != record:
                return Denial.CONFLICT
        elif rank > register.rank:
            if (refusal := self._refusal(message)) is not None:
                return refusal
            if not self._terms.take(now_s, self._rise(message.term)):
                return Denial.JUMP
            self._keep(message)
        self._follow(sender, now_s)
        return self._accepted()

    def _refusal(self, message: Propose) -> Denial | None:
        """Return what is wrong with a record, as far as this voter can tell."""
        record = message.record
        if record.term > message.term or not authentic(record):
            return Denial.INVALID
        if record.height < self._chain.head.height:
            decided = self._chain.digest_at(record.height)
            return None if decided in (None, digest(record)) else Denial.CONFLICT
        for head in self._heads():
            if head.digest == record.prev:
                try:
                    check_next(self._chain.genesis, head, record)
                except BrokenRecord:
                    return Denial.INVALID
                return None
        # whoever leads next has to find the records in between, and whoever holds them
        ahead = record.height - self._chain.head.height
        if ahead == 0:
            return Denial.INVALID  # our newest record is decided, and it follows another one
        return Denial.JUMP if ahead > WINDOW else None

    def _heads(self) -> list[ChainHead]:
        accepted = self.register.accepted
        return [self._chain.head, *([ChainHead.of(accepted)] if accepted else [])]

    def _heard(self, sender: bytes, message: Heartbeat, now_s: float) -> Message | Denial:
        if not self._knows(sender, message.run):
            return Denial.STRANGER
        if message.term < self.register.promised:
            return Denial.TERM
        if not self._terms.left(now_s, self._rise(message.term)):
            return Denial.JUMP
        self._follow(sender, now_s)
        return self._accepted()

    def _handed_over(self, sender: bytes, message: HandOver) -> Message | Denial:
        if not self._knows(sender, message.run):
            return Denial.STRANGER
        if message.term < self.register.promised or sender != self.coordinator:
            return Denial.TERM
        self._heard_s = -math.inf
        return self._accepted()

    def _rise(self, term: int) -> int:
        """How far a term is above all that this voter knows of.

        Terms are few, and there is none after the last. A trainer that could name any of them could
        end the run with one message.
        """
        return max(0, term - max(self.register.promised, self._chain.head.term))

    def _knows(self, sender: bytes, run: bytes) -> bool:
        """Return whether the sender may lead this run, and this voter may vote."""
        named = (trainer for head in self._heads() for trainer in head.trainers)
        known = sender in self._named or sender in named
        return run == self._chain.genesis.run and known and not self._mute

    def _vouched(self, sender: bytes, record: CommitRecord) -> bool:
        """Whether a trainer that is known names the sender as another one, in this record."""
        named = sender in record.trainers and self._knows(record.coordinator, record.run)
        return named and authentic(record)

    def _keep(self, entry: Prepare | Propose) -> None:
        self.register = self.register.after(entry)
        self._actions.append(Persist(entry))

    def _follow(self, sender: bytes, now_s: float) -> None:
        self.coordinator = sender
        self._heard_s = now_s

    def _accepted(self) -> Accepted:
        run, memory = self._chain.genesis.run, self.voter.memory
        record = self.register.accepted
        if record is None:
            return Accepted(run, memory, 0, 0, NO_DIGEST)
        return Accepted(run, memory, self.register.accepted_term, record.height, digest(record))
