"""The attacks of bench/attack.py: each strikes one node for some seconds and says what it did.

An attack runs in a process of its own, so that it takes no time of the honest peer's event loop:

    python bench/attacks.py NAME HOST:PORT SECONDS [HONEST_HOST]

It prints `ready` when it is at its full size and then, at its end, a line of JSON.
"""

import asyncio
import contextlib
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from attack_peers import (  # noqa: E402 - found by the line above
    HELLO,
    Crowd,
    HostileLink,
    Rate,
    connected,
    first_message,
    hostile_links,
    hosts,
    raise_limits,
)

from p2pswarm.base.errors import PeerError  # noqa: E402
from p2pswarm.base.ids import Address  # noqa: E402
from p2pswarm.discovery.dht.messages import Get, Record, Store  # noqa: E402
from p2pswarm.net.crypto.identity import Identity  # noqa: E402
from p2pswarm.net.endpoint.link_request import JOIN  # noqa: E402
from p2pswarm.net.rpc.framing import (  # noqa: E402
    GOOD,
    Kind,
    pack_opening,
)
from p2pswarm.net.wire.message import decode, encode  # noqa: E402
from p2pswarm.tensors.codecs.meta import Dtype, TensorMeta  # noqa: E402

Figures = dict[str, Any]
HOT_KEY = b"hot key".ljust(32, b".")
SUBKEYS = 50_000
RECORDS_PER_ID = 1024
TTL_MS = 3_000_000
TIB = 1 << 40
BOMB_BYTES = 1 << 30
PLANES_ZSTD = 5
OWN_HOST = "127.9.9.9"


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


# tensors: the node is a process with the tensors' receiver, see `bench/attack.py --receiver`


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
    from attack_honest import Announce  # noqa: PLC0415 - only this attack needs it

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
