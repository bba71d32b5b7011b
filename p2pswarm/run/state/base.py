"""What donors and newcomers share: a thread for copies, and the state of one version."""

from collections.abc import Callable
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
