"""What the loss of a link's connection costs: the time until a call is answered, and memory.

    python bench/path_loss.py [--cuts 50] [--way-ms 0] [--json FILE]

Two endpoints in one process, and a relay of bytes between them that is cut again and again: each
time under a call, and under a tensor of 16 MB. `--way-ms` delays all bytes. `call_ms` is the time
from the cut to the answer of a call that began with it. `tensor_ms` is what a tensor takes that is
cut in its middle, beside one that is not. `kept_bytes` is what both sides keep to send it again.

Run it when nothing else runs. The price of a record that is kept is in bench/rpc_latency.py.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from pathlib import Path

from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.link.events import LinkEnded, StreamData, StreamEvent, StreamOpened
from p2pswarm.net.os.event_loop import new_loop
from p2pswarm.net.os.sockets import SocketNet

LOOPBACK = Address("127.0.0.1", 0)
TENSOR_BYTES = 16_000_000
LIMIT_S = 60.0


class Relay:
    """Carries bytes between two ports, and breaks."""

    def __init__(self, to: Address, way_s: float) -> None:
        self._to = to
        self._way_s = way_s
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> Address:
        """Listen; returns where."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return Address(*server.sockets[0].getsockname())

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(self._to.host, self._to.port)
        self._writers += [writer, back]
        for source, target in ((reader, back), (there, writer)):
            task = asyncio.create_task(self._carry(source, target))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        try:
            while data := await reader.read(1 << 18):
                if self._way_s:
                    loop.call_later(self._way_s, writer.write, data)
                else:
                    writer.write(data)
                    await writer.drain()
        except OSError:
            return  # it was cut
        writer.close()


class Caller:
    """Endpoint events as futures."""

    def __init__(self) -> None:
        self.answers: dict[int, asyncio.Future[bytes]] = {}

    def note(self, _link: Link, event: StreamEvent) -> None:
        """Settle the call that was answered."""
        if isinstance(event, StreamData):
            self.answers.pop(event.stream).set_result(event.data)
        elif isinstance(event, LinkEnded):
            sys.exit(f"the link was lost: {event.error}")

    async def call(self, link: Link) -> None:
        """Call, and wait for the answer."""
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.answers[link.open(b"hello", ended=True)] = answer
        await answer


def echo(link: Link, event: StreamEvent) -> None:
    if isinstance(event, StreamOpened):
        link.send(event.stream, event.data, ended=True)


async def tensor(source: Link, target: Link) -> float:
    """Seconds that a tensor takes."""
    data, room = memoryview(os.urandom(TENSOR_BYTES)), bytearray(TENSOR_BYTES)
    arrival = target.expect(memoryview(room))
    begin_s = asyncio.get_running_loop().time()
    async with asyncio.TaskGroup() as group:
        group.create_task(source.send_bulk(arrival.transfer, data, 1))
        group.create_task(arrival.wait())
    took_s = asyncio.get_running_loop().time() - begin_s
    if room != data:
        sys.exit("the tensor is not what was sent")
    return took_s


async def measure(cuts: int, way_s: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    net, caller = SocketNet(), Caller()
    here = Endpoint(Identity.generate(), net, TransportConfig(), os.urandom)
    there = Endpoint(Identity.generate(), net, TransportConfig(), os.urandom)
    here.on_event, there.on_event = caller.note, echo
    async with asyncio.timeout(LIMIT_S), here, there:
        relay = Relay(await there.listen(LOOPBACK), way_s)
        link = await here.link(Contact(there.peer_id, await relay.start()))
        await caller.call(link)
        back = there.links()[0]
        plain_s = statistics.median([await tensor(link, back) for _ in range(5)])
        calls_s, tensors_s, kept = [], [], 0
        for _ in range(cuts):
            begin_s = loop.time()
            relay.cut()
            await caller.call(link)
            calls_s.append(loop.time() - begin_s)
            kept = max(kept, sum(each.records.unacked.held_bytes for each in (link, back)))
        for _ in range(max(1, cuts // 5)):
            loop.call_later(plain_s / 2, relay.cut)
            tensors_s.append(await tensor(link, back))
        here.on_event = echo
    calls_s.sort()
    return {
        "call_ms": 1e3 * statistics.median(calls_s),
        "call_ms_p95": 1e3 * calls_s[int(0.95 * (len(calls_s) - 1))],
        "tensor_ms": 1e3 * statistics.median(tensors_s),
        "tensor_ms_uncut": 1e3 * plain_s,
        "kept_bytes": kept,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cuts", type=int, default=50)
    parser.add_argument("--way-ms", type=float, default=0.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        result = runner.run(measure(args.cuts, args.way_ms / 1e3))
    for name, value in result.items():
        print(f"{name:16} {value:12.1f}")
    if args.json:
        args.json.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
