"""The donor's side of a download: it holds a snapshot still while others fetch it piece by piece.

Units:   seconds, bytes.
Errors:  NotServing when this member does not reach the version in time; Busy while it holds enough
         snapshots; BadMessage for a request that cannot be served.
"""

import asyncio
from collections.abc import Awaitable, Callable

from p2pswarm.errors import NotServing
from p2pswarm.rpc.base import Priority, Stream
from p2pswarm.state.held_snapshots import HeldSnapshots, piece_wanted
from p2pswarm.state.pieces import PIECE_BYTES
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchState, StateOffer
from p2pswarm.wire.message import Message

QUIET_S = 60.0  # a fetcher that asks for no piece for so long counts as gone
VERSION_WAIT_S = 120.0  # how long a fetcher may wait for a version: longer than a step takes


class Donor:
    """Serves snapshots to newcomers."""

    def __init__(
        self, take: Callable[[int], Awaitable[Snapshot]], piece_bytes: int = PIECE_BYTES
    ) -> None:
        """`take` waits for a version or a later one, and copies it."""
        self._take = take
        self._piece_bytes = piece_bytes
        self._taking = asyncio.Lock()
        self.held = HeldSnapshots()

    async def serve(self, stream: Stream, request: FetchState) -> None:
        """Serve one fetcher, until it has enough, or asks for nothing more."""
        snapshot = await self._lend(request.at_least)
        nbytes = snapshot.data.nbytes
        try:
            await stream.send(StateOffer(snapshot.version, snapshot.digest, nbytes))
            while piece := piece_wanted(await _next(stream), nbytes, self._piece_bytes):
                data = snapshot.data[piece.offset : piece.offset + piece.nbytes]
                await stream.send_bulk(piece.transfer, data, Priority.STATE)
        finally:
            self.held.give_back(snapshot.version)

    async def _lend(self, at_least: int) -> Snapshot:
        async with self._taking:
            if (held := self.held.lend(at_least)) is not None:
                return held
            try:
                async with asyncio.timeout(VERSION_WAIT_S):
                    return self.held.hold(await self._take(at_least))
            except TimeoutError:
                raise NotServing(f"version {at_least} is not here yet") from None


async def _next(stream: Stream) -> Message | None:
    """The next message of a fetcher; None at its end."""
    try:
        async with asyncio.timeout(QUIET_S):
            return await stream.receive()
    except TimeoutError:
        raise NotServing(f"no piece was asked for in {QUIET_S:g} s") from None
