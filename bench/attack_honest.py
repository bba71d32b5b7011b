"""The honest peer of bench/attack.py: dials from afar, calls, and records that should survive.

Run as a program it is the receiver of the attacks with tensors: a process with the whole stack,
whose one handler takes announcements (`Announce`) into the usual budget.
"""

import asyncio
import contextlib
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Self

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from p2pswarm.base.errors import SwarmError  # noqa: E402
from p2pswarm.base.ids import Address, Contact  # noqa: E402
from p2pswarm.discovery.dht.messages import Get, Got, Ping, Pong, Store, Stored  # noqa: E402
from p2pswarm.discovery.dht.records import sign  # noqa: E402
from p2pswarm.net.config import TransportConfig  # noqa: E402
from p2pswarm.net.crypto.identity import Identity  # noqa: E402 - found by the line above
from p2pswarm.net.endpoint.endpoint import Endpoint  # noqa: E402
from p2pswarm.net.os.sockets import SocketNet  # noqa: E402
from p2pswarm.net.rpc.link_rpc import LinkRpc  # noqa: E402
from p2pswarm.net.wire.message import Message, Size, message  # noqa: E402
from p2pswarm.tensors.codecs.meta import TensorMeta  # noqa: E402

HONEST_HOST = "127.90.9.9"
HONEST_HOSTS = [f"127.{network}.9.9" for network in range(1, 91)]
"""Newcomers each come from a network of their own, where the attack is not from theirs."""
CALL_EVERY_S = 0.01
TIMEOUT_S = 10.0
RECORDS = 200
PUBLISHERS = 20


@message(9911)
@dataclass(frozen=True, slots=True)
class Announce(Message):
    """Tensors that a peer would like to send."""

    metas: Annotated[tuple[TensorMeta, ...], Size(256)]


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What a process holds."""

    resident_bytes: int
    threads: int
    files: int

    def most(self, other: "ProcessFigures") -> "ProcessFigures":
        """The larger of each."""
        return ProcessFigures(
            max(self.resident_bytes, other.resident_bytes),
            max(self.threads, other.threads),
            max(self.files, other.files),
        )


def process_memory(pid: int) -> ProcessFigures:
    """The figures of a process that lives."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    resident = int(status["VmRSS"].split()[0]) * 1024
    files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return ProcessFigures(resident, int(status["Threads"]), files)


