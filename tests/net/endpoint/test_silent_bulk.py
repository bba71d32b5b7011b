"""A bulk connection that alone falls silent costs its chunks some seconds, and not the link."""

import asyncio
import random
from contextlib import asynccontextmanager

import pytest
from net.link.harness import EchoEnd, End, listening, transfer

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.link.events import StreamData

PATIENCE_S = 60.0  # TCP would never find it: the road acknowledges what it swallows


class StallingRoad:
    """A relay on the way that stops to carry one connection, without a word."""

    def __init__(self, to: Contact) -> None:
        self._to = to
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._writers: list[asyncio.StreamWriter] = []
        self.stalled: int | None = None
        """Which connection carries nothing, in the order in which they came."""
        self.swallowed = 0
        """Bytes that it took and did not bring."""
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number, self.connections = self.connections, self.connections + 1
        there, back = await asyncio.open_connection(self._to.address.host, self._to.address.port)
        self._writers += [writer, back]
        for each in (self._carry(number, reader, back), self._carry(number, there, writer)):
            self._tasks[asyncio.create_task(each)] = None

    async def _carry(self, number, reader, writer) -> None:
        while data := await reader.read(65536):
            if self.stalled == number:
                self.swallowed += len(data)
                continue  # it acknowledges, and brings nothing: nor does it say that it ended
            writer.write(data)
            await writer.drain()
        if self.stalled != number:
            writer.close()

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        for writer in self._writers:
            writer.close()


@asynccontextmanager
async def stalling_link(connections: int):
    settings = {"bulk_connections": connections, "bulk_connections_far": connections}
    async with End(**settings) as dialler, EchoEnd(**settings) as acceptor:
        await listening(acceptor)
        road = StallingRoad(acceptor.contact)
        server = await asyncio.start_server(road.serve, "127.0.0.1", 0)
        try:
            at = Address(*server.sockets[0].getsockname())
            link = await dialler.link(Contact(acceptor.contact.peer, at))
            link.open(b"hello", ended=True)
            await dialler.event(StreamData)
            yield road, dialler, link, acceptor.links()[0]
        finally:
            road.close()
            server.close()


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize("up", [True, False])
async def test_a_connection_that_alone_swallows_all_is_left(connections: int, up: bool):
    async with stalling_link(connections) as (road, dialler, link, back):
        source, target = (link, back) if up else (back, link)
        await transfer(source, target, bytes(1000))
        while len(link._channels._channels) < connections:
            await transfer(source, target, b"more")
        data = random.Random(1).randbytes(16_000_000)
        room = bytearray(len(data))
        came = target.stats.bulk_received_bytes

        road.stalled = 1  # the first bulk connection
        arrival = target.expect(memoryview(room))
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(
                source.send_bulk(arrival.transfer, memoryview(data), 1), arrival.wait()
            )

        assert road.swallowed
        assert room == data
        assert target.stats.bulk_received_bytes - came == len(data), "no chunk came twice"
        assert dialler.links() == (link,)
        assert road.connections > 1 + connections, "another took its place"
