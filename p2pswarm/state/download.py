"""The newcomer's side of a download: it fetches a snapshot from one donor after another.

Units:   seconds, bytes.
Errors:  none; after an error of the network the next donor is asked.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable

from p2pswarm.errors import SwarmError
from p2pswarm.ids import Contact
from p2pswarm.rpc.base import Arrival, Rpc, Stream
from p2pswarm.state.download_plan import DownloadPlan
from p2pswarm.state.pieces import PIECE_BYTES, StatePiece
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.swarm.messages.state import FetchPiece, FetchState

log = logging.getLogger(__name__)
FETCH_S = 3600.0  # for the whole stream: 100 GB at 30 MB/s
PIECE_S = 120.0  # for one piece: 8 MiB at 0.6 Mbit/s


async def fetch(
    rpc: Rpc,
    donors: Callable[[], Awaitable[tuple[Contact, ...]]],
    request: FetchState,
    nbytes: int,
    piece_bytes: int = PIECE_BYTES,
) -> Snapshot:
    """Download a snapshot of `nbytes`, of version `request.at_least` or later.

    `donors` gives the donors that can be asked now, and waits while there are none. Returns when
    all bytes are here; the caller checks their digest. Tries donors until then, or until it is
    cancelled.
    """
    plan = DownloadPlan(nbytes, piece_bytes)
    while True:
        donor = plan.donor(await donors())
        try:
            async with rpc.open_stream(donor, request, FETCH_S) as stream:
                plan.offered(await stream.receive())
                await _fetch_from(stream, plan)
        except (SwarmError, TimeoutError) as error:
            log.info("download from %s stopped: %s", donor.address, error)
            await asyncio.sleep(plan.pause_s)
        else:
            return plan.snapshot()


async def _fetch_from(stream: Stream, plan: DownloadPlan) -> None:
    """Ask one donor for all that is missing."""
    coming: deque[tuple[StatePiece, Arrival]] = deque()
    try:
        while not plan.complete:
            while (piece := plan.ask()) is not None:
                arrival = stream.expect(plan.memory(piece))
                coming.append((piece, arrival))
                await stream.send(FetchPiece(piece.offset, piece.nbytes, arrival.transfer))
            piece, arrival = coming[0]
            async with asyncio.timeout(PIECE_S):
                await arrival.wait()
            coming.popleft()
            plan.came(piece)
    finally:
        for _, arrival in coming:
            arrival.cancel()
        plan.stopped()
