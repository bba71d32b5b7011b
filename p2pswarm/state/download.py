"""The newcomer's side of a download: it fetches a snapshot from one donor after another.

Units:   seconds, bytes.
Errors:  none of the network's: a donor that fails is replaced by the next.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from p2pswarm.errors import BadMessage, SwarmError
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Arrival, Rpc, Stream
from p2pswarm.state.pieces import PieceTracker, StatePiece
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece, FetchState, StateOffer

log = logging.getLogger(__name__)
FETCH_S = 3600.0  # 100 GB at 30 MB/s, the whole stream
PIECE_S = 120.0  # 8 MiB at 0.6 Mbit/s
AHEAD = 2  # pieces asked for at once: one on its way while the next is asked for
RETRY_S = 0.2  # between two donors that refused


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
            async with rpc.open_stream(donor, request, FETCH_S) as stream:
                offer = await stream.receive()
                if not isinstance(offer, StateOffer) or offer.nbytes != nbytes:
                    raise BadMessage(f"{offer} where an offer of {nbytes} bytes is due")
                if download is None or not download.fits(offer):
                    download = _Download(offer)
                await download.run(stream)
        except (SwarmError, TimeoutError) as error:
            log.info("download from %s stopped: %s", donor.address, error)
            await asyncio.sleep(RETRY_S)
            continue
        return download.snapshot()


class _Download:
    """What has come of one snapshot."""

    def __init__(self, offer: StateOffer) -> None:
        self._offer = offer
        self._pieces = PieceTracker(offer.nbytes)
        self._room = memoryview(bytearray(offer.nbytes))

    def fits(self, offer: StateOffer) -> bool:
        """Whether another donor offers the very same."""
        return offer == self._offer

    def snapshot(self) -> Snapshot:
        return Snapshot(self._offer.version, self._offer.digest, self._room)

    async def run(self, stream: Stream) -> None:
        """Ask one donor for all that is missing."""
        coming: list[tuple[StatePiece, Arrival]] = []
        try:
            while not self._pieces.complete:
                while len(coming) < AHEAD and (piece := self._pieces.ask()) is not None:
                    end = piece.offset + piece.nbytes
                    arrival = stream.expect(self._room[piece.offset : end])
                    coming.append((piece, arrival))
                    ask = FetchPiece(piece.offset, piece.nbytes, arrival.transfer)
                    await stream.send(ask)
                piece, arrival = coming[0]
                async with asyncio.timeout(PIECE_S):
                    await arrival.wait()
                coming.pop(0)
                self._pieces.came(piece)
        finally:
            for _, arrival in coming:
                arrival.cancel()
            self._pieces.give_up()
