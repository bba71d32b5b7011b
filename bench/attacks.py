"""The attacks of bench/attack.py: each strikes one node for some seconds and says what it did.

An attack runs in a process of its own, so that it takes no time of the honest peer's event loop:

    python bench/attacks.py NAME HOST:PORT SECONDS [HONEST_HOST]

It prints `ready` when it is at its full size and then, at its end, a line of JSON. All of
127.0.0.0/8 is this host's on Linux, so that one process can be hundreds of hosts.
"""

import asyncio
import contextlib
import json
import os
import random
import resource
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

from p2pswarm.base.errors import PeerError
from p2pswarm.base.ids import Address
from p2pswarm.discovery.dht.messages import Get, Record, Store
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import Role
from p2pswarm.net.crypto.records import PREFIX_BYTES, REKEY_FLAG, Opener, Sealer
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.link_request import JOIN, JOIN_ANSWER_BYTES, BulkJoin
from p2pswarm.net.link.control_records import LABEL
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.link.stream_scheduler import MESSAGE_COST_BYTES
from p2pswarm.net.rpc.framing import GOOD, Kind, pack_opening
from p2pswarm.net.wire import frames
from p2pswarm.net.wire.message import Message, Size, decode, encode, message
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta

Figures = dict[str, Any]
HOT_KEY = b"hot key".ljust(32, b".")
SUBKEYS = 50_000
RECORDS_PER_ID = 1024
TTL_MS = 3_000_000
TIB = 1 << 40
BOMB_BYTES = 1 << 30
PLANES_ZSTD = 5
OWN_HOST = "127.9.9.9"
NETWORK = TransportConfig().network_id
HELLO = Hello(Suite.AES_GCM, NETWORK)
SILENT_S = 4.0  # a link says something so often, and is not taken for dead
READ_BYTES = 65_536


@message(9911)
@dataclass(frozen=True, slots=True)
class Announce(Message):
    """Tensors that a peer would like to send."""

    metas: Annotated[tuple[TensorMeta, ...], Size(256)]


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
        self._keys = side.result.keys
        self.exporter = side.result.exporter
        self._sealer = Sealer(self._keys.send_key, self._keys.suite, LABEL, time.monotonic())
        self._opener = Opener(self._keys.receive_key, self._keys.suite, LABEL)
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
            card = Card.make(identity, 0, (), flags=CardFlags.CLIENT).data
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
        join = BulkJoin.make(JOIN, self.exporter, number, os.urandom(16))
        try:
            await loop.sock_sendall(sock, join.raw)
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


class Strike:
    """Where an attack goes, and how long."""

    def __init__(self, at: Address, seconds: float, honest: str) -> None:
        self.at = at
        self.honest = honest
        self.seconds = seconds
        self._until_s = float("inf")

    def ready(self) -> float:
        """Say that the attack has its full size; returns when it is to end."""
        print("ready", flush=True)
        self._until_s = asyncio.get_running_loop().time() + self.seconds
        return self._until_s

    async def hold(self) -> None:
        """Do nothing until the end."""
        until_s = self.ready()
        await asyncio.sleep(until_s - asyncio.get_running_loop().time())


# handshakes


async def slow_handshakes(strike: Strike, sources: list[str]) -> Figures:
    """2,000 connections that send a byte of their hello each second; who is hung up on returns."""
    hung_up = 0
    until_s = strike.ready()
    loop = asyncio.get_running_loop()

    async def crawl(number: int) -> None:
        nonlocal hung_up
        while loop.time() < until_s:
            with contextlib.suppress(OSError):
                sock = await connected(strike.at, sources[number % len(sources)])
                with contextlib.closing(sock):
                    for byte in HELLO.raw:
                        await loop.sock_sendall(sock, bytes([byte]))
                        await asyncio.sleep(1.0)
            hung_up += 1
            await asyncio.sleep(0.5)

    async with asyncio.TaskGroup() as tasks:
        crawling = [tasks.create_task(crawl(number)) for number in range(2000)]
        await asyncio.sleep(max(until_s - loop.time(), 0))
        for each in crawling:
            each.cancel()
    return {"hung up": hung_up}


