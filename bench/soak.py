"""What a node keeps of peers that are killed, stopped and come back: nothing, or so much.

    python bench/soak.py [--minutes 5] [--cycles 1000] [--peers 8] [--seed 1] [--json FILE]

Two nodes stay, in this process, so that their tasks and tables can be counted. `--peers` others,
each a process, join through them, call, store records, look for them and push bytes over bulk
connections both ways. At drawn moments one of them is killed with -9 or stopped with SIGSTOP for a
while, and comes back: half of the killed ones with their identity, half as somebody new. At the
end all are killed; when what may linger has had its time, what the two nodes still hold is
compared with what they held before the first peer came. It ends after `--minutes` or `--cycles`,
whichever is first. The exit status is 1 if anything is left.
"""

import argparse
import asyncio
import gc
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results import command_line, write_json

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Contact, PeerId
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.wire.message import Message, message
from p2pswarm.node.stack.stack import NodeStack, open_stack
from p2pswarm.settings.node_config import NodeConfig

MIB = 1 << 20
PUSHED_BYTES = 1 * MIB
PAUSE_S = 0.2  # a peer's, between two pieces of work
STOPPED_S = (0.5, 20.0)  # longer than a link is believed in silence, at most
BETWEEN_S = 0.3  # two strokes, in the mean
RECORD_TTL_S = 20.0
LINGER_S = 45.0  # silence of 15 s, a table's two strikes, a record's time to live
SAMPLE_S = 1.0
SLOPE_MAX_BYTES = 20 * 1024  # a cycle: what the allocator wastes in a short run is more than that


@message(9921)
@dataclass(frozen=True, slots=True)
class PushBytes(Message):
    """Opens a stream on which bytes come to the peer that serves it, then go back."""

    size: int


@message(9922)
@dataclass(frozen=True, slots=True)
class Transfer(Message):
    """The number under which memory was granted."""

    transfer: int


@dataclass(frozen=True, slots=True)
class Held:
    """What the two nodes hold, in all."""

    tasks: int
    files: int
    sockets: int
    threads: int
    """Without the event loop's pool, which grows to its limit and stays."""
    links: int
    table_entries: int
    """Peers in the DHT's tables that are not the two nodes themselves."""
    records: int
    resident_bytes: int

    def left_over(self, before: "Held") -> dict[str, int]:
        """By kind, what is held now and was not before; memory is judged by its slope."""
        now, then = asdict(self), asdict(before)
        kinds = [kind for kind in now if kind != "resident_bytes"]
        return {kind: now[kind] - then[kind] for kind in kinds if now[kind] > then[kind]}


@dataclass(slots=True)
class Report:
    """The whole run."""

    seconds: float = 0.0
    kills: int = 0
    stops: int = 0
    calls: int = 0
    transfers: int = 0
    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    left_over: dict[str, int] = field(default_factory=dict)
    slope_bytes_per_cycle: float = 0.0
    complaints: list[str] = field(default_factory=list)

    def lines(self) -> str:
        """For people."""
        did = f"{self.kills} killed, {self.stops} stopped in {self.seconds:.0f} s"
        work = f"{self.calls} calls, {self.transfers} transfers of {PUSHED_BYTES // MIB} MiB"
        left = ", ".join(f"{n} {kind}" for kind, n in self.left_over.items()) or "nothing"
        slope = f"memory {self.slope_bytes_per_cycle / 1024:+.1f} KiB a cycle"
        rows = [
            f"{did}; {work}",
            f"left over: {left}; {slope}",
            f"before {self.before}",
            f"after  {self.after}",
        ]
        return "\n".join([*rows, *self.complaints[:5]])


async def take(stream: Stream, opening: PushBytes) -> None:
    """Grant memory, take the bytes, and send them back."""
    room = bytearray(min(opening.size, PUSHED_BYTES))
    arrival = stream.expect(memoryview(room))
    try:
        await stream.send(Transfer(arrival.transfer))
        await arrival.wait()
        told = await stream.receive()
        assert isinstance(told, Transfer)
        await stream.send_bulk(told.transfer, memoryview(room), Priority.STATE)
    finally:
        arrival.cancel()


async def push(node: NodeStack, to: Contact) -> None:
    """The other side of `take`."""
    room = bytearray(os.urandom(PUSHED_BYTES))
    async with node.rpc.open_stream(to, PushBytes(PUSHED_BYTES), 10.0) as stream:
        granted = await stream.receive()
        assert isinstance(granted, Transfer)
        await stream.send_bulk(granted.transfer, memoryview(room), Priority.TENSOR)
        arrival = stream.expect(memoryview(room))
        try:
            await stream.send(Transfer(arrival.transfer))
            await arrival.wait()
        finally:
            arrival.cancel()
        while await stream.receive() is not None:
            pass


