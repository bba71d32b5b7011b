"""The promises and records of a node without a disk for them: the same verbs as `ChainFile`."""

import hashlib
from collections.abc import Iterator
from typing import Self

from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_log import ENTRIES, LogEntry, Restored, restore
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.chain.record import CommitRecord

RECORDS_KEPT = 1024  # by a server without a file: a trainer that was away for an hour lacks fewer
KEPT_BYTES_MAX = 64 << 20  # of these; the longest are 500 steps then, which take hours


class MemoryChain:
    """The chain file of one node for one run, in memory.

    A voter whose promises stand in memory dies with its process. A new process begins another
    `MemoryChain`, with other memory bytes, and is another voter; so nothing depends on what is
    lost. A simulation keeps one as the disk of a simulated machine, and reads it again after a
    restart.
    """

    slow = False
    """`append` returns at once: it may be called where others wait."""

    def __init__(
        self, memory: bytes, *, records_max: int | None = None, bytes_max: int = KEPT_BYTES_MAX
    ) -> None:
        """`memory`: 8 random bytes, or those that the genesis names; `records_max`: see `records`.

        Only who founds a run gives the memory that its genesis names. `bytes_max`: of the records
        that are kept where `records_max` says how many.
        """
        self.memory = memory
        """With the node's peer id it is the node's `VoterId`."""
        self.warning: str | None = None
        """Nothing is ever cut off."""
        self._records_max = records_max
        self._entries: list[ENTRIES] = []
        self._bytes_max = bytes_max
        self._records: dict[int, bytes] = {}
        """By height, encoded: as objects they take four times the memory."""
        self._held_bytes = 0

    @classmethod
    def instead_of(cls, memory: bytes, secret: bytes) -> Self:
        """The chain of a node whose file, named `memory`, cannot be written any more.

        It is another voter's. `secret` has random bytes of this process, so that no other process
        of the node takes the same name. As many records are kept as another node may lack.
        """
        name = hashlib.sha256(b"instead of:" + memory + secret).digest()[: len(memory)]
        return cls(name, records_max=RECORDS_KEPT)

    def append(self, entry: Message) -> None:
        """Keep an entry."""
        assert isinstance(entry, ENTRIES), "the machines have no others written down"
        if self._records_max is None:
            self._entries.append(entry)
        record = entry.record if isinstance(entry, Propose) else entry
        if isinstance(record, CommitRecord):
            data = encode(record)
            self._held_bytes += len(data) - len(self._records.pop(record.height, b""))
            self._records[record.height] = data
        if (most := self._records_max) is not None:
            while len(self._records) > most or self._held_bytes > self._bytes_max:
                self._held_bytes -= len(self._records.pop(min(self._records)))

    def records(self, first: int, end: int) -> Iterator[CommitRecord]:
        """As `ChainStore.records`; with `records_max`, only so many of the newest are here."""
        for height in range(first, end):
            if height not in self._records:
                return
            record = decode(self._records[height])
            assert isinstance(record, CommitRecord), "nothing else was encoded"
            yield record

    def restored(self, genesis: Genesis) -> Restored:
        """What the entries say. Raises ValueError if `records_max` has had some forgotten."""
        if self._records_max is not None:
            raise ValueError("a chain in memory that forgets records cannot be read again")
        entries = (LogEntry(place, entry) for place, entry in enumerate(self._entries))
        return restore(genesis, entries, "the chain in memory")

    def copy(self) -> "MemoryChain":
        """The same entries, apart: what a machine finds on its disk that is started again."""
        other = MemoryChain(self.memory, records_max=self._records_max, bytes_max=self._bytes_max)
        other._held_bytes = self._held_bytes
        other._entries = list(self._entries)
        other._records = dict(self._records)
        return other

    def close(self) -> None:
        """Nothing is open."""
