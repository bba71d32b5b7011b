"""Weights for newcomers: a donor holds a snapshot still, a fetcher takes it piece by piece.

Units:   seconds, bytes.
Errors:  NotServing when a donor has not the version in time; Busy while it holds enough
         snapshots; BadMessage for an offer or a piece that cannot be.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from p2pswarm.errors import BadMessage, Busy, NotServing, SwarmError
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Arrival, Exchange, Priority, Rpc
from p2pswarm.state.pieces import PIECE_BYTES, Piece, Pieces
from p2pswarm.swarm.messages import FetchPiece, FetchState, StateOffer

log = logging.getLogger(__name__)

SNAPSHOTS_MAX = 2  # each is three times the weights: the last version's fetcher and this one's
QUIET_S = 60.0  # without a piece asked for: the fetcher is gone, or as good as
VERSION_WAIT_S = 120.0  # for the version asked for; the longest step that anybody sits through
FETCH_S = 3600.0  # 100 GB at 30 MB/s, the whole exchange
PIECE_S = 120.0  # 8 MiB at 0.6 Mbit/s
AHEAD = 2  # pieces asked for at once: one on its way while the next is asked for
RETRY_S = 0.2  # between two donors that refused


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and optimizer state of one version."""

    version: int
    digest: bytes
    """Of the weights."""
    data: memoryview


class Donor:
    """Serves snapshots; keeps one a version, as long as somebody fetches it."""

    def __init__(self, take: Callable[[int], Awaitable[Snapshot]]) -> None:
        """`take` waits for a version or a later one, and copies it."""
        self._take = take
        self._held: dict[int, tuple[Snapshot, int]] = {}
        """By version, with the number of its users."""
        self._taking = asyncio.Lock()

    async def serve(self, exchange: Exchange, request: FetchState) -> None:
        """One fetcher, until it has enough or falls silent."""
        snapshot = await self._lend(request.at_least)
        try:
            nbytes = snapshot.data.nbytes
            await exchange.send(StateOffer(snapshot.version, snapshot.digest, nbytes))
            while (piece := await _next(exchange)) is not None:
                end = piece.offset + piece.nbytes
                if end > nbytes or piece.nbytes > PIECE_BYTES:
                    raise BadMessage(f"bytes {piece.offset}..{end} of {nbytes}")
                data = snapshot.data[piece.offset : end]
                await exchange.send_bulk(piece.transfer, data, Priority.STATE)
        finally:
            self._give_back(snapshot.version)

    async def _lend(self, at_least: int) -> Snapshot:
        async with self._taking:
            newest = max(self._held, default=-1)
            if newest < at_least:
                if len(self._held) >= SNAPSHOTS_MAX:
                    raise Busy(f"{SNAPSHOTS_MAX} snapshots are being fetched", RETRY_S)
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


async def fetch(
    rpc: Rpc,
    donors: Callable[[], Awaitable[tuple[Contact, ...]]],
    request: FetchState,
    nbytes: int,
) -> Snapshot:
    """Download a snapshot of `nbytes`, of version `request.at_least` or later.

    `donors` tells who may be asked now, and waits while there is nobody. Returns when all bytes are
    here; their digest is the caller's to check. Ends only well or cancelled: donors come and go.
    """
    download: _Download | None = None
    turn = 0
    while True:
        candidates = await donors()
        donor = candidates[turn % len(candidates)]
        turn += 1
        try:
            async with rpc.converse(donor, request, FETCH_S) as exchange:
                offer = await exchange.receive()
                if not isinstance(offer, StateOffer) or offer.nbytes != nbytes:
                    raise BadMessage(f"{offer} where an offer of {nbytes} bytes is due")
                if download is None or not download.fits(offer):
                    download = _Download(offer)
                await download.run(exchange)
        except (SwarmError, TimeoutError) as error:
            log.info("download from %s stopped: %s", donor.address, error)
            await asyncio.sleep(RETRY_S)
            continue
        return download.snapshot()


class _Download:
    """What has come of one snapshot."""

    def __init__(self, offer: StateOffer) -> None:
        self._offer = offer
        self._pieces = Pieces(offer.nbytes)
        self._room = memoryview(bytearray(offer.nbytes))

    def fits(self, offer: StateOffer) -> bool:
        """Whether another donor offers the very same."""
        return offer == self._offer

    def snapshot(self) -> Snapshot:
        return Snapshot(self._offer.version, self._offer.digest, self._room)

    async def run(self, exchange: Exchange) -> None:
        """Ask one donor for all that is missing."""
        coming: list[tuple[Piece, Arrival]] = []
        try:
            while not self._pieces.complete:
                while len(coming) < AHEAD and (piece := self._pieces.ask()) is not None:
                    end = piece.offset + piece.nbytes
                    arrival = exchange.expect(self._room[piece.offset : end])
                    coming.append((piece, arrival))
                    ask = FetchPiece(piece.offset, piece.nbytes, arrival.transfer)
                    await exchange.send(ask)
                piece, arrival = coming[0]
                async with asyncio.timeout(PIECE_S):
                    await arrival.wait()
                coming.pop(0)
                self._pieces.came(piece)
        finally:
            for _, arrival in coming:
                arrival.cancel()
            self._pieces.give_up()


async def _next(exchange: Exchange) -> FetchPiece | None:
    """The next wish of a fetcher; None when it is done."""
    try:
        async with asyncio.timeout(QUIET_S):
            wish = await exchange.receive()
    except TimeoutError:
        raise NotServing(f"no piece was asked for in {QUIET_S:g} s") from None
    if wish is not None and not isinstance(wish, FetchPiece):
        raise BadMessage(f"{type(wish).__name__} where a FetchPiece is due")
    return wish
