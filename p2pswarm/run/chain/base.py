"""The store of a voter's promises and of decided records."""

from collections.abc import Iterator
from typing import Protocol

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.record import CommitRecord


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
