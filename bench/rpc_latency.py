"""What a small call costs between two processes over loopback: latency and throughput.

    python bench/rpc_latency.py [--calls 5000] [--bytes 64] [--in-flight 64] [--uvloop]
                                [--json FILE]

The whole stack runs in both processes: typed messages, rpc, mux, encrypted
records, TCP. Three servers are measured: a plain function, a coroutine, and an
stream that echoes. `least` tells what a call takes where nobody else wants the
processor.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from subprocess import PIPE
from typing import Annotated, Any

from results import command_line, write_json

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.event_loop import new_loop
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.base import Rpc, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, Size, message

TIMEOUT_S = 10.0
WARM_UP = 300  # calls before the clock starts: sockets, caches, the specialising interpreter


@message(9901)
@dataclass(frozen=True, slots=True)
class Echo(Message):
    """Asks for itself, at once."""

    data: Annotated[bytes, Size(32_768)]


@message(9902)
@dataclass(frozen=True, slots=True)
class EchoLater(Message):
    """Asks for itself, from a task."""

    data: Annotated[bytes, Size(32_768)]


@asynccontextmanager
async def peer() -> AsyncIterator[LinkRpc]:
    config = TransportConfig()
    endpoint = Endpoint(Identity.generate(), SocketNet(), config, os.urandom)
    async with endpoint, LinkRpc(endpoint) as rpc:
        await endpoint.listen(Address("127.0.0.1", 0))
        yield rpc


async def serve() -> None:
    async def later(_peer: PeerId, request: EchoLater) -> EchoLater:
        return request

    async def echo_stream(stream: Stream, _opening: Echo) -> None:
        while (got := await stream.receive()) is not None:
            await stream.send(got)

    async with peer() as rpc:
        rpc.serve_unary(Echo, lambda _peer, request: request)
        rpc.serve_unary(EchoLater, later)
        rpc.serve_stream(Echo, echo_stream)
        print(rpc.contact.peer, rpc.contact.address, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


async def latencies_s(call: Callable[[], Coroutine[Any, Any, Any]], calls: int) -> list[float]:
    taken_s = []
    for number in range(WARM_UP + calls):
        begin_s = time.perf_counter()
        await call()
        if number >= WARM_UP:
            taken_s.append(time.perf_counter() - begin_s)
    return sorted(taken_s)


async def calls_per_s(
    call: Callable[[], Coroutine[Any, Any, Any]], calls: int, in_flight: int
) -> float:
    async def one_after_another() -> None:
        for _ in range(calls // in_flight):
            await call()

    begin_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(in_flight):
            group.create_task(one_after_another())
    return calls // in_flight * in_flight / (time.perf_counter() - begin_s)


async def measure(rpc: Rpc, server: Contact, args: argparse.Namespace) -> dict[str, Any]:
    data = os.urandom(args.bytes)

    async def by_call(request: Message) -> None:
        await rpc.call(server, request, TIMEOUT_S)

    rows = []
    for name, request in (("function", Echo(data)), ("coroutine", EchoLater(data))):
        taken_s = await latencies_s(lambda m=request: by_call(m), args.calls)
        rate = await calls_per_s(lambda m=request: by_call(m), args.calls, args.in_flight)
        rows.append(row(name, taken_s, rate))
    async with rpc.open_stream(server, Echo(b""), None) as stream:

        async def by_stream() -> None:
            await stream.send(Echo(data))
            await stream.receive()

        rows.append(row("stream", await latencies_s(by_stream, args.calls), None))
    return {"rows": rows}


def row(name: str, taken_s: list[float], rate: float | None) -> dict[str, Any]:
    return {
        "server": name,
        "least_us": taken_s[0] * 1e6,
        "p50_us": taken_s[len(taken_s) // 2] * 1e6,
        "p99_us": taken_s[len(taken_s) * 99 // 100] * 1e6,
        "calls_per_s": rate,
    }


async def client(server: Contact, args: argparse.Namespace) -> dict[str, Any]:
    async with peer() as rpc:
        return await measure(rpc, server, args)


@contextmanager
def server_process(args: argparse.Namespace) -> Iterator[Contact]:
    command = [sys.executable, __file__, "--serve", *(["--uvloop"] if args.uvloop else [])]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as server:
        assert server.stdout is not None
        peer_id, address = server.stdout.readline().split()
        yield Contact(PeerId.parse(peer_id), Address.parse(address))
        server.communicate()


def main() -> int:
    parser = command_line(__doc__)
    parser.add_argument("--calls", type=int, default=5000)
    parser.add_argument("--bytes", type=int, default=64)
    parser.add_argument("--in-flight", type=int, default=64)
    parser.add_argument("--uvloop", action="store_true", help="run both processes on uvloop")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    factory: Callable[[], asyncio.AbstractEventLoop] = new_loop
    if args.uvloop:
        import uvloop  # noqa: PLC0415  an extra

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        if args.serve:
            runner.run(serve())
            return 0
        with server_process(args) as server:
            result = runner.run(client(server, args))
    at_once = f"{args.in_flight} in flight"
    print(f"{'served by':12}{'least us':>10}{'p50 us':>10}{'p99 us':>10}{at_once:>16}")
    for each in result["rows"]:
        rate = "" if each["calls_per_s"] is None else f"{each['calls_per_s']:,.0f}/s"
        print(
            f"{each['server']:12}{each['least_us']:10.0f}{each['p50_us']:10.0f}{each['p99_us']:10.0f}{rate:>16}"
        )
    summary = {"bytes": args.bytes, "in_flight": args.in_flight, "rows": result["rows"]}
    write_json(args.json, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
