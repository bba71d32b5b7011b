"""The donor's side of a download: it answers what newcomers ask, one question after another.

A piece is copied just before it is sent, and the copy is gone when it is sent. So a donor has one
copy for each newcomer that it sends to, and of those `COPIES_MAX` at most. A newcomer that takes
nothing of what it asked for holds one place, on however many streams; who waits for a version holds
none.

Units:   seconds, bytes.
Errors:  NotServing when the donor does not reach a version in time, or a newcomer asks for nothing;
         BadMessage for a question that cannot be answered.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from p2pswarm.errors import BadMessage, NotServing
from p2pswarm.flow.signal import Signal
from p2pswarm.ids import PeerId
from p2pswarm.rpc.base import Priority, Stream
from p2pswarm.state.base import DonatedState
from p2pswarm.swarm.messages.state import AskHashes, AskPiece, StateOffer
from p2pswarm.wire.message import Message

QUIET_S = 60.0  # a newcomer that asks for nothing for so long counts as gone
VERSION_WAIT_S = 120.0  # how long a newcomer may wait for a version: longer than a step takes
SEND_S = 600.0  # for one piece: 6 MiB at 0.1 Mbit/s
COPIES_MAX = 8  # pieces copied at a time, 48 MiB; more newcomers wait for each other


class Donor:
    """Serves the pieces of one stage's state."""

    def __init__(self, state: DonatedState, copies_max: int = COPIES_MAX) -> None:
        self._state = state
        self._copies = asyncio.Semaphore(copies_max)
        self._taking: dict[PeerId, None] = {}
        """The newcomers that a piece is copied for and sent to."""
        self._taken = Signal()

    async def serve(self, stream: Stream) -> None:
        """Serve one newcomer until it has enough, or asks for nothing more."""
        while (asked := await _next(stream)) is not None:
            match asked:
                case AskPiece():
                    await self._give(stream, asked)
                case AskHashes():
                    await self._tell(stream, asked)
                case _:
                    raise BadMessage(f"{type(asked).__name__} where pieces are asked for")

    async def _give(self, stream: Stream, asked: AskPiece) -> None:
        if asked.piece >= self._state.pieces:
            raise BadMessage(f"piece {asked.piece} of {self._state.pieces}")
        try:
            async with asyncio.timeout(VERSION_WAIT_S):
                await self._state.reached(asked.at_least)
        except TimeoutError:
            raise NotServing(f"version {asked.at_least} is not here yet") from None
        async with self._turn(stream.peer), self._copies:
            version, data = await self._state.piece(asked.piece)
            await stream.send(StateOffer(version, known=True))
            await _send(stream, asked.transfer, data)

    @asynccontextmanager
    async def _turn(self, newcomer: PeerId) -> AsyncIterator[None]:
        """Run a block for one newcomer, one at a time."""
        while newcomer in self._taking:
            await self._taken.wait()
        self._taking[newcomer] = None
        try:
            yield
        finally:
            del self._taking[newcomer]
            self._taken.fire()

    async def _tell(self, stream: Stream, asked: AskHashes) -> None:
        hashes = await self._state.hashes(asked.version)
        await stream.send(StateOffer(asked.version, known=hashes is not None))
        if hashes is not None:
            await _send(stream, asked.transfer, memoryview(b"".join(hashes)))


async def _next(stream: Stream) -> Message | None:
    """The next question of a newcomer; None at its end."""
    try:
        async with asyncio.timeout(QUIET_S):
            return await stream.receive()
    except TimeoutError:
        raise NotServing(f"nothing was asked for in {QUIET_S:g} s") from None


async def _send(stream: Stream, transfer: int, data: memoryview) -> None:
    try:
        async with asyncio.timeout(SEND_S):
            await stream.send_bulk(transfer, data, Priority.STATE)
    except TimeoutError:
        raise NotServing(f"{data.nbytes} bytes were not taken in {SEND_S:g} s") from None
