"""What joins the chain's machines to a node: where promises are kept, and what a machine offers.

Units:   seconds on the caller's clock.
Errors:  Unusable from a store that cannot keep an entry.
"""

from collections.abc import Iterator
from typing import Protocol

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.actions import Action
from p2pswarm.run.chain.follower import Follower
from p2pswarm.run.chain.record import CommitRecord
from p2pswarm.run.chain.voter import Voter


class ChainStore(Protocol):
    """Where a node keeps what its voter said yes to, and what was decided.

    `ChainFile` keeps it on a disk. `MemoryChain` forgets it with its process: the voter is dead
    then, and a new process is another voter.
    """

    memory: bytes
    """With the node's peer id it is the node's `VoterId`."""
    slow: bool
    """True if `append` waits for a disk, so that a thread must do it."""

    def append(self, entry: Message) -> None:
        """Keep an entry; Unusable if that is not sure."""

    def records(self, first: int, end: int) -> Iterator[CommitRecord]:
        """The records from height `first` to `end`, without `end`, as far as they are here."""
        ...

    def close(self) -> None:
        """Let another process use it."""


class ChainMachine(Protocol):
    """A `ChainParticipant` of a trainer, or a `ChainAcceptor` of a server."""

    voter: Voter
    follower: Follower

    @property
    def next_deadline_s(self) -> float | None:
        """Return when to call `on_deadline`."""
        ...

    def actions(self) -> list[Action]:
        """Return what to do now, in this order; drained by reading."""
        ...

    def asked(self, sender: bytes, message: Message, now_s: float) -> None:
        """A trainer calls: answered by one `Reply`."""

    def answered(self, sender: bytes, answer: Message, now_s: float) -> None:
        """A voter has answered an `Ask`."""

    def unanswered(self, peer: bytes) -> None:
        """An `Ask` has failed, or nobody knows where the peer is."""

    def learned(self, record: CommitRecord, now_s: float) -> None:
        """A record came that a `Fetch` asked for."""

    def link_lost(self, peer: bytes, now_s: float) -> None:
        """The link to a peer ended."""

    def on_deadline(self, now_s: float) -> None:
        """Act on what is due."""
