"""What donors and newcomers share: a thread for copies, and the state of one version."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and optimizer state of one version."""

    version: int
    digest: bytes
    """The digest of weights and optimizer state (`tensors/state_tree.py`)."""
    data: memoryview
    """Weights and optimizer state, as `models/compute/` lays them out."""
    base: tuple[bytes, ...] = ()
    """The leaf of the frozen weights under it, if the run has some."""


class BackgroundThread(Protocol):
    """A thread for what blocks and needs no turn of the compute thread: copies and hashes."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work`."""


async def at_once(work: Callable[[], T]) -> T:
    """Do the work here: an `BackgroundThread` for virtual time."""
    return work()


class FrozenWeights(Protocol):
    """What is frozen of a stage, piece by piece; once it is here it never changes."""

    pieces: int

    @property
    def keys(self) -> tuple[str, ...]:
        """A name for what the bytes of each block are made of: the same in any cut."""

    def block_of(self, piece: int) -> int:
        """Return which block of the stage a piece is of, from 0."""

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""

    def read(self, piece: int) -> memoryview:
        """Copy a piece."""

    def write(self, piece: int, data: memoryview) -> None:
        """Put a piece in its place; raises BadMessage if it does not fit."""

    def hashes(self) -> tuple[bytes, ...]:
        """The hash of each piece of what `use` has taken; none before."""

    def leaf(self, hashes: Sequence[bytes]) -> bytes:
        """The leaf of a stage whose pieces have these hashes (`tensors/state_tree.py`)."""

    def use(self) -> None:
        """Compute with what is here now."""
