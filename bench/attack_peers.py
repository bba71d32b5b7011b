"""What an attacker is made of: connections from many addresses, and links that obey no rule.

Used by bench/attack.py. All of 127.0.0.0/8 is this host's on Linux, so that one process can be
hundreds of hosts.
"""

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from p2pswarm.base.errors import PeerError
from p2pswarm.base.ids import Address
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.crypto.records import PREFIX_BYTES, REKEY_FLAG, Opener, Sealer
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.link_request import JOIN_ANSWER_BYTES, BulkJoin
from p2pswarm.net.link.control_records import LABEL
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.link.stream_scheduler import MESSAGE_COST_BYTES
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.message import encode

NETWORK = TransportConfig().network_id
HELLO = Hello(Suite.AES_GCM, NETWORK)
SILENT_S = 4.0  # a link says something so often, and is not taken for dead
READ_BYTES = 65_536


def raise_limits() -> None:
    """As many files as this process may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def hosts(count: int, first: int = 100) -> list[str]:
    """Addresses of this host, in up to 100 networks of /16."""
    return [f"127.{first + i % 100}.{i // 100 % 200}.{1 + i // 20_000}" for i in range(count)]


async def connected(at: Address, source: str, *, receive_bytes: int = 0) -> socket.socket:
    """A TCP connection from an address of this host; OSError if there is none."""
    family = socket.AF_INET6 if ":" in at.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if receive_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        if family == socket.AF_INET:
            sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, (at.host, at.port))
    except BaseException:
        sock.close()
        raise
    return sock


async def some(sock: socket.socket, most: int) -> bytes:
    """The next bytes; ConnectionResetError if there are none."""
    if data := await asyncio.get_running_loop().sock_recv(sock, most):
        return data
    raise ConnectionResetError("hung up")


def first_message() -> bytes:
    """A hello and a first message that cost the other side its cryptography."""
    return HELLO.raw + (32).to_bytes(2) + os.urandom(32)


@dataclass(slots=True)
class Rate:
    """Does something so many times a second, as well as the machine can."""

    per_s: float
    done: int = 0

    async def strike(self, once: Callable[[int], Awaitable[None]], until_s: float) -> None:
        """Call `once` with a rising number until the clock of the loop shows `until_s`."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        async with asyncio.TaskGroup() as tasks:
            while (now_s := loop.time()) < until_s:
                due = int((now_s - begun_s) * self.per_s) + 1
                for _ in range(min(due - self.done, 200)):
                    tasks.create_task(once(self.done))
                    self.done += 1
                await asyncio.sleep(0.005)


