"""The file in which a voter, or a lone trainer, keeps what it has promised and what was decided."""

import os
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

from p2pswarm.base.errors import Unusable
from p2pswarm.base.file_lock import lock_file
from p2pswarm.base.files import private_opener, sync_folder
from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.chain import Genesis
from p2pswarm.run.chain.chain_log import (
    ENTRY_BYTES_MAX,
    HEADER_BYTES,
    LogEntry,
    LogReader,
    Restored,
    log_entry,
    log_header,
    read_header,
    restore,
)
from p2pswarm.run.chain.messages import Propose
from p2pswarm.run.chain.record import CommitRecord

READ_BYTES = 1 << 20
NOT_HERE = -1
GAP_MAX = 1 << 20  # records that are fetched later; a proposal that is further ahead is wrong


class ChainFile:
    """One node's file for one run, locked while it is open. Implements `ChainStore`.

    An entry is written with one call and is on the disk when `append` returns. What the entries
    say, and where a torn end begins, `chain_log.py` decides.
    """

    slow = True

    def __init__(self, path: Path, file: BinaryIO, memory: bytes) -> None:
        self.memory = memory
        """With the node's peer id it is the node's `VoterId`."""
        self.warning: str | None = None
        """What was cut off when the file was opened, for the user."""
        self._path = path
        self._file = file
        self._offsets = array("q")
        self._failed = False

    @classmethod
    def open(cls, path: Path, genesis: Genesis, memory: bytes) -> tuple[Self, Restored]:
        """Open the file, or begin it with `memory`, 8 random bytes; and what it says.

        Only who founds a run gives the memory that its genesis names.
        """
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = open(  # noqa: SIM115 - closed by `close`
                path, "a+b", buffering=0, opener=private_opener
            )
        except OSError as error:
            raise _refused(path, error) from error
        try:
            _lock(file, path)
            found = cls._begin(path, file, genesis, memory)
            chain_file = cls(path, file, found)
            restored = restore(genesis, chain_file._entries(), str(path))
        except OSError as error:
            file.close()
            raise _refused(path, error) from error
        except Unusable:
            file.close()
            raise
        return chain_file, restored

    def append(self, entry: Message) -> None:
        """Write an entry to the disk; Unusable if that is not sure: then the voter is mute."""
        if self._failed:
            raise _refused(self._path, OSError(0, "an earlier entry could not be written"))
        data = log_entry(entry)
        self._failed = True  # until this one is whole: nothing may stand behind a torn entry
        try:
            offset = self._file.seek(0, os.SEEK_END)
            written = self._file.write(data)
            os.fsync(self._file.fileno())
        except OSError as error:
            raise _refused(self._path, error) from error
        if written != len(data):
            raise _refused(self._path, OSError(0, "the disk is full"))
        self._failed = False
        self._index(entry, offset)

    def records(self, first: int, end: int) -> Iterator[CommitRecord]:
        """As `ChainStore.records`."""
        for offset in self._offsets[first : min(end, len(self._offsets))]:
            if offset == NOT_HERE:
                return
            yield self._record_at(offset)

    def close(self) -> None:
        """Let another process open the file."""
        self._file.close()

    @staticmethod
    def _begin(path: Path, file: BinaryIO, genesis: Genesis, memory: bytes) -> bytes:
        file.seek(0)
        found = read_header(file.read(HEADER_BYTES), genesis.run, str(path))
        if found is None:
            file.truncate(0)
            file.write(log_header(genesis.run, memory))
            os.fsync(file.fileno())
            sync_folder(path.parent)
            found = memory
        return found

    def _entries(self) -> Iterator[LogEntry]:
        reader = LogReader(str(self._path))
        self._file.seek(HEADER_BYTES)
        while data := self._file.read(READ_BYTES):
            for entry in reader.feed(data):
                self._index(entry.message, entry.offset)
                yield entry
        if torn := reader.finish():
            self._file.truncate(reader.end)
            os.fsync(self._file.fileno())
            self.warning = (
                f"{self._path}: cut off {torn} bytes that were not written whole when "
                "the node ended; nothing was promised with them"
            )

    def _index(self, entry: Message, offset: int) -> None:
        record = entry.record if isinstance(entry, Propose) else entry
        if isinstance(record, CommitRecord):
            missing = record.height + 1 - len(self._offsets)
            if missing <= GAP_MAX:
                self._offsets.extend([NOT_HERE] * missing)
                self._offsets[record.height] = offset

    def _record_at(self, offset: int) -> CommitRecord:
        reader = LogReader(str(self._path), offset)
        for entry in reader.feed(self._read_at(offset, ENTRY_BYTES_MAX)):
            message = entry.message
            record = message.record if isinstance(message, Propose) else message
            if isinstance(record, CommitRecord):
                return record
        raise Unusable(f"{self._path} has changed while it was in use: nobody else may write it")

    def _read_at(self, offset: int, nbytes: int) -> bytes:
        """Read at a place of its own: another thread may be appending."""
        if sys.platform == "win32":
            with self._path.open("rb", buffering=0) as file:
                file.seek(offset)
                found = file.read(nbytes)
        else:
            found = os.pread(self._file.fileno(), nbytes, offset)
        return found


def _lock(file: BinaryIO, path: Path) -> None:
    try:
        lock_file(file.fileno())
    except OSError as error:
        raise Unusable(f"{path} is in use by another node: give each node its own") from error


def _refused(path: Path, error: OSError) -> Unusable:
    return Unusable(
        f"{path} cannot be used: {error.strerror or error}; free some space or name another file"
    )
