"""The weights of a newcomer while they come, piece by piece, and follow the commits meanwhile.

`run/state/piece_download.py` decides; this file writes into the memory. It outlives the sessions
of the server: pieces that are here, and missed no commit, are not fetched again.

Units:   seconds; version v = state after v commits.
Errors:  those of the memory; what cannot follow then is fetched again.
Source:  docs/state.md.
"""

import asyncio
import hashlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from p2pswarm.base.deferred_cancel import to_its_end
from p2pswarm.base.errors import BadMessage
from p2pswarm.base.signal import Signal
from p2pswarm.models.compute.base import StateMemory, Update, part_sizes
from p2pswarm.run.averaging.base import Compute, Sums
from p2pswarm.run.state.base import Aside
from p2pswarm.run.state.piece_actions import DownloadLimits, Placement
from p2pswarm.run.state.piece_download import PieceDownload
from p2pswarm.tensors.codecs.base import Tensor


@dataclass(frozen=True, slots=True)
class _KeptPart:
    """A piece's part of a reduced gradient, and how to apply it."""

    gradient: Tensor
    update: Update


class Loading:
    """Implements `StateInDownload` on the memory of a stage."""

    def __init__(
        self,
        state: StateMemory,
        threads: tuple[Compute, Aside],
        locks: tuple[asyncio.Lock, Callable[[], AbstractAsyncContextManager[None]]],
        since: int,
    ) -> None:
        """`locks`: of the replica, and of those who read its memory."""
        self.rules = PieceDownload(state.pieces, since)
        self.moved = Signal()
        self._state = state
        self._compute, self._aside = threads
        self._lock, self._changing = locks
        self._limits = DownloadLimits()
        self._kept: dict[int, list[_KeptPart]] = {}
        self._overwrites: Callable[[], None] | None = None

    @property
    def enough(self) -> bool:
        """Whether the pieces can be worked with: all are here, and proved as far as is possible."""
        rules = self.rules
        return rules.complete or (rules.whole and not rules.provable)

    def overwrites(self, told: Callable[[], None]) -> None:
        """Call `told` before the first piece takes the place of what the memory holds."""
        self._overwrites = told

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        return sum(part_sizes(self._state, piece))

    def agreed(self, version: int, digest: bytes) -> None:
        """The stage agrees on the digest of a version."""
        if digest:
            self.rules.agreed(version, digest)
            self.moved.fire()

    def averaging(self, *, now: bool) -> None:
        """The stage averages now, or no longer."""
        self.rules.averaging(now=now)
        self.moved.fire()

    def missed(self, step: int) -> None:
        """A step is committed without a reduction here."""
        while self.rules.version <= step:
            self.rules.missed(self.rules.version)
        self.moved.fire()

    async def committed(self, step: int, reduced: Sums, update: Update) -> None:
        """Let the pieces that are here follow a commit; the replica's lock is held."""
        self.missed(step - 1)
        if step < self.rules.version:
            return
        parts, state = self.rules.committed(step), self._state

        def follow() -> dict[int, Tensor]:
            for piece in parts.apply:
                state.follow(piece, state.gradient(reduced, piece), update)
            return {piece: state.gradient(reduced, piece) for piece in parts.keep}

        with _Guard(self):
            async with self._changing():
                gradients = await self._compute(follow)
        self._kept = {
            piece: [*self._kept.get(piece, []), _KeptPart(gradient, update)][-self._limits.kept :]
            for piece, gradient in gradients.items()
        }
        self.moved.fire()

    async def came(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place, if it can follow the commits."""
        hashed = await self._aside(lambda: hashlib.sha256(data).digest())
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            placement = self.rules.piece_came(donor, piece, version, hashed, now_s)
            if placement is not None:
                await to_its_end(self._place(placement, data))
        self.moved.fire()

    async def restored(self, piece: int, version: int, data: memoryview, hashed: bytes) -> bool:
        """Put a piece of a former process in its place; returns whether it is of use."""
        async with self._lock:
            placement = self.rules.restored(piece, version, hashed)
            if placement is not None:
                await to_its_end(self._place(placement, data))
        self.moved.fire()
        return placement is not None

    async def copy(self, piece: int) -> tuple[int, memoryview] | None:
        """A piece that is here, and its version; None if it is not."""
        state = self._state
        async with self._lock:  # who changes the memory holds it
            version = self.rules.held.get(piece)
            if version is None:
                return None
            data = await self._aside(
                lambda: b"".join(state.read(tensor, piece) for tensor in range(state.tensors))
            )
        return version, memoryview(data)

    async def _place(self, placement: Placement, data: memoryview) -> None:
        piece, state = placement.piece, self._state
        kept = {part.update.number - 1: part for part in self._kept.pop(piece, [])}
        if self._overwrites is not None:
            self._overwrites()

        def place() -> None:
            state.write(piece, parts_of(data, part_sizes(state, piece)))
            for step in placement.steps:
                state.follow(piece, kept[step].gradient, kept[step].update)

        with _Guard(self):
            async with self._changing():
                await self._compute(place)


class _Guard:
    """A block that changes the memory: if it fails, nobody knows what the pieces are any more."""

    def __init__(self, loading: Loading) -> None:
        self._loading = loading

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self._loading.rules.forget()


def pieces_of(data: memoryview, state: StateMemory) -> Iterator[list[memoryview]]:
    """The parts of each piece of a whole state, which lies tensor after tensor."""
    sizes = [part_sizes(state, piece) for piece in range(state.pieces)]
    by_tensor = list(zip(*sizes, strict=True))
    if len(data) != sum(map(sum, sizes)):
        raise BadMessage(f"a state of {len(data)} bytes does not fit this stage")
    tensors = parts_of(data, [sum(each) for each in by_tensor])
    parts = [parts_of(whole, each) for whole, each in zip(tensors, by_tensor, strict=True)]
    yield from map(list, zip(*parts, strict=True))


def parts_of(data: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """What lies one after another in `data`, whose last part ends where it is too short."""
    stops = list(itertools.accumulate(sizes))
    return [data[stop - size : stop] for stop, size in zip(stops, sizes, strict=True)]
