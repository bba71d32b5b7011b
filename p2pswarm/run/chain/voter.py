"""A voter of the chain: an acceptor and a learner in one node. It takes part in deciding.

Errors:  Fork and BrokenRecord for what a peer sent: what the acceptor has said stands in `actions`,
  and the chain has not changed.
"""

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.acceptor import ChainAcceptor
from p2pswarm.run.chain.actions import Action, Fetch, Followed, Persist, Reply
from p2pswarm.run.chain.chain_log import Restored
from p2pswarm.run.chain.messages import Denial, Denied, HandOver, Heartbeat, Propose
from p2pswarm.run.chain.record import CommitRecord, VoterId


class ChainVoter:
    """The chain as one node takes part in it: it answers trainers, and learns what is decided.

    A server is a voter and never leads. A trainer is one too, and a `ChainParticipant`, which adds
    the proposer. `ChainNode` serves both.
    """

    def __init__(self, voter: VoterId, restored: Restored) -> None:
        """`restored`: the content of the file that `voter` names."""
        self.learner = restored.learner
        self.acceptor = ChainAcceptor(voter, self.learner.chain, restored.register)
        self.led_by: tuple[bytes | None, int] = None, 0
        """The trainer that leads the greatest term that was heard of, and that term.

        A promise alone raises none: its trainer may never lead.
        """
        self._actions: list[Action] = []

    @property
    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`; a server waits for nothing."""
        return None

    def actions(self) -> list[Action]:
        """Return what to do now, in this order; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def on_call(self, sender: bytes, message: Message, now_s: float) -> None:
        """A trainer calls, this node's own included: answered by one `Reply`."""
        self._vote(sender, message, now_s)

    def on_answer(self, sender: bytes, answer: Message, now_s: float) -> None:
        """A voter has answered an `Ask`."""

    def on_silence(self, peer: bytes) -> None:
        """An `Ask` has failed, or nobody knows where the peer is."""

    def on_record(self, record: CommitRecord, now_s: float) -> None:  # noqa: ARG002
        """A record came that a `Fetch` asked for."""
        self.learner.on_record(record)
        self._actions += self.learner.actions()

    def link_lost(self, peer: bytes, now_s: float) -> None:  # noqa: ARG002
        """The link to a peer ended."""
        self.acceptor.link_lost(peer)

    def on_deadline(self, now_s: float) -> None:
        """Act on what is due."""

    def _vote(self, sender: bytes, message: Message, now_s: float) -> bool:
        """Answer a call; True if the answer is yes."""
        self.acceptor.receive(sender, message, now_s)
        answers = self.acceptor.actions()
        self._actions += answers
        replies = [action.message for action in answers if isinstance(action, Reply)]
        for denied in (reply for reply in replies if isinstance(reply, Denied)):
            if denied.why == Denial.JUMP and sender != self.acceptor.voter.peer:
                self._actions.append(Fetch(sender, self.learner.chain.head.height))
            return False
        if isinstance(message, Propose | Heartbeat) and message.term > self.led_by[1]:
            self.led_by = sender, message.term
            self._actions.append(Followed(sender, message.term))
        elif isinstance(message, HandOver):  # whoever asks for the coordinator goes to the next one
            self.led_by = message.to, self.led_by[1]
        other = sender if sender != self.acceptor.voter.peer else None
        try:
            for action in answers:
                if isinstance(action, Persist) and isinstance(action.entry, Propose):
                    self.learner.on_proposal(action.entry.record, other)
            if isinstance(message, Heartbeat) and other is not None:
                self.learner.on_heartbeat(message, other)
        finally:
            self._actions += self.learner.actions()
        return True
