"""The donor's side of a download: it answers what newcomers ask, one question after another.

Errors:  NotServing when the donor does not reach a version in time, or a newcomer asks for nothing;
         BadMessage for a question that cannot be answered.
"""

import asyncio
from collections import Counter
from contextlib import ExitStack
from typing import Protocol

from p2pswarm.base.errors import BadMessage, NotServing
from p2pswarm.base.exception_group import raising_cause
from p2pswarm.base.ids import PeerId
from p2pswarm.base.signal import Signal
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.wire.message import Message
from p2pswarm.run.messages.state import AskHashes, AskPiece, StateOffer

QUIET_S = 60.0  # a newcomer that asks for nothing for so long counts as gone
VERSION_WAIT_S = 120.0  # how long a newcomer may wait for a version: longer than a step takes
SEND_S = 600.0  # for one piece: 6 MiB at 0.1 Mbit/s
COPIES_MAX = 8  # pieces copied at a time, 48 MiB; more newcomers wait for each other
COPIES_EACH = 2  # for one newcomer: one is on its way while the next is copied


class DonatedState(Protocol):
    """The state that a donor gives: `version_reader.py` reads it, a replica knows its hashes."""

    @property
    def pieces(self) -> int:
        """Return how many there are."""

    async def reached(self, version: int) -> None:
        """Wait until the state is of `version` or later."""

    async def piece(self, piece: int) -> tuple[int, memoryview]:
        """Copy a piece; its version, and its bytes."""

    async def hashes(self, version: int) -> tuple[bytes, ...] | None:
        """The hash of each piece of a version; None if it is not known."""


class Donor:
    """Serves the pieces of one stage's state.

    A piece is copied just before it is sent, and the copy is gone when the newcomer has it. The
    next one is copied and sent meanwhile: else the link would be idle for a round trip after each.
    So a donor has two copies for each newcomer that it sends to, and of all `COPIES_MAX` at most.
    While half of these are taken, a newcomer has one. One that takes nothing of what it asked for
    holds two places, on however many streams; who waits for a version holds none.
    """

    def __init__(self, state: DonatedState, copies_max: int = COPIES_MAX) -> None:
        self._state = state
        self._copies_max = copies_max
        self._copies: Counter[PeerId] = Counter()
        """The pieces that are copied for a newcomer and sent to it."""
        self._left = Signal()

    async def serve(self, stream: Stream) -> None:
        """Serve one newcomer until it has enough, or asks for nothing more."""
        with raising_cause():
            async with asyncio.TaskGroup() as sending:
                while (asked := await _next(stream)) is not None:
                    match asked:
                        case AskPiece():
                            await self._give(stream, asked, sending)
                        case AskHashes():
                            await self._tell(stream, asked)
                        case _:
                            raise BadMessage(f"{type(asked).__name__} where pieces are asked for")

    async def _give(self, stream: Stream, asked: AskPiece, sending: asyncio.TaskGroup) -> None:
        """Offer a piece; the offers keep the order of the questions, and the bytes follow."""
        if asked.piece >= self._state.pieces:
            raise BadMessage(f"piece {asked.piece} of {self._state.pieces}")
        try:
            async with asyncio.timeout(VERSION_WAIT_S):
                await self._state.reached(asked.at_least)
        except TimeoutError:
            raise NotServing(f"version {asked.at_least} is not here yet") from None
        await self._take_place(stream.peer)
        with ExitStack() as place:
            place.callback(self._leave_place, stream.peer)
            version, data = await self._state.piece(asked.piece)
            await stream.send(StateOffer(version, known=True))
            task = sending.create_task(_send(stream, asked.transfer, data))
            leave = place.pop_all().close
            task.add_done_callback(lambda _: leave())

    async def _take_place(self, newcomer: PeerId) -> None:
        while not self._may_copy(newcomer):
            await self._left.wait()
        self._copies[newcomer] += 1

    def _leave_place(self, newcomer: PeerId) -> None:
        self._copies -= Counter((newcomer,))  # who has none left is forgotten
        self._left.fire()

    def _may_copy(self, newcomer: PeerId) -> bool:
        taken = self._copies.total()
        if newcomer not in self._copies:
            return taken < self._copies_max
        return self._copies[newcomer] < COPIES_EACH and taken < self._copies_max // 2

    async def _tell(self, stream: Stream, asked: AskHashes) -> None:
        hashes = await self._state.hashes(asked.version)
        await stream.send(StateOffer(asked.version, known=hashes is not None))
        if hashes is not None:
            await _send(stream, asked.transfer, memoryview(b"".join(hashes)))


async def _next(stream: Stream) -> Message | None:
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
