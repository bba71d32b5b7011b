"""The learner of Paxos: it knows the decided records from those who decide them.

Units:   heights count records.
Errors:  BrokenRecord and Fork for what a peer sent; nothing has changed then.
"""

from p2pswarm.run.chain.actions import Fetch, Persist
from p2pswarm.run.chain.chain import BrokenRecord, Chain, ChainHead, Fork, check_next
from p2pswarm.run.chain.messages import Heartbeat
from p2pswarm.run.chain.record import CommitRecord, authentic, digest


class ProvenRecords:
    """Records that one peer calls decided and that nobody has to believe yet.

    A trainer that was away for long may know no voter that still lives, and hear of the present
    ones only from a server that asks it for a stage. What that server sends can be proved: a record
    is decided if a trainer has signed one that follows it. The last one has no such proof. It is
    believed if it names its sender as a voter: a voter calls nothing decided that is not.
    """

    def __init__(self, chain: Chain, sender: bytes) -> None:
        """`chain`: our own, which grows by what is proved."""
        self._chain = chain
        self._sender = sender
        self._open: CommitRecord | None = None
        """The last record, while nothing proves it."""

    def receive(self, record: CommitRecord) -> list[CommitRecord]:
        """Return what is known to be decided now; BrokenRecord if `record` cannot follow."""
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


class Learner:
    """The chain of one node, and the last record that may follow it.

    A leader proposes a record only when the one before it is decided. So a proposal tells of two:
    the record that it names as the one before is decided, and the proposed one may be. A heartbeat
    names the last decided one. What is missing in between is fetched.
    """

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self._proposed: CommitRecord | None = None
        self._actions: list[Persist | Fetch] = []

    def actions(self) -> list[Persist | Fetch]:
        """Return what to do now, in this order; drained by reading."""
        drained, self._actions = self._actions, []
        return drained

    def on_proposal(self, record: CommitRecord, sender: bytes | None = None) -> None:
        """This node's voter has accepted a record, so the file has it already.

        If records before it are missing, they are fetched from the sender.
        """
        before = self._proposed
        if before is not None and record.prev == digest(before):
            self._append(before, on_disk=True)
        if record.height < self.chain.head.height:
            return  # a new leader begins with a record that is known here
        self._proposed = record
        if record.height > self.chain.head.height and sender is not None:
            self._actions.append(Fetch(sender, self.chain.head.height))

    def on_heartbeat(self, heartbeat: Heartbeat, sender: bytes) -> None:
        """The leader says what is decided."""
        ours, head = self.chain.digest_at(heartbeat.height - 1), self.chain.head
        if heartbeat.height <= head.height:
            if ours is not None and ours != heartbeat.digest:
                raise Fork(
                    f"two records decide place {heartbeat.height - 1} of the run: "
                    f"{ours.hex()[:8]} here, and {heartbeat.digest.hex()[:8]} at the trainer; keep "
                    "all files, and go on from one of them as a new run"
                )
            return
        last = self._proposed
        if last is not None and digest(last) == heartbeat.digest:
            self._append(last, on_disk=True)
        if self.chain.head.height < heartbeat.height:
            self._actions.append(Fetch(sender, self.chain.head.height))

    def on_record(self, record: CommitRecord) -> bool:
        """A decided record, fetched or just decided by this node; False if it is known."""
        before = self._proposed
        if before is not None and record.prev == digest(before):
            self._append(before, on_disk=True)  # a file says no more than that it was accepted
        return self._append(record, on_disk=before == record)

    def _append(self, record: CommitRecord, *, on_disk: bool) -> bool:
        if record.height > self.chain.head.height or not self.chain.append(record):
            return False  # what is missing before it is on the way, or it is known
        if not on_disk:
            self._actions.append(Persist(record))
        return True
