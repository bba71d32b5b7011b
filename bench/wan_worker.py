"""One end of the link that bench/wan.py measures, in a process of its own."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import torch
from bandwidth_worker import EXCHANGE_S, Worker
from peers_worker import obey

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os import sockets
from p2pswarm.net.os.event_loop import run
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, Size, message

PIECE_BYTES = 16 * 1024
BARE_BYTES = 256 * 1024  # a write


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

    def __init__(self, endpoint: Endpoint, rpc: LinkRpc, connections: int) -> None:
        super().__init__(endpoint, rpc)
        self._wanted = connections
        self._got = 0
        self._bare = BareTcp()
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

    async def connections_wanted(self) -> int:
        """How many there are to be; 0: as the link chooses."""
        return self._wanted

    async def bare_listen(self) -> list[object]:
        """Swallow what comes by plain TCP; where."""
        return await self._bare.listen(self._endpoint.listening[0].host)

    async def bare_got(self) -> int:
        """How many bytes have come so."""
        return self._bare.got

    async def bare_send(self, to: list[object], connections: int) -> None:
        """Send by so many plain TCP connections from now on."""
        await self._bare.send(to, connections)

    async def _take(self, stream: Stream, opening: Pieces) -> None:
        if not opening.read:
            await asyncio.sleep(EXCHANGE_S)  # the stream's end cancels it
        while await stream.receive() is not None:
            self._got += 1


class BareTcp:
    """TCP and nothing else: what the road gives to so many connections."""

    def __init__(self) -> None:
        self.got = 0
        """Bytes that have come."""
        self._server: asyncio.Server | None = None
        self._sending: list[asyncio.Task[None]] = []

    async def listen(self, host: str) -> list[object]:
        """Swallow what comes; where."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Swallow(self), host, 0)
        return list(self._server.sockets[0].getsockname()[:2])

    async def send(self, to: list[object], connections: int) -> None:
        """Send until this process ends."""
        for _ in range(connections):
            connection = socket.socket()
            how = sockets.BULK_CONGESTION
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, how)
            connection.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connection, tuple(to))
            self._sending.append(asyncio.create_task(_send_until_it_ends(connection)))


class _Swallow(asyncio.Protocol):
    """Counts what comes, and drops it."""

    def __init__(self, counting: BareTcp) -> None:
        self._counting = counting

    def data_received(self, data: bytes) -> None:
        """Count it."""
        self._counting.got += len(data)


async def _send_until_it_ends(connection: socket.socket) -> None:
    data = os.urandom(BARE_BYTES)
    with contextlib.suppress(OSError), connection:  # the other process is the first to go
        while True:
            await asyncio.get_running_loop().sock_sendall(connection, data)


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
        worker = WanWorker(endpoint, rpc, connections)
        verbs = (
            *(worker.address, worker.carried, worker.send),
            *(worker.connections, worker.got, worker.pieces, worker.connections_wanted),
            *(worker.bare_listen, worker.bare_got, worker.bare_send),
        )
        await obey({verb.__name__: verb for verb in verbs})


if __name__ == "__main__":
    run(main(*json.loads(sys.argv[1])))