def processor_s(pid: int) -> float:
    """The processor time that a process has had since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def distant(at: Address, rtt_s: float, sources: Sequence[str]) -> AsyncIterator[Address]:
    """An address on this host from which `at` is `rtt_s` away; dials come from `sources` in turn.

    The connection to `at` is made when a dialler's acknowledgement and first bytes would arrive:
    one and a half round trips after its dial.
    """
    carrying: set[asyncio.Task[None]] = set()
    turns = itertools.cycle(sources)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        carrying.add(task)
        try:
            await asyncio.sleep(1.5 * rtt_s)
            source = (next(turns), 0)
            there, back = await asyncio.open_connection(at.host, at.port, local_addr=source)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_carry(reader, back, rtt_s / 2, 0.0))
                tasks.create_task(_carry(there, writer, rtt_s / 2, rtt_s / 2))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            carrying.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Address(*server.sockets[0].getsockname()[:2])
    finally:
        server.close()
        for task in list(carrying):
            task.cancel()


async def _carry(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float, first_s: float
) -> None:
    """Carry bytes, each `delay_s` after it came, but the first after `first_s`."""
    loop = asyncio.get_running_loop()
    late: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def read() -> None:
        after_s = first_s
        while data := await reader.read(65_536):
            late.put_nowait((loop.time() + after_s, data))
            after_s = delay_s
        late.put_nowait((loop.time() + delay_s, b""))

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(read())
        while True:
            at_s, data = await late.get()
            await asyncio.sleep(max(0.0, at_s - loop.time()))
            if not data:
                writer.close()
                return
            writer.write(data)
            await writer.drain()


@contextlib.asynccontextmanager
async def honest_rpc(identity: Identity | None = None) -> AsyncIterator[LinkRpc]:
    """A peer that cannot be dialled."""
    endpoint = Endpoint(identity or Identity.generate(), SocketNet(), TransportConfig(), os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        yield rpc


class Honest:
    """Dials, a link that stays, and calls on it all the time."""

    def __init__(self, far: Address, near: Address) -> None:
        """`far`: where dials go, over the delaying proxy; `near`: where calls go."""
        self._far, self._near = far, near
        self._longest_s = 0.0
        self._stack = contextlib.AsyncExitStack()

    async def __aenter__(self) -> Self:
        rpc = await self._stack.enter_async_context(honest_rpc())
        calling = asyncio.create_task(self._call_all_the_time(rpc))
        self._stack.callback(calling.cancel)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def dials(self, count: int, within_s: float) -> list[float | None]:
        """Dial so many times, each a new peer, evenly spread; the times, None for a failure."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        self._longest_s = 0.0
        async with asyncio.TaskGroup() as tasks:
            dialling = []
            for number in range(count):
                await asyncio.sleep(max(0.0, begun_s + number * within_s / count - loop.time()))
                dialling.append(tasks.create_task(self._dial()))
        return [each.result() for each in dialling]

    async def _dial(self) -> float | None:
        begun_s = time.monotonic()
        async with honest_rpc() as rpc:
            try:
                await rpc.call(Contact(None, self._far), Ping(), timeout_s=TIMEOUT_S)
            except SwarmError as error:
                print(f"    honest dial: {error!r}", file=sys.stderr)
                return None
        return time.monotonic() - begun_s

    def longest_pause(self) -> float:
        """The longest time that a call took since `dials` began."""
        return self._longest_s

    async def _call_all_the_time(self, rpc: LinkRpc) -> None:
        while True:
            begun_s = time.monotonic()
            try:
                await rpc.call(Contact(None, self._near), Ping(), timeout_s=TIMEOUT_S)
            except SwarmError as error:
                print(f"    honest call: {error!r}", file=sys.stderr)
            self._longest_s = max(self._longest_s, time.monotonic() - begun_s)
            await asyncio.sleep(CALL_EVERY_S)


@dataclass(frozen=True, slots=True)
class HonestRecords:
    """Records that were stored before an attack."""

    keys: tuple[bytes, ...]

    async def survivors(self, at: Address) -> float:
        """The share of them that the node still has."""
        found = 0
        async with honest_rpc() as rpc:
            for key in self.keys:
                asked = Get(key, b"", False, 0)
                got = await rpc.call(Contact(None, at), asked, timeout_s=TIMEOUT_S)
                found += isinstance(got, Got) and len(got.records) == 1
        return found / len(self.keys)


async def storing(at: Address) -> HonestRecords:
    """Store records of several honest publishers."""
    keys = []
    expires_ms = int(1000 * time.time()) + 3_000_000
    for _ in range(PUBLISHERS):
        identity = Identity.generate()
        own = [os.urandom(32) for _ in range(RECORDS // PUBLISHERS)]
        records = tuple(sign(identity, key, b"", os.urandom(200), 1, expires_ms) for key in own)
        async with honest_rpc(identity) as rpc:
            told = await rpc.call(Contact(None, at), Store(records), timeout_s=TIMEOUT_S)
        assert isinstance(told, Stored)
        assert not any(told.verdicts), told.verdicts
        keys += own
    return HonestRecords(tuple(keys))


async def receive_tensors() -> None:
    """Be the node of the attacks with tensors."""
    import torch  # noqa: PLC0415 - only the receiver needs it

    from p2pswarm.net.rpc.base import Stream  # noqa: PLC0415
    from p2pswarm.tensors.budget import Budget  # noqa: PLC0415
    from p2pswarm.tensors.transfer import TensorTransfer  # noqa: PLC0415

    torch.set_num_threads(1)
    tensors = TensorTransfer(Budget())

    async def take(stream: Stream, opening: Announce) -> None:
        async with tensors.accept(stream, opening.metas) as coming:
            await stream.send(coming.grant)
            await coming.tensors()

    endpoint = Endpoint(Identity.generate(), SocketNet(), TransportConfig(), os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        rpc.serve_stream(Announce, take)
        rpc.serve_unary(Ping, lambda _peer, _request: Pong())
        bound = await endpoint.listen(Address("127.0.0.1", 0))
        print(bound, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(receive_tensors())
