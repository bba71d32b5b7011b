"""The donor's side of a download: it holds a snapshot still while others fetch it piece by piece.

Units:   seconds, bytes.
Errors:  NotServing when this member does not reach the version in time; Busy while it holds enough
         snapshots; BadMessage for a request that cannot be served.
"""

import asyncio
from collections.abc import Awaitable, Callable

from p2pswarm.errors import BadMessage, Busy, NotServing
from p2pswarm.rpc.base import Priority, Stream
from p2pswarm.state.pieces import PIECE_BYTES
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece, FetchState, StateOffer

SNAPSHOTS_MAX = 2  # each is three times the weights: the last version's fetcher and this one's
QUIET_S = 60.0  # without a piece asked for: the fetcher is gone, or as good as
RETRY_AFTER_S = 0.2  # another may be done by then
VERSION_WAIT_S = 120.0  # for the version asked for; the longest step that anybody sits through


class Donor:
    """Serves snapshots; keeps one a version, as long as somebody fetches it."""

    def __init__(self, take: Callable[[int], Awaitable[Snapshot]]) -> None:
        """`take` waits for a version or a later one, and copies it."""
        self._take = take
        self._held: dict[int, tuple[Snapshot, int]] = {}
        """By version, with the number of its users."""
        self._taking = asyncio.Lock()

    async def serve(self, stream: Stream, request: FetchState) -> None:
        """One fetcher, until it has enough or falls silent."""
        snapshot = await self._lend(request.at_least)
        try:
            nbytes = snapshot.data.nbytes
            await stream.send(StateOffer(snapshot.version, snapshot.digest, nbytes))
            while (piece := await _next(stream)) is not None:
                end = piece.offset + piece.nbytes
                if end > nbytes or piece.nbytes > PIECE_BYTES:
                    raise BadMessage(f"bytes {piece.offset}..{end} of {nbytes}")
                data = snapshot.data[piece.offset : end]
                await stream.send_bulk(piece.transfer, data, Priority.STATE)
        finally:
            self._give_back(snapshot.version)

    async def _lend(self, at_least: int) -> Snapshot:
        async with self._taking:
            newest = max(self._held, default=-1)
            if newest < at_least:
                if len(self._held) >= SNAPSHOTS_MAX:
                    raise Busy(f"{SNAPSHOTS_MAX} snapshots are being fetched", RETRY_AFTER_S)
                try:
                    async with asyncio.timeout(VERSION_WAIT_S):
                        snapshot = await self._take(at_least)
                except TimeoutError:
                    raise NotServing(f"version {at_least} is not here yet") from None
                newest = snapshot.version
                self._held[newest] = snapshot, 0
            snapshot, users = self._held[newest]
            self._held[newest] = snapshot, users + 1
            return snapshot

    def _give_back(self, version: int) -> None:
        snapshot, users = self._held.pop(version)
        if users > 1:
            self._held[version] = snapshot, users - 1


async def _next(stream: Stream) -> FetchPiece | None:
    """The next wish of a fetcher; None when it is done."""
    try:
        async with asyncio.timeout(QUIET_S):
            wish = await stream.receive()
    except TimeoutError:
        raise NotServing(f"no piece was asked for in {QUIET_S:g} s") from None
    if wish is not None and not isinstance(wish, FetchPiece):
        raise BadMessage(f"{type(wish).__name__} where a FetchPiece is due")
    return wish