def peer_process(seeds: tuple[str, ...], identity: bytes, seed: int) -> None:
    """A peer, until it is killed."""
    with suppress(KeyboardInterrupt):
        asyncio.run(_peer(seeds, Identity.from_bytes(identity), random.Random(seed)))


async def _peer(seeds: tuple[str, ...], identity: Identity, rng: random.Random) -> None:
    config = NodeConfig(role="bootstrap", listen="127.0.0.1:0", bootstrap=seeds)
    async with open_stack(config, identity) as node:
        node.rpc.serve_stream(PushBytes, take)
        while True:
            with suppress(SwarmError):
                await _work(node, rng)
            await asyncio.sleep(rng.uniform(0.0, 2 * PAUSE_S))


async def _work(node: NodeStack, rng: random.Random) -> None:
    """One of the things that nodes do."""
    near = await node.dht.closest(rng.randbytes(32))
    key = bytes([rng.randrange(50)]) * 32
    match rng.randrange(4):
        case 0:
            await node.dht.put(key, b"", rng.randbytes(300), RECORD_TTL_S, republish=False)
        case 1:
            await node.dht.get(key)
        case _ if near:
            await push(node, rng.choice(near))


class Soak:
    """The nodes that stay, and the peers that do not."""

    def __init__(self, nodes: list[NodeStack], options: argparse.Namespace) -> None:
        self._nodes = nodes
        self._options = options
        self._rng = random.Random(options.seed)
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(
            ["p2pswarm.node.stack.stack", "p2pswarm.discovery.dht.node"]
        )
        self._peers: list[Any] = []
        self._identities: list[bytes] = []
        self._waking: set[asyncio.Task[None]] = set()
        self.report = Report()
        self._memory: list[tuple[int, int]] = []
        for node in nodes:
            node.rpc.serve_stream(PushBytes, self._taken)

    async def _taken(self, stream: Stream, opening: PushBytes) -> None:
        await take(stream, opening)
        self.report.transfers += 1

    def held(self) -> Held:
        """What the nodes hold now."""
        gc.collect()
        files = [_target(path) for path in Path("/proc/self/fd").iterdir()]
        own = {node.identity.peer_id for node in self._nodes}
        known: set[PeerId] = set()
        for node in self._nodes:
            found = node.dht.table.nearest(node.identity.peer_id.raw, 10_000)
            known |= {each.contact.peer for each in found if each.contact.peer is not None}
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return Held(
            tasks=len(asyncio.all_tasks()),
            files=len(files),
            sockets=sum(name.startswith("socket:") for name in files),
            threads=sum(not t.name.startswith("asyncio_") for t in threading.enumerate()),
            links=sum(len(node.endpoint._open_links) for node in self._nodes),  # noqa: SLF001
            table_entries=len(known - own),
            records=sum(len(node.dht.store) for node in self._nodes),
            resident_bytes=pages * os.sysconf("SC_PAGE_SIZE"),
        )

    async def run(self) -> Report:
        """Strike until the time or the cycles are over, then count."""
        report, rng, options = self.report, self._rng, self._options
        await self._warm_up()
        before = self.held()
        begun_s = time.monotonic()
        for number in range(options.peers):
            self._identities.append(rng.randbytes(32))
            self._peers.append(self._started(number))
        sampling = asyncio.create_task(self._sample())
        calling = asyncio.create_task(self._call())
        while (
            time.monotonic() - begun_s < 60 * options.minutes
            and report.kills + report.stops < options.cycles
        ):
            await asyncio.sleep(rng.expovariate(1 / BETWEEN_S))
            await self._strike(rng.randrange(options.peers))
        for task in (calling, sampling, *self._waking):
            task.cancel()
        await asyncio.wait([calling, sampling, *self._waking])
        self._waking.clear()
        for number in range(options.peers):
            await self._kill(number)
        self._peers.clear()
        report.seconds = time.monotonic() - begun_s
        await self._settled(before)
        after = self.held()
        report.before, report.after = asdict(before), asdict(after)
        report.left_over = after.left_over(before)
        report.slope_bytes_per_cycle = slope(self._memory[len(self._memory) // 2 :])
        return report

    async def _warm_up(self) -> None:
        """What stays for good is there before anything is counted: bulk, and the fork server."""
        one, other = self._nodes
        async with asyncio.TaskGroup() as tasks:
            for source, to in (one, other), (other, one), (one, other), (other, one):
                tasks.create_task(push(source, to.endpoint.contact))
        idle = self._context.Process(target=int)
        idle.start()
        await asyncio.to_thread(idle.join)
        idle.close()
        await self._round()

    async def _settled(self, before: Held) -> None:
        """Give what may linger its time, and the nodes reason to ask peers that are gone."""
        end_s = time.monotonic() + LINGER_S
        while time.monotonic() < end_s and self.held().left_over(before):
            await self._round()
            await asyncio.sleep(2.0)

    async def _round(self) -> None:
        """Each node looks for a key: it asks those whom it knows."""
        for node in self._nodes:
            with suppress(SwarmError):
                await node.dht.closest(self._rng.randbytes(32))

    async def _call(self) -> None:
        """The nodes that stay use the others, too."""
        while True:
            node = self._rng.choice(self._nodes)
            with suppress(SwarmError):
                await _work(node, self._rng)
                self.report.calls += 1
            await asyncio.sleep(PAUSE_S)

    async def _sample(self) -> None:
        while True:
            cycles = self.report.kills + self.report.stops
            self._memory.append((cycles, self.held().resident_bytes))
            await asyncio.sleep(SAMPLE_S)

    async def _strike(self, number: int) -> None:
        rng, peer = self._rng, self._peers[number]
        if peer.exitcode is not None:
            raise RuntimeError(f"peer {number} ended by itself with {peer.exitcode}: see above")
        if rng.random() < 0.2:
            self.report.stops += 1
            os.kill(peer.pid, signal.SIGSTOP)
            waking = asyncio.create_task(self._wake(peer, rng.uniform(*STOPPED_S)))
            self._waking.add(waking)
            waking.add_done_callback(self._waking.discard)
            return
        self.report.kills += 1
        await self._kill(number)
        if rng.random() < 0.5:
            self._identities[number] = rng.randbytes(32)
        self._peers[number] = self._started(number)

    async def _wake(self, peer: Any, after_s: float) -> None:
        await asyncio.sleep(after_s)
        with suppress(ValueError):  # it was killed meanwhile
            if peer.exitcode is None:
                os.kill(peer.pid, signal.SIGCONT)

    async def _kill(self, number: int) -> None:
        peer = self._peers[number]
        peer.kill()
        await asyncio.to_thread(peer.join)
        peer.close()

    def _started(self, number: int) -> Any:
        seeds = tuple(str(node.endpoint.contact.address) for node in self._nodes)
        arguments = (seeds, self._identities[number], self._rng.randrange(1 << 30))
        peer = self._context.Process(target=peer_process, args=arguments, daemon=True)
        peer.start()
        return peer


def _target(path: Path) -> str:
    with suppress(OSError):
        return str(path.readlink())
    return ""


def slope(samples: list[tuple[int, int]]) -> float:
    """Bytes a cycle, by least squares."""
    if len({cycle for cycle, _ in samples}) < 2:
        return 0.0
    mean_x = sum(x for x, _ in samples) / len(samples)
    mean_y = sum(y for _, y in samples) / len(samples)
    wide = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / wide


@asynccontextmanager
async def nodes_that_stay() -> AsyncIterator[list[NodeStack]]:
    """Two nodes of one swarm."""
    async with AsyncExitStack() as stack:
        first = NodeConfig(role="bootstrap", listen="127.0.0.1:0")
        one = await stack.enter_async_context(open_stack(first, Identity.generate()))
        seeds = (str(one.endpoint.contact.address),)
        second = NodeConfig(role="bootstrap", listen="127.0.0.1:0", bootstrap=seeds)
        yield [one, await stack.enter_async_context(open_stack(second, Identity.generate()))]


async def soak(options: argparse.Namespace) -> Report:
    """The whole run."""
    complaints: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(str(context)))
    async with nodes_that_stay() as nodes:
        report = await Soak(nodes, options).run()
    report.complaints = complaints
    return report


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--peers", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    report = asyncio.run(soak(options))
    print(report.lines())
    write_json(options.json, asdict(report))
    grows = report.slope_bytes_per_cycle > SLOPE_MAX_BYTES
    return 1 if report.left_over or report.complaints or grows else 0


if __name__ == "__main__":
    sys.exit(main())