async def connections(
    strike: Strike, sources: list[str], per_s: float, says: Callable[[], bytes]
) -> Figures:
    """Connections that say one thing, or nothing, and stay."""
    crowd, rate, until_s = Crowd(3000), Rate(per_s), strike.ready()
    loop = asyncio.get_running_loop()
    refused = 0

    async def once(number: int) -> None:
        nonlocal refused
        try:
            async with asyncio.timeout(5.0):
                sock = await connected(strike.at, sources[number % len(sources)])
                if said := says():
                    await loop.sock_sendall(sock, said)
        except (OSError, TimeoutError):
            refused += 1
        else:
            crowd.add(sock)

    begun_s = loop.time()
    await rate.strike(once, until_s)
    crowd.close()
    return {"per second": round(rate.done / (loop.time() - begun_s)), "refused": refused}


def client_hello() -> bytes:
    """The first bytes of a TLS handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        ssl.create_default_context().wrap_bio(
            incoming, outgoing, server_hostname="x"
        ).do_handshake()
    return outgoing.read()


UPGRADE = (
    b"GET /p2pswarm HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)
HALF_OPEN = 5000
COMES_BACK_S = 5.0


async def half_open(strike: Strike, sources: list[str], words: list[bytes]) -> Figures:
    """5,000 connections that begin in one of several ways, and go on in none; each comes back.

    Each reads what it is answered, and says nothing more.
    """
    hung_up = refused = 0
    until_s = strike.ready()
    loop = asyncio.get_running_loop()

    async def hold(number: int) -> None:
        nonlocal hung_up, refused
        await asyncio.sleep(COMES_BACK_S * number / HALF_OPEN)
        while True:
            try:
                sock = await connected(strike.at, sources[number % len(sources)])
                with contextlib.closing(sock):
                    await loop.sock_sendall(sock, words[number % len(words)])
                    while await loop.sock_recv(sock, READ_BYTES):
                        pass
                hung_up += 1
            except OSError:
                refused += 1
            await asyncio.sleep(COMES_BACK_S)

    async with asyncio.TaskGroup() as tasks:
        holding = [tasks.create_task(hold(number)) for number in range(HALF_OPEN)]
        await asyncio.sleep(max(until_s - loop.time(), 0))
        for each in holding:
            each.cancel()
    return {"hung up": hung_up, "refused or reset": refused}


def half_open_tls(strike: Strike, sources: list[str]) -> Awaitable[Figures]:
    """Nothing, the beginning of a first message, or a whole one: then silence."""
    hello = client_hello()
    return half_open(strike, sources, [b"", hello[:60], hello])


def silent_web(strike: Strike, sources: list[str]) -> Awaitable[Figures]:
    """WebSockets that say nothing."""
    return half_open(strike, sources, [UPGRADE])


def garbage() -> bytes:
    """What is no handshake, or begins like one."""
    start = random.choice([b"", b"PSW2", b"PSW2\1", HELLO.raw, JOIN.magic, b"GET / HTTP/1.1\r\n"])
    return start + os.urandom(random.choice([1, 20, 60, 5000]))


# links


async def idle_links(strike: Strike, identities: int) -> Figures:
    """1,024 links from one address that do nothing."""
    keys = [Identity.generate() for _ in range(identities)]
    sources = [OWN_HOST] * 1024
    async with hostile_links(strike.at, sources, [keys[i % identities] for i in range(1024)]) as on:
        await strike.hold()
        return {"links": len(on)}


async def unread_replies(strike: Strike) -> Figures:
    """1,000 links of which each asks for 48 KiB again and again, and reads nothing."""
    stuffed = Identity.generate()
    key = os.urandom(32)
    async with hostile_links(strike.at, [OWN_HOST], [stuffed]) as (link,):
        await store(link, [(key, bytes([i]) * 8, bytes(4000)) for i in range(12)])
    ask = pack_opening(Kind.UNARY, None, encode(Get(key, b"", False, 0)))
    sources = hosts(1000)
    keys = [Identity.generate() for _ in sources]
    async with hostile_links(strike.at, sources, keys, receive_bytes=4096) as links:
        asked = 0
        until_s = strike.ready()
        while (now_s := asyncio.get_running_loop().time()) < until_s:
            for link in links:
                if not link.lost:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.2):
                            await link.send(link.opening(ask) + link.opening(ask))
                    asked += 2
            await asyncio.sleep(max(0.0, now_s + 0.5 - asyncio.get_running_loop().time()))
        return {"links": len(links), "asked": asked, "lost": sum(link.lost for link in links)}


async def unasked_bulk(strike: Strike) -> Figures:
    """100 links with 16 bulk connections each, of which nobody has asked for one."""
    sources = hosts(100)
    keys = [Identity.generate() for _ in sources]
    joined = []
    async with hostile_links(strike.at, sources, keys) as links:
        for link in links:
            for number in range(16):
                with contextlib.suppress(OSError, PeerError):
                    joined.append(await link.join_bulk(strike.at, sources[0], number))
        await strike.hold()
        for sock in joined:
            sock.close()
        return {"links": len(links), "bulk connections": len(joined)}


# tensors: the node is a process that receives them, `bench/attack.py --receive`


async def announced_tensors(strike: Strike) -> Figures:
    """1,000 streams, each with 1 TiB announced."""
    whole = TensorMeta(Dtype.UINT8, (TIB,), 1, TIB)
    half = TensorMeta(Dtype.FLOAT32, (1 << 19, 1 << 18), 1, TIB // 2)
    return await announce(strike, [(whole,), (half, half)], 1000)


async def zstd_bombs(strike: Strike) -> Figures:
    """1 KB of zstd for 1 GB: announced as what it claims, and as 4 KB with and without a lie."""
    honest, lying = bomb(BOMB_BYTES), bomb(4096)
    kinds = [inline(BOMB_BYTES, honest), inline(4096, honest), inline(4096, lying)]
    return await announce(strike, [(each,) for each in kinds], 300)


def bomb(claimed_bytes: int) -> bytes:
    """A zstd frame (RFC 8878) of 1 KB whose blocks unpack to 32 MB, the most that a frame can."""
    window = bytes([0x58])  # 2 MiB
    head = bytes.fromhex("28b52ffd") + bytes([0x80]) + window + claimed_bytes.to_bytes(4, "little")
    block = ((128 << 10) << 3 | 1 << 1).to_bytes(3, "little") + b"z"  # 128 KiB of one byte
    last = ((128 << 10) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"z"
    return head + 252 * block + last


def inline(raw_bytes: int, data: bytes) -> TensorMeta:
    """An announcement of `raw_bytes` that carries its bytes."""
    return TensorMeta(Dtype.UINT8, (raw_bytes,), PLANES_ZSTD, len(data), data)


async def announce(strike: Strike, metas: list[tuple[TensorMeta, ...]], times: int) -> Figures:
    """Announce on streams of one link; counts the replies and the time of each."""
    requests = [pack_opening(Kind.STREAM, None, encode(Announce(each))) for each in metas]
    refused, took_s = 0, []
    async with hostile_links(strike.at, [OWN_HOST], [Identity.generate()]) as (link,):
        strike.ready()
        for number in range(times):
            begun_s = time.monotonic()
            await link.send(link.opening(requests[number % len(requests)], ended=False))
            reply = await link.reply()
            took_s.append(time.monotonic() - begun_s)
            if reply[:1] == GOOD:  # the bytes came with it: what is wrong is seen later
                reply = await link.reply()
            refused += reply[:1] != GOOD
    return {"announced": times, "refused": refused, "median ms": round(1e3 * median(took_s), 2)}


# the store


async def store(link: HostileLink, values: list[tuple[bytes, bytes, bytes]]) -> list[int]:
    """Store (key, subkey, value) unsigned, as who owns the link; the verdicts.

    A record from its own publisher is kept before anybody checks its signature.
    """
    expires_ms = int(time.time() * 1000) + TTL_MS
    verdicts: list[int] = []
    size = max(1, min(128, 40_000 // (200 + len(values[0][2]))))
    for begin in range(0, len(values), size):
        records = tuple(
            Record(key, subkey, value, 1, expires_ms, link.identity.public_key, bytes(64))
            for key, subkey, value in values[begin : begin + size]
        )
        request = pack_opening(Kind.UNARY, None, encode(Store(records)))
        await link.send(link.opening(request))
        reply = await link.reply()
        answer = decode(reply[1:])
        verdicts += list(getattr(answer, "verdicts", b"\xff"))
    return verdicts


async def fill(
    strike: Strike, ids: int, records: int, value_bytes: int, hot: bytes | None = None
) -> Figures:
    """Each of `ids` stores `records`, under keys of their own or all under one."""
    kept = offered = 0
    value = os.urandom(value_bytes)
    keys = [Identity.generate() for _ in range(ids)]
    sources = hosts(ids)
    print("ready", flush=True)  # filling is the attack, and holding what was filled
    end_s = asyncio.get_running_loop().time() + strike.seconds
    for begin in range(0, ids, 50):
        part = slice(begin, begin + 50)
        async with hostile_links(strike.at, sources[part], keys[part]) as links:
            for link in links:
                rows = [
                    (hot or os.urandom(32), os.urandom(8) if hot else b"", value)
                    for _ in range(records)
                ]
                with contextlib.suppress(OSError, PeerError):
                    verdicts = await store(link, rows)
                    kept += verdicts.count(0)
                    offered += len(verdicts)
    if hot is not None:
        await read_hot_key(strike, end_s)
    await asyncio.sleep(max(0.0, end_s - asyncio.get_running_loop().time()))
    return {"offered": offered, "kept": kept}


async def read_hot_key(strike: Strike, until_s: float) -> None:
    """Read one page of the hot key after another."""
    async with hostile_links(strike.at, [OWN_HOST], [Identity.generate()]) as (link,):
        while asyncio.get_running_loop().time() < until_s:
            asked = Get(HOT_KEY, os.urandom(8), False, 0)
            await link.send(link.opening(pack_opening(Kind.UNARY, None, encode(asked))))
            await link.reply()
            await asyncio.sleep(0.01)


ATTACKS: dict[str, Callable[[Strike], Awaitable[Figures]]] = {
    "slow-one": lambda s: slow_handshakes(s, [OWN_HOST]),
    "slow-500": lambda s: slow_handshakes(s, hosts(500)),
    "empty-100": lambda s: connections(s, hosts(100), 600, bytes),
    "empty-own": lambda s: connections(s, [s.honest], 200, bytes),
    "first-messages": lambda s: connections(s, hosts(500), 4000, first_message),
    "garbage": lambda s: connections(s, hosts(100), 300, garbage),
    "tls-one": lambda s: half_open_tls(s, [OWN_HOST]),
    "tls-500": lambda s: half_open_tls(s, hosts(500)),
    "web-one": lambda s: silent_web(s, [OWN_HOST]),
    "web-500": lambda s: silent_web(s, hosts(500)),
    "idle-one": lambda s: idle_links(s, 1),
    "idle-1024": lambda s: idle_links(s, 1024),
    "unread": unread_replies,
    "bulk": unasked_bulk,
    "tensors": announced_tensors,
    "bombs": zstd_bombs,
    "store-links": lambda s: fill(s, 400, 1, 0),
    "store-empty": lambda s: fill(s, 400, RECORDS_PER_ID, 0),
    "store-large": lambda s: fill(s, 60, 500, 4096),
    "store-66": lambda s: fill(s, 66, RECORDS_PER_ID, 850),
    "hot-key": lambda s: fill(s, -(-SUBKEYS // RECORDS_PER_ID), RECORDS_PER_ID, 0, HOT_KEY),
}


if __name__ == "__main__":
    raise_limits()
    name, at, seconds, *honest = sys.argv[1:]
    one = Strike(Address.parse(at), float(seconds), (honest or [OWN_HOST])[0])
    print(json.dumps(asyncio.run(ATTACKS[name](one))), flush=True)
