"""One node's vote and its chain, joined: how a server takes part in deciding, and never leads.

It answers what trainers ask of a voter, and learns from the same calls what is decided. It has
the verbs of a trainer's `ChainParticipant`, so `ChainNode` serves both.

Units:   seconds on the caller's clock.
Errors:  Fork and BrokenRecord for what a peer sent: what the voter has said stands in `actions`,
  and the chain has not changed.
"""

from typing import Self

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import Action, Followed, Persist, Reply
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.chain.follower import Follower
from p2pswarm.run.chain.messages import Denied, HandOver, Heartbeat, Propose
from p2pswarm.run.chain.record import CommitRecord, VoterId
from p2pswarm.run.chain.voter import Voter


class ChainAcceptor:
    """The chain as a voter takes part in it."""

    next_deadline_s: float | None = None
    """A voter waits for nothing."""

    def __init__(self, voter: Voter, follower: Follower) -> None:
        self.voter = voter
        self.follower = follower
        self.leader: bytes | None = None
        """The trainer that leads the greatest term that was heard of; None before one was heard."""
        self.term = 0
        """The term that it leads. A promise alone raises none: its trainer may never lead."""
        self._actions: list[Action] = []

    @classmethod
    def of(cls, peer: bytes, memory: bytes, restored: Restored) -> Self:
        """The seat of a node, with what its file said; `memory` names that file."""
        follower = restored.follower
        return cls(Voter(VoterId(peer, memory), follower.chain, restored.register), follower)

    def actions(self) -> list[Action]:
        """Return what to do now, in this order; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def asked(self, sender: bytes, message: Message, now_s: float) -> None:
        """A trainer calls, this node's own included: answered by one `Reply`."""
        self.vote(sender, message, now_s)

    def vote(self, sender: bytes, message: Message, now_s: float) -> bool:
        """As `asked`; True if the answer is yes."""
        self.voter.receive(sender, message, now_s)
        answers = self.voter.actions()
        self._actions += answers
        if any(isinstance(a, Reply) and isinstance(a.message, Denied) for a in answers):
            return False
        if isinstance(message, Propose | Heartbeat) and message.term > self.term:
            self.leader, self.term = sender, message.term
            self._actions.append(Followed(sender, message.term))
        elif isinstance(message, HandOver):  # whoever asks for the coordinator goes to the next one
            self.leader = message.to
        other = sender if sender != self.voter.voter.peer else None
        try:
            self._follow(answers, message, other)
        finally:
            self._actions += self.follower.actions()
        return True

    def answered(self, sender: bytes, answer: Message, now_s: float) -> None:
        """Nobody answers: a voter asks nothing."""

    def unanswered(self, peer: bytes) -> None:
        """Nobody is silent: a voter asks nothing."""

    def learned(self, record: CommitRecord, now_s: float) -> None:  # noqa: ARG002
        """A record came that a `Fetch` asked for."""
        self.follower.learned(record)
        self._actions += self.follower.actions()

    def link_lost(self, peer: bytes, now_s: float) -> None:  # noqa: ARG002
        """The link to a peer ended."""
        self.voter.link_lost(peer)

    def on_deadline(self, now_s: float) -> None:
        """Nothing is ever due."""

    def _follow(
        self, answers: list[Persist | Reply], message: Message, sender: bytes | None
    ) -> None:
        """Learn what the call proves; `sender`: who has what is missing, if it is another node."""
        for action in answers:
            if isinstance(action, Persist) and isinstance(action.entry, Propose):
                self.follower.proposed(action.entry.record, sender)
        if isinstance(message, Heartbeat) and sender is not None:
            self.follower.heard(message, sender)