class Crowd:
    """Sockets that stay open; the oldest are closed when there are too many."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: list[socket.socket] = []

    def add(self, sock: socket.socket) -> None:
        """Keep one open."""
        self._open.append(sock)
        if len(self._open) > self._most:
            for each in self._open[: self._most // 4]:
                each.close()
            del self._open[: self._most // 4]

    def close(self) -> None:
        """Close all."""
        for each in self._open:
            each.close()


class HostileLink:
    """A link whose owner writes whatever frames it likes, and reads only when it likes."""

    def __init__(self, sock: socket.socket, side: Handshake, identity: Identity) -> None:
        self._sock = sock
        self.identity = identity
        self._keys = side.keys
        self.exporter = side.exporter
        self._sealer = Sealer(side.keys.send_key, side.keys.suite, LABEL, time.monotonic())
        self._opener = Opener(side.keys.receive_key, side.keys.suite, LABEL)
        self._read = bytearray()
        self._next = 1
        self.lost = False

    @classmethod
    async def dial(
        cls, at: Address, source: str, identity: Identity, incarnation: bytes, **options: int
    ) -> "HostileLink":
        """Do the handshake; OSError or PeerError if the other side refuses."""
        sock = await connected(at, source, **options)
        loop = asyncio.get_running_loop()
        try:
            card = Card.make(identity, 0, (), flags=CardFlags.CLIENT).encode()
            payload = encode(Introduction(incarnation, 0, at.host, card))
            static = StaticKey(identity, os.urandom(32))
            side = Handshake(Role.INITIATOR, HELLO, static, os.urandom(32), payload)
            while True:
                for ready in side.data_to_send():
                    await loop.sock_sendall(sock, ready)
                if side.done:
                    return cls(sock, side, identity)
                side.receive(await some(sock, READ_BYTES))
        except BaseException:
            sock.close()
            raise

    async def send(self, *framed: bytes) -> None:
        """Put frames on the wire, as one record each; a lost link is noted."""
        loop = asyncio.get_running_loop()
        try:
            for each in framed:
                record = self._sealer.seal(each, time.monotonic())
                await loop.sock_sendall(self._sock, record)
        except OSError:
            self.lost = True

    def keep(self) -> None:
        """Say so little that the link is not taken for dead."""
        record = self._sealer.seal(frames.encode(frames.PING, 0, bytes(8)), time.monotonic())
        try:
            self.lost = self.lost or self._sock.send(record) != len(record)
        except OSError:
            self.lost = True

    def opening(self, request: bytes, *, ended: bool = True) -> bytes:
        """A frame that opens a stream; a stream has a number of its own."""
        number, self._next = self._next, self._next + 2
        return frames.encode(frames.OPEN, number, request, frames.END if ended else 0)

    async def receive(self) -> list[frames.Frame]:
        """The frames of the next record; an empty list if the link is over."""
        loop = asyncio.get_running_loop()
        while True:
            length = int.from_bytes(self._read[:PREFIX_BYTES]) & (REKEY_FLAG - 1)
            end = PREFIX_BYTES + length
            if len(self._read) >= max(end, PREFIX_BYTES + 1):
                prefix, body = bytes(self._read[:PREFIX_BYTES]), bytes(self._read[PREFIX_BYTES:end])
                del self._read[:end]
                return frames.decode(self._opener.open(body, prefix))
            try:
                data = await loop.sock_recv(self._sock, READ_BYTES)
            except OSError:
                data = b""
            if not data:
                self.lost = True
                return []
            self._read += data

    async def reply(self) -> bytes:
        """The payload of the next message on any stream, for which credit is given back."""
        while found := await self.receive():
            for kind, _, _, _, payload in found:
                if kind == frames.DATA:
                    cost = frames.NUMBER.pack(len(payload) + MESSAGE_COST_BYTES)
                    await self.send(frames.encode(frames.CREDIT, 0, cost))
                    return payload
        raise ConnectionResetError("the link is over")

    async def join_bulk(self, at: Address, source: str, number: int) -> socket.socket:
        """Join a bulk connection that nobody asked for."""
        sock = await connected(at, source)
        loop = asyncio.get_running_loop()
        join = BulkJoin.make(self.exporter, number, os.urandom(16))
        try:
            await loop.sock_sendall(sock, join.request.raw)
            answer = b""
            while len(answer) < JOIN_ANSWER_BYTES:
                answer += await some(sock, JOIN_ANSWER_BYTES - len(answer))
        except BaseException:
            sock.close()
            raise
        return sock

    def close(self) -> None:
        """Hang up."""
        self._sock.close()


@contextlib.asynccontextmanager
async def hostile_links(
    at: Address, sources: list[str], identities: list[Identity], **options: int
) -> AsyncIterator[list[HostileLink]]:
    """A link for each pair, dialled 50 at a time and kept alive; the refused ones are left out."""
    links: list[HostileLink] = []
    places = asyncio.Semaphore(50)
    incarnation = os.urandom(16)  # one process, as far as the other side can tell

    async def dial(source: str, identity: Identity) -> None:
        async with places:
            with contextlib.suppress(OSError, PeerError, TimeoutError):
                async with asyncio.timeout(10.0):
                    links.append(
                        await HostileLink.dial(at, source, identity, incarnation, **options)
                    )

    async def keep_all() -> None:
        while True:
            await asyncio.sleep(SILENT_S)
            for link in links:
                link.keep()

    try:
        async with asyncio.TaskGroup() as tasks:
            for source, identity in zip(sources, identities, strict=True):
                tasks.create_task(dial(source, identity))
        keeping = asyncio.create_task(keep_all())
        try:
            yield links
        finally:
            keeping.cancel()
            await asyncio.wait([keeping])
    finally:
        for link in links:
            link.close()
