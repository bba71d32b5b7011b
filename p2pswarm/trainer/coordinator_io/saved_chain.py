"""The chain of a run as a checkpoint has it: every record up to the one that made its version.

Records that only changed the voters since then are left out: they say nothing about the weights.

Units:   heights count records.
Errors:  none.
"""

from dataclasses import dataclass

from p2pswarm.run.chain.base import ChainStore
from p2pswarm.run.chain.branch import Branch
from p2pswarm.run.chain.chain import Chain, Genesis
from p2pswarm.run.chain.chain_log import log_entry, log_header
from p2pswarm.run.chain.record import MEMORY_BYTES, digest

NO_VOTER = bytes(MEMORY_BYTES)
"""The memory of a file that no voter keeps."""


@dataclass(frozen=True, slots=True)
class ChainMark:
    """A place in the chain."""

    head: bytes = b""
    """The hash of the newest record there; empty before the first."""
    height: int = 0


class SavedChain:
    """What a trainer has of its run's chain."""

    def __init__(self, chain: Chain, store: ChainStore) -> None:
        self._chain = chain
        self._store = store

    @property
    def saved(self) -> int:
        """The newest version that the chain says is saved, or the one that the run began with."""
        return self._chain.head.saved

    @property
    def version(self) -> int:
        """Of the weights, after the newest record."""
        return self._chain.head.version

    @property
    def genesis(self) -> Genesis:
        """What the first record was checked against."""
        return self._chain.genesis

    def branch(self) -> Branch:
        """What each version is, from all records. Blocks while they are read."""
        branch = Branch()
        for record in self._store.records(0, self._chain.head.height):
            branch.append(record)
        return branch

    def mark(self) -> ChainMark:
        """The place behind the record that made the present version."""
        last = self._chain.last
        return ChainMark() if last is None else ChainMark(digest(last), last.height + 1)

    def records(self, mark: ChainMark) -> bytes | None:
        """All records up to a mark, as a chain file has them; None if some are not here."""
        if not mark.height:
            return None
        entries = [log_entry(record) for record in self._store.records(0, mark.height)]
        if len(entries) < mark.height:
            return None
        return b"".join([log_header(self._chain.genesis.run, NO_VOTER), *entries])
