"""Reads a stage's state, part by part, while training goes on.

Units:   seconds; parts as in `version_holds.py`.
Errors:  NotServing for a version that is gone, because its reader was too slow.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Protocol

from p2pswarm.base.errors import NotServing
from p2pswarm.base.signal import Signal
from p2pswarm.run.state.base import BackgroundThread
from p2pswarm.run.state.version_holds import WINDOW_PARTS, Hold, Part, VersionHolds

WINDOW_BYTES = 96 << 20  # WINDOW_PARTS of float32
CHANGE_WAIT_S = 5.0  # a commit waits so long for readers; its sender waits 60 s for the answer


class ReadableState(Protocol):
    """The memory of a stage's state: `models/compute/base.py` says more."""

    tensors: int
    pieces: int

    def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a part."""


class VersionReader:
    """The reads of one stage's memory, and the changes that they must not meet.

    Weights and moments change only when a commit is applied. In between they are read from the
    side, by a thread of their own, also while the compute thread computes. A change waits until
    the reads under way are over (some milliseconds), and no read begins until it is over. Whole
    versions are held by the rules of `version_holds.py`.
    """

    def __init__(
        self,
        state: ReadableState,
        version: Callable[[], int | None],
        aside: BackgroundThread,
        window: int = WINDOW_PARTS,
    ) -> None:
        """`version`: what the memory is of now, None while it is not whole.

        `aside`: a thread for copies, not the compute thread: nobody waits for a microbatch.
        """
        self._state = state
        self._version = version
        self._aside = aside
        parts = frozenset((t, k) for t in range(state.tensors) for k in range(state.pieces))
        self._holds = VersionHolds(parts, window)
        self._reading = 0
        self._changing = False
        self._moved = Signal()

    async def reached(self, version: int) -> None:
        """Wait until the memory is of `version` or later."""
        while (now := self._version()) is None or now < version:
            await self._moved.wait()

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Copy a piece: the version that it is of, and its parts one after another."""
        while self._changing or (version := self._version()) is None:
            await self._moved.wait()
        tensors = range(self._state.tensors)
        async with self._one_read():
            return version, await self._aside(
                lambda: memoryview(b"".join(self._state.read(t, piece) for t in tensors))
            )

    @contextmanager
    def hold(self) -> Iterator["HeldVersion"]:
        """Hold the present version in a block: each of its parts can be read once."""
        version = self._version()
        if version is None or self._changing:
            raise NotServing("the weights are just changing")
        hold = self._holds.hold(version)
        try:
            yield HeldVersion(self, hold)
        finally:
            self._holds.release(hold)
            self._moved.fire()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Run a block that changes the memory; one at a time, and it is not to be cancelled."""
        await self._await_readers()
        self._changing = True
        try:
            while self._reading:
                await self._moved.wait()
            for tensor, piece in self._holds.to_save():
                data = await self._aside(partial(self._state.read, tensor, piece))
                self._holds.save((tensor, piece), data)
            self._holds.changed()
            yield
        finally:
            self._changing = False
            self._moved.fire()

    def moved(self) -> None:
        """Tell that the version is another now, or that there is one again."""
        self._moved.fire()

    async def read(self, hold: Hold, part: Part) -> memoryview:
        """A part of a version that is held."""
        while self._changing and part not in hold.saved and not hold.broken:
            await self._moved.wait()
        if hold.broken:
            raise NotServing(f"version {hold.version} was read too slowly, and training went on")
        async with self._one_read():
            if (saved := self._holds.read(hold, part)) is not None:
                return saved
            return await self._aside(partial(self._state.read, *part))

    @asynccontextmanager
    async def _one_read(self) -> AsyncIterator[None]:
        self._reading += 1
        try:
            yield
        finally:
            self._reading -= 1
            self._moved.fire()

    async def _await_readers(self) -> None:
        try:
            async with asyncio.timeout(CHANGE_WAIT_S):
                while self._holds.must_wait:
                    await self._moved.wait()
        except TimeoutError:
            self._holds.break_slow()


class HeldVersion:
    """A version that somebody reads; the block of `VersionReader.hold` ends it."""

    def __init__(self, reader: VersionReader, hold: Hold) -> None:
        self.version = hold.version
        self._reader = reader
        self._hold = hold

    async def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a part of it, once; NotServing if a commit did not wait for it any longer."""
        return await self._reader.read(self._hold, (tensor, piece))
