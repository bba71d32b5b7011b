"""One end of the link that bandwidth_sweep.py and wan.py measure, in a process of its own."""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace

import torch
from workers import obey

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os import sockets
from p2pswarm.net.os.event_loop import run
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.meta import Grant, TensorMeta
from p2pswarm.tensors.transfer import TensorTransfer

EXCHANGE_S = 120.0
CALL_EVERY_S = 0.05
HERE_IT_IS = Grant(())  # any small message will do


class Worker:
    """Sends tensors when told, and takes those that come."""

    def __init__(self, endpoint: Endpoint, rpc: LinkRpc) -> None:
        self._endpoint = endpoint
        self._rpc = rpc
        self._tensors = TensorTransfer(Budget())
        rpc.serve_stream(TensorMeta, self._receive)
        rpc.serve_unary(Grant, lambda _peer, grant: grant)

    async def address(self) -> list[str]:
        """Who and where this is."""
        return [str(self._rpc.contact.peer), str(self._rpc.contact.address)]

    async def cpu_s(self) -> float:
        """Processor time of all threads so far."""
        return time.process_time()

    async def carried(self) -> int:
        """Bytes sent in bulk so far."""
        return sum(link.stats.bulk_sent_bytes for link in self._endpoint.links())

    async def connections(self) -> int:
        """How many bulk connections there are."""
        return sum(link.stats.bulk_connections for link in self._endpoint.links())

    async def send(
        self, to: list[str], bytes_: int, codec: str, in_flight: int, seconds: float
    ) -> list[list[float]]:
        """Send tensors for so long, `in_flight` at once.

        Returns when each was there, and what small calls took meanwhile, in seconds.
        """
        contact = Contact(PeerId.parse(to[0]), Address.parse(to[1]))
        tensor = torch.randn(bytes_ // 4)
        begin_s = time.perf_counter()
        there_s: list[float] = []
        calls_s: list[float] = []

        async def stream() -> None:
            while time.perf_counter() < begin_s + seconds:
                await self._send_one(contact, tensor, codec)
                there_s.append(time.perf_counter() - begin_s)

        async def call() -> None:
            while time.perf_counter() < begin_s + seconds:
                asked_s = time.perf_counter()
                await self._rpc.call(contact, HERE_IT_IS, EXCHANGE_S)
                calls_s.append(time.perf_counter() - asked_s)
                await asyncio.sleep(CALL_EVERY_S)

        async with asyncio.TaskGroup() as group:
            group.create_task(call())
            for _ in range(in_flight):
                group.create_task(stream())
        return [there_s, sorted(calls_s)]

    async def _send_one(self, contact: Contact, tensor: torch.Tensor, codec: str) -> None:
        encoded = await self._tensors.pack([tensor], codec)
        async with self._rpc.open_stream(contact, encoded[0].meta, EXCHANGE_S) as stream:
            grant = await stream.receive()
            assert isinstance(grant, Grant)
            await self._tensors.send(stream, grant, encoded, Priority.TENSOR)
            await stream.receive()

    async def _receive(self, stream: Stream, meta: TensorMeta) -> None:
        async with self._tensors.accept(stream, [meta]) as incoming:
            await stream.send(incoming.grant)
            await incoming.tensors()
            await stream.send(HERE_IT_IS)


async def main(connections: int, chunk_bytes: int, host: str, congestion: str = "") -> None:
    """Listen at `host` and obey the lines on stdin.

    `connections`: 0 for as many as the link chooses; `congestion`: empty for the node's own.
    """
    torch.set_num_threads(1)
    if congestion:
        sockets.BULK_CONGESTION = congestion.encode()
    config = TransportConfig(chunk_bytes=chunk_bytes)
    if connections:
        config = replace(config, bulk_connections=connections, bulk_connections_far=connections)
    endpoint = Endpoint(Identity.generate(), sockets.SocketNet(), config, os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        await endpoint.listen(Address(host, 0))
        worker = Worker(endpoint, rpc)
        verbs = (worker.address, worker.cpu_s, worker.carried, worker.connections, worker.send)
        await obey({verb.__name__: verb for verb in verbs})


if __name__ == "__main__":
    run(main(*json.loads(sys.argv[1])))
