"""The file of a voter, as bytes: the messages that changed its register, and decided records.

    file  = magic 8 | run 16 | memory 8 | entry, entry ...
    entry = length u32 | check 8 | message
    check = the first 8 bytes of SHA-256 over length and message

Entries are `Prepare` (a promise was given), `Propose` (a record was accepted) and `CommitRecord` (a
decided record was learned). Read again in this order, they give the register and the chain. A file
is only ever appended to. So what a crash leaves is a whole file and at most one torn entry at its
end, of which nobody was told: it is cut off. Anything else that does not fit is damage.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from p2pswarm.base.errors import BadMessage, Unusable
from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.run.chain.acceptor import Register
from p2pswarm.run.chain.chain import BrokenRecord, Chain, Fork, Genesis
from p2pswarm.run.chain.learner import Learner
from p2pswarm.run.chain.messages import Prepare, Propose
from p2pswarm.run.chain.record import CARRIER_BYTES_MAX, MEMORY_BYTES, CommitRecord, VoterId

MAGIC = b"PSCHAIN1"
RUN_BYTES = 16
HEADER_BYTES = len(MAGIC) + RUN_BYTES + MEMORY_BYTES
LENGTH_BYTES = 4
CHECK_BYTES = 8
PREFIX_BYTES = LENGTH_BYTES + CHECK_BYTES
ENTRY_BYTES_MAX = PREFIX_BYTES + CARRIER_BYTES_MAX
ENTRIES = Prepare | Propose | CommitRecord


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry and where it stands."""

    offset: int
    message: Prepare | Propose | CommitRecord


@dataclass(frozen=True, slots=True)
class Restored:
    """What a file says."""

    register: Register
    learner: Learner

    def votes_alone(self, voter: VoterId) -> bool:
        """Return whether nobody else votes on the next record, so that nobody is to be waited for.

        A record that was accepted may be decided: then its voters are asked, too.
        """
        accepted = self.register.accepted
        named = (*self.learner.chain.head.voters, *(accepted.voters if accepted else ()))
        return set(named) == {voter}


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
        """The records from height `first` to `end`, without `end`, as far as they are here.

        The caller passes the height of its chain's head as `end`: what stands at or after it may
        never be decided.
        """

    def close(self) -> None:
        """Let another process use it."""


def log_header(run: bytes, memory: bytes) -> bytes:
    """The first bytes of a file."""
    return MAGIC + run + memory


def log_entry(message: Message) -> bytes:
    """The bytes that one append writes."""
    data = encode(message)
    length = len(data).to_bytes(LENGTH_BYTES)
    return length + _check(length, data) + data


def read_header(data: bytes, run: bytes, name: str) -> bytes | None:
    """The file's memory; None if a crash tore the header; Unusable if it is another file."""
    if len(data) < HEADER_BYTES and (MAGIC + run).startswith(data[: len(MAGIC) + RUN_BYTES]):
        return None
    if not data.startswith(MAGIC):
        raise Unusable(f"{name} is no chain file of this version: restore a copy, or move it")
    if data[len(MAGIC) : HEADER_BYTES - MEMORY_BYTES] != run:
        raise Unusable(f"{name} is of another run: name another file, or move it away")
    return data[HEADER_BYTES - MEMORY_BYTES : HEADER_BYTES]


class LogReader:
    """The entries of a file that comes in pieces."""

    def __init__(self, name: str, end: int = HEADER_BYTES) -> None:
        self.end = end
        """Where the last whole entry ends: the length that the file has without a torn end."""
        self._name = name
        self._left = b""

    def feed(self, data: bytes) -> Iterator[LogEntry]:
        """The entries that are whole now. Raises Unusable if what comes is no entry."""
        left, at = memoryview(self._left + data), 0  # a view: no entry copies what follows it
        try:
            while size := _sound_size(left[at:]):
                yield LogEntry(self.end, self._entry(left[at + PREFIX_BYTES : at + size]))
                at += size
                self.end += size
        finally:
            self._left = bytes(left[at:])
        if len(self._left) > ENTRY_BYTES_MAX:
            raise self._damaged()

    def finish(self) -> int:
        """Return how many bytes at the end of the file are a torn entry.

        Raises Unusable if whole entries follow it: then it was whole once, too, and somebody was
        told of it.
        """
        left = memoryview(self._left)
        for offset in range(1, len(left)):
            if _sound_size(left[offset:]):
                raise self._damaged()
        return len(left)

    def _entry(self, data: memoryview) -> ENTRIES:
        try:
            message = decode(data)
        except BadMessage as error:
            raise self._damaged() from error
        if not isinstance(message, ENTRIES):
            raise self._damaged()
        return message

    def _damaged(self) -> Unusable:
        return Unusable(
            f"{self._name} is damaged at byte {self.end}: move it away, and this node votes anew; "
            "if it is the run's only voter, restore it from a copy or go on from a checkpoint"
        )


def _sound_size(data: memoryview) -> int | None:
    """The size of the whole entry that `data` begins with; None if it begins with none."""
    length = int.from_bytes(data[:LENGTH_BYTES])
    size = PREFIX_BYTES + length
    if not 1 <= length <= CARRIER_BYTES_MAX or len(data) < size:
        return None
    sound = data[LENGTH_BYTES:PREFIX_BYTES] == _check(data[:LENGTH_BYTES], data[PREFIX_BYTES:size])
    return size if sound else None


@dataclass(frozen=True, slots=True)
class VoterRecords:
    """What a voter has said and knows, and where it keeps the rest."""

    store: ChainStore
    restored: Restored


def blank(genesis: Genesis) -> Restored:
    """Return what a file without entries says."""
    return Restored(Register(), Learner(Chain(genesis)))


def restore(genesis: Genesis, entries: Iterator[LogEntry], name: str) -> Restored:
    """The register and the chain of a file's entries; Unusable if their records are no chain."""
    register, learner = Register(), Learner(Chain(genesis))
    for entry in entries:
        message = entry.message
        register = register.after(message)
        try:
            if isinstance(message, Propose):
                learner.on_proposal(message.record)
            elif isinstance(message, CommitRecord):
                learner.on_record(message)
        except (BrokenRecord, Fork) as error:
            raise Unusable(
                f"{name} holds no single chain, at byte {entry.offset}: {error}; move it away, or "
                "restore it from a copy"
            ) from error
        learner.actions()  # it is on the disk already
    return Restored(register, learner)


def _check(length: bytes | memoryview, data: bytes | memoryview) -> bytes:
    digest = hashlib.sha256(length)
    digest.update(data)
    return digest.digest()[:CHECK_BYTES]
