"""Endpoints on loopback, whose events a test can await."""

import asyncio
import os

from p2pswarm.crypto.identity import Identity
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.sockets import SocketNet
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.endpoint import Endpoint, Link
from p2pswarm.transport.events import LinkEnded, StreamEvent, StreamOpened

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0  # a hang fails the test; nothing here takes a second


class End(Endpoint):
    """An endpoint that notes its events."""

    def __init__(self, identity: Identity | None = None, **settings):
        config = TransportConfig(**settings)
        super().__init__(identity or Identity.generate(), SocketNet(), config, os.urandom)
        self.seen: list[StreamEvent] = []
        self._news = asyncio.Event()
        self.on_event = self.note

    def note(self, link: Link, event: StreamEvent):
        del link
        self.seen.append(event)
        self._news.set()

    async def event(self, kind: type[StreamEvent]) -> StreamEvent:
        """The first event of a kind, now or later; each is given once."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                for at, event in enumerate(self.seen):
                    if isinstance(event, kind):
                        del self.seen[at]
                        return event
                self._news.clear()
                await self._news.wait()

    async def loss(self) -> Exception:
        """The error of the next link to end."""
        event = await self.event(LinkEnded)
        assert isinstance(event, LinkEnded)
        return event.error


class EchoEnd(End):
    """Answers every stream with what opened it."""

    def note(self, link: Link, event: StreamEvent):
        super().note(link, event)
        if isinstance(event, StreamOpened) and event.ended:
            link.send(event.stream, event.data, ended=True)


async def listening(end: Endpoint) -> Endpoint:
    await end.listen(LOOPBACK)
    return end


def contact_of(end: Endpoint, peer: PeerId | None = None) -> Contact:
    return Contact(peer, end.contact.address)


async def transfer(source: Link, target: Link, data: bytes, priority: int = 1) -> bytes:
    """Send `data` from one side to the other; returns what arrived."""
    room = bytearray(len(data))
    arrival = target.expect(memoryview(room))
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        group.create_task(source.send_bulk(arrival.transfer, memoryview(data), priority))
        group.create_task(arrival.wait())
    return bytes(room)
