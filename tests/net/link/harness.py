"""Endpoints on loopback, whose events a test can await; link machines without any network."""

import asyncio
import os
from contextlib import asynccontextmanager

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.cards.card import Card
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.events import LinkEnded, StreamData, StreamEvent, StreamOpened
from p2pswarm.net.link.link import LinkMachine
from p2pswarm.net.link.mux import Mux
from p2pswarm.net.link.session import Session
from p2pswarm.net.os.sockets import SocketNet

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0  # a hang fails the test; nothing here takes a second


class End(Endpoint):
    """An endpoint that notes its events."""

    def __init__(self, identity: Identity | None = None, net: SocketNet | None = None, **settings):
        config = TransportConfig(**settings)
        super().__init__(identity or Identity.generate(), net or SocketNet(), config, os.urandom)
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


CARD = Card.make(Identity.generate(b"peer"), 1, [Address("192.0.2.1", 4001)])
TO_ACCEPTOR, TO_DIALLER = b"a" * 32, b"d" * 32  # keys


KEYS = {
    True: Keys(TO_ACCEPTOR, TO_DIALLER, Suite.AES_GCM),
    False: Keys(TO_DIALLER, TO_ACCEPTOR, Suite.AES_GCM),
}


def machine(
    *, dialled: bool, now_s: float = 0.0, keys: Keys | None = None, **settings
) -> LinkMachine:
    """One side of a link that has not begun yet."""
    address = Address("192.0.2.1", 4001)
    session = Session(
        peer=PeerId(b"p" * 32),
        contact=Contact(PeerId(b"p" * 32), address),
        remote=address,
        dialled=dialled,
        incarnation=b"i" * 16,
        keys=keys or KEYS[dialled],
        exporter=b"e" * 32,
        card=CARD,
        introduced=b"",
    )
    return LinkMachine(session, TransportConfig(**settings), now_s)


class LinkPair:
    """Both sides of a link that is up, and the wire between them; bytes move when told."""

    def __init__(self, now_s: float = 0.0, **settings):
        self.dialler = machine(dialled=True, now_s=now_s, **settings)
        self.acceptor = machine(dialled=False, now_s=now_s, **settings)
        for side in (self.dialler, self.acceptor):
            side.start(now_s)
            side.drain()
        self.settle(now_s)

    def settle(self, now_s: float = 0.0) -> None:
        """Move records both ways until there are none."""
        while self.carry(self.dialler, self.acceptor, now_s) + self.carry(
            self.acceptor, self.dialler, now_s
        ):
            pass

    def carry(self, source: LinkMachine, target: LinkMachine, now_s: float) -> int:
        """Move every record from one side to the other; returns how many."""
        count = 0
        while record := source.data_to_send(now_s):
            target.on_data(record, now_s)
            count += 1
        return count


class MuxPair:
    """Two muxes and the wires between them; bytes move when told."""

    def __init__(self):
        self.dialler, self.acceptor = Mux(dialled=True), Mux(dialled=False)

    def carry(self, source: Mux, target: Mux) -> int:
        """Move every record from `source`; returns how many."""
        count = 0
        while record := source.data_to_send():
            target.on_record(record)
            count += 1
        return count

    def settle(self):
        """Move records both ways until there are none."""
        while self.carry(self.dialler, self.acceptor) + self.carry(self.acceptor, self.dialler):
            pass


@asynccontextmanager
async def linked(net: SocketNet | None = None, **settings):
    """Two ends and the link between them, seen from both: dialler first. `net`: the dialler's."""
    async with End(net=net, **settings) as dialler, EchoEnd(**settings) as acceptor:
        await listening(acceptor)
        link = await dialler.link(acceptor.contact)
        await call(dialler, acceptor)
        yield dialler, acceptor, link, acceptor.links()[0]


async def call(source: End, target: Endpoint, data: bytes = b"hello") -> bytes:
    link = await source.link(target.contact)
    link.open(data, ended=True)
    reply = await source.event(StreamData)
    return reply.data


@asynccontextmanager
async def stranger(greeting: bytes, *, hang_up: bool):
    """A server that is no peer: says `greeting`, then hangs up or stays silent."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(greeting)
        await reader.read(1)
        if not hang_up:
            await gone.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Contact(None, Address(*server.sockets[0].getsockname()))
    finally:
        gone.set()
        server.close()


async def raw_connection(end: Endpoint):
    at = end.contact.address
    return await asyncio.open_connection(at.host, at.port)


@asynccontextmanager
async def road(to: Contact):
    """A relay on the way that can stop to carry."""
    frozen = asyncio.Event()
    pumps: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        while not frozen.is_set() and (data := await reader.read(65536)):
            if not frozen.is_set():
                writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        there, back = await asyncio.open_connection(to.address.host, to.address.port)
        writers.extend([writer, back])
        pumps.append(asyncio.create_task(carry(reader, back)))
        pumps.append(asyncio.create_task(carry(there, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Contact(to.peer, Address(*server.sockets[0].getsockname())), frozen
    finally:
        for task in pumps:
            task.cancel()
        for writer in writers:
            writer.close()
        server.close()


class NotedNet:
    """Another network, whose dials are noted."""

    def __init__(self, net) -> None:
        self._net = net
        self.dialled: list[Address] = []

    async def listen(self, at):
        return await self._net.listen(at)

    def lock(self):
        return self._net.lock()

    async def dial(self, to, from_port=0):
        self.dialled.append(to)
        return await self._net.dial(to, from_port)
