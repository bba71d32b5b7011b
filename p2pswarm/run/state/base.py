"""What donors and newcomers ask of their surroundings.

Errors:  BadMessage for a piece that does not fit.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from p2pswarm.base.signal import Signal
from p2pswarm.run.state.piece_download import PieceDownload

T = TypeVar("T")


class BackgroundThread(Protocol):
    """A thread for what blocks and needs no turn of the compute thread: copies and hashes."""

    async def __call__(self, work: Callable[[], T]) -> T:
        """The result of `work`."""
        ...


async def at_once(work: Callable[[], T]) -> T:
    """Do the work here: an `BackgroundThread` for virtual time."""
    return work()


class DonatedState(Protocol):
    """The state that a donor gives: `version_reader.py` reads it, a replica knows its hashes."""

    @property
    def pieces(self) -> int:
        """Return how many there are."""
        ...

    async def reached(self, version: int) -> None:
        """Wait until the state is of `version` or later."""
        ...

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Copy a piece; its version, and its bytes."""
        ...

    async def hashes(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece of a version; None if it is not known."""
        ...


class StateInDownload(Protocol):
    """The newcomer's memory, and the rules that say what belongs into it."""

    rules: PieceDownload
    moved: Signal
    """Fired when the rules were told something."""

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        ...

    async def came(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place, if the rules say so."""
        ...
