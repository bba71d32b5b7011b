"""Records that a peer calls decided and that nobody has to believe yet.

A trainer that was away for long may know no voter that still lives, and hear of the present ones
only from a server that asks it for a stage. Whoever it is, what it sends can be proved: a leader
proposes a record only when the one before it is decided, so a record is decided if a trainer has
signed one that follows it. The last one has no such proof. It is believed if it names its sender as
a voter: a voter calls nothing decided that is not.

Errors:  BrokenRecord for a record that cannot follow the one before it.
"""

from p2pswarm.run.chain.chain import BrokenRecord, Chain, ChainHead, check_next
from p2pswarm.run.chain.record import CommitRecord, authentic


class ProvenRecords:
    """What one peer sends, judged record by record."""

    def __init__(self, chain: Chain, sender: bytes) -> None:
        """`chain`: our own, which grows by what is proved."""
        self._chain = chain
        self._sender = sender
        self._open: CommitRecord | None = None
        """The last record, while nothing proves it."""

    def receive(self, record: CommitRecord) -> list[CommitRecord]:
        """The records that are known to be decided now that `record` has come, in order."""
        before = self._open
        head = ChainHead.of(before) if before else self._chain.head
        if not before and record.height < head.height:
            return []  # our chain has grown meanwhile
        check_next(self._chain.genesis, head, record)
        if not authentic(record):
            raise BrokenRecord(f"{record.name()}: its signature is wrong")
        sure = any(voter.peer == self._sender for voter in record.voters)
        self._open = None if sure else record
        return [*([before] if before else []), *([record] if sure else [])]
