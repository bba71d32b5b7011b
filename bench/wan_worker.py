"""One end of the link that bench/wan.py measures, in a process of its own."""

import asyncio
import json
import os
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import torch
from bandwidth_worker import EXCHANGE_S, Worker
from peers_worker import obey

from p2pswarm.crypto.identity import Identity
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net import sockets
from p2pswarm.net.event_loop import run
from p2pswarm.rpc.base import Stream
from p2pswarm.rpc.link_rpc import LinkRpc
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.endpoint import Endpoint
from p2pswarm.wire.message import Message, Size, message

PIECE_BYTES = 16 * 1024


@message(9951)
@dataclass(frozen=True, slots=True)
class Pieces(Message):
    """Opens a stream of pieces."""

    read: bool
    """Whether its receiver reads it."""


@message(9952)
@dataclass(frozen=True, slots=True)
class Piece(Message):
    """Some bytes."""

    data: Annotated[bytes, Size(PIECE_BYTES)]


class WanWorker(Worker):
    """Sends and takes streams of messages, too."""

    def __init__(self, endpoint: Endpoint, rpc: LinkRpc) -> None:
        super().__init__(endpoint, rpc)
        self._got = 0
        rpc.serve_stream(Pieces, self._take)

    async def connections(self) -> int:
        """How many bulk connections there are."""
        return sum(link.stats.bulk_connections for link in self._endpoint.links())

    async def got(self) -> int:
        """How many pieces have come on streams that are read."""
        return self._got

    async def pieces(self, to: list[str], streams: int, seconds: float, *, stalled: bool) -> None:
        """Send pieces on so many streams, beside one that nobody reads if `stalled`."""
        contact = Contact(PeerId.parse(to[0]), Address.parse(to[1]))
        end_s = time.perf_counter() + seconds
        piece = Piece(os.urandom(PIECE_BYTES))

        async def send(stream: Stream) -> None:
            while time.perf_counter() < end_s:
                await stream.send(piece)

        async with AsyncExitStack() as stack:
            opened = [
                await stack.enter_async_context(
                    self._rpc.open_stream(contact, Pieces(read=read), EXCHANGE_S)
                )
                for read in [True] * streams + [False] * stalled
            ]
            async with asyncio.timeout(seconds + EXCHANGE_S), asyncio.TaskGroup() as group:
                tasks = [group.create_task(send(stream)) for stream in opened]
                await asyncio.sleep(seconds)
                for task in tasks[streams:]:
                    task.cancel()

    async def _take(self, stream: Stream, opening: Pieces) -> None:
        if not opening.read:
            await asyncio.sleep(EXCHANGE_S)  # the stream's end cancels it
        while await stream.receive() is not None:
            self._got += 1


async def main(host: str, connections: int, congestion: str) -> None:
    """Listen at `host` and obey. `connections`: 0 for what the link chooses."""
    torch.set_num_threads(1)
    sockets.BULK_CONGESTION = congestion.encode()
    config = TransportConfig()
    if connections:
        config = TransportConfig(bulk_connections=connections, bulk_connections_far=connections)
    endpoint = Endpoint(Identity.generate(), sockets.SocketNet(), config, os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        await endpoint.listen(Address(host, 0))
        worker = WanWorker(endpoint, rpc)
        verbs = (
            *(worker.address, worker.carried, worker.send),
            *(worker.connections, worker.got, worker.pieces),
        )
        await obey({verb.__name__: verb for verb in verbs})


if __name__ == "__main__":
    run(main(*json.loads(sys.argv[1])))
