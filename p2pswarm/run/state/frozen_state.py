"""The frozen weights of a stage: given to newcomers, fetched from members, kept on disk.

A server makes them from the files of the run's model where its owner lets it read some. Else they
come from members of its stage, in pieces that have no version; blocks of a former process come from
the disk. The stage's state names their leaf, and so proves them.

Source:  docs/bases.md.
"""

import asyncio
import hashlib
from collections.abc import Iterator
from functools import partial

from p2pswarm.base.errors import NotServing
from p2pswarm.base.signal import Signal
from p2pswarm.run.state.base import BackgroundThread, FrozenWeights
from p2pswarm.run.state.base_files import BaseFolder
from p2pswarm.run.state.piece_download import DownloadLimits, PieceDownload

NO_VERSION = 0


class FrozenState:
    """Implements `DonatedState` and `StateInDownload` on the frozen weights of a stage."""

    def __init__(self, base: FrozenWeights, aside: BackgroundThread) -> None:
        """`aside`: a thread that copies and hashes, and computes nothing."""
        limits = DownloadLimits(versions=NO_VERSION)
        self.rules = PieceDownload(base.pieces, NO_VERSION, limits, root=base.leaf)
        self.moved = Signal()
        self._base, self._aside = base, aside
        self._looked_up = False
        """The blocks on disk were looked for."""
        self._kept: set[int] = set()
        """The blocks that are on disk as they are here."""
        self._keys = base.keys
        of_block = {block: list[int]() for block in range(len(self._keys))}
        for piece in range(base.pieces):
            of_block[base.block_of(piece)].append(piece)
        self._pieces_of = of_block

    @property
    def whole(self) -> bool:
        """Return whether they are here, and are computed with."""
        return bool(self._base.hashes()) or not self.pieces

    @property
    def size_bytes(self) -> int:
        """The bytes of all pieces."""
        return sum(map(self._base.piece_bytes, range(self.pieces)))

    @property
    def pieces(self) -> int:
        """Return how many there are."""
        return self._base.pieces

    async def reached(self, version: int) -> None:
        """Wait until they are here; NotServing for a version, which they do not have."""
        if version != NO_VERSION:
            raise NotServing("frozen weights have no version")
        while not self.whole:
            await self.moved.wait()

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Copy a piece."""
        return NO_VERSION, await self._aside(lambda: self._base.read(piece))

    async def hashes(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece, once they are here."""
        return self._base.hashes() if version == NO_VERSION and self.whole else None

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        return self._base.piece_bytes(piece)

    async def on_piece(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place."""
        hashed = await self._aside(lambda: hashlib.sha256(data).digest())
        now_s = asyncio.get_running_loop().time()
        if self.rules.piece_came(donor, piece, version, hashed, now_s) is not None:
            self._kept.discard(self._base.block_of(piece))
            await self._write(piece, data)
        self.moved.fire()

    async def look_up(self, folder: BaseFolder) -> int:
        """Put the blocks that the disk has in their places; how many pieces they are."""
        found = 0
        if self._looked_up:
            return found
        self._looked_up = True
        for block, key in enumerate(self._keys):
            pieces = self._pieces_of[block]
            reading = folder.read(key, list(map(self._base.piece_bytes, pieces)))
            there = [await self._restored(piece, reading) for piece in pieces]
            found += sum(there)
            if all(there):
                self._kept.add(block)
        return found

    async def _restored(self, piece: int, reading: Iterator[memoryview]) -> bool:
        data = await self._aside(lambda: next(reading, None))
        if data is None:
            return False
        hashed = await self._aside(lambda: hashlib.sha256(data).digest())
        if self.rules.restored(piece, NO_VERSION, hashed) is None:
            return False
        await self._write(piece, data)
        return True

    async def use(self, compute: BackgroundThread, leaf: bytes) -> None:
        """Compute with the pieces that have come; forget them if the memory has changed them."""
        await compute(self._base.use)
        if self.pieces and self._base.leaf(self._base.hashes()) != leaf:
            self.rules.forget()
            raise NotServing("the frozen weights are not those that have come")
        self.moved.fire()

    async def keep(self, folder: BaseFolder, thread: BackgroundThread) -> None:
        """Write block after block to the disk, as they are proved; NotSaved if it is full.

        `thread`: where it may take seconds.
        """
        while True:
            if (due := self._due()) is None:
                await self.moved.wait()
            else:
                await thread(partial(self._save, folder, due))
                self._kept.add(due)

    def _save(self, folder: BaseFolder, block: int) -> None:
        pieces, base = self._pieces_of[block], self._base
        nbytes = sum(map(base.piece_bytes, pieces))
        folder.write(self._keys[block], map(base.read, pieces), nbytes)

    def _due(self) -> int | None:
        proved = self.rules.proved
        for block, pieces in self._pieces_of.items():
            if block not in self._kept and pieces and proved.issuperset(pieces):
                return block
        return None

    async def _write(self, piece: int, data: memoryview) -> None:
        try:
            await self._aside(lambda: self._base.write(piece, data))
        except BaseException:
            self.rules.forget()
            raise
