"""How many processor instructions a small call takes, both sides together: no load changes that.

    python bench/call_instructions.py [--kinds function coroutine stream] [--calls 1280]
                                      [--tree FOLDER ...]

Needs valgrind, which counts; a minute for each kind on a quiet machine. Two endpoints in one
process, over loopback and asyncio's own loop, so that nothing waits or spins. What starting takes
is counted apart and subtracted. `--tree`: compare the package in these folders, for example a
checkout of another commit. Times are measured by bench/rpc_latency.py.
"""

import argparse
import asyncio
import gc
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rpc_latency import Echo, EchoLater

from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc

KINDS = ("function", "coroutine", "in-flight", "stream")
WARM_UP = 320  # calls that both runs make
TIMEOUT_S = 1000.0
FOREVER_S = 1e5  # between pings: they are not counted
LIMIT_S = 1200.0
ROOT = Path(__file__).resolve().parent.parent


def endpoint() -> Endpoint:
    """One side, patient enough for a processor that is fifty times slower."""
    config = TransportConfig(idle_ping_s=FOREVER_S, dead_after_s=3 * FOREVER_S, handshake_s=60.0)
    return Endpoint(Identity.generate(), SocketNet(), config, os.urandom)


async def make_calls(kind: str, calls: int) -> None:
    """What is counted."""
    gc.disable()
    async with endpoint() as here, endpoint() as there, LinkRpc(here) as rpc, LinkRpc(there) as far:
        await there.listen(Address("127.0.0.1", 0))

        async def later(_peer: PeerId, request: EchoLater) -> EchoLater:
            return request

        async def echo(stream: Stream, _opening: Echo) -> None:
            while (got := await stream.receive()) is not None:
                await stream.send(got)

        far.serve_unary(Echo, lambda _peer, request: request)
        far.serve_unary(EchoLater, later)
        far.serve_stream(Echo, echo)
        request = (Echo if kind == "function" else EchoLater)(bytes(64))

        async def one_after_another(count: int) -> None:
            for _ in range(count):
                await rpc.call(far.contact, request, TIMEOUT_S)

        if kind == "stream":
            async with rpc.open_stream(far.contact, Echo(b""), None) as stream:
                for _ in range(calls):
                    await stream.send(Echo(bytes(64)))
                    await stream.receive()
        elif kind == "in-flight":
            async with asyncio.TaskGroup() as group:
                for _ in range(64):
                    group.create_task(one_after_another(calls // 64))
        else:
            await one_after_another(calls)


def counted(tree: Path, kind: str, calls: int) -> int:
    """The instructions of a process that makes so many calls."""
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [
                *("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out"),
                *(sys.executable, __file__, "--count", kind, str(calls)),
            ],
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(tree)},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
    found = re.search(r"Collected : (\d+)", run.stderr)
    if run.returncode or found is None:
        raise SystemExit(f"call_instructions: {run.stderr.strip()[-500:]}")
    return int(found[1])


def main() -> int:
    """Count, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--calls", type=int, default=1280)
    parser.add_argument("--tree", type=Path, nargs="+", default=[ROOT])
    parser.add_argument("--count", nargs=2, metavar=("KIND", "CALLS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.count:
        asyncio.run(make_calls(args.count[0], int(args.count[1])))
        return 0
    for kind in args.kinds:
        for tree in args.tree:
            began = counted(tree, kind, WARM_UP)
            each = (counted(tree, kind, WARM_UP + args.calls) - began) / args.calls
            print(f"{kind:10} {each:10,.0f} instructions a call   {tree}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
