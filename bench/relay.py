"""How many bytes a second a relay passes on, over TCP and over WebSocket, and what they cost it.

    python bench/relay.py [--seconds 5] [--circuits 1] [--rate MB_S] [--json FILE]

A relay runs in a process of its own, without a limit of rate; two more processes are the ends of
circuits through it, and send plain bytes over them, so that encryption costs nothing here. All
three share the processor. So beside the rate there is what the relay alone would carry if it had a
core to itself: the bytes, by the processor time that it took.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Callable

from results import command_line, write_json
from workers import Worker, obey

from p2pswarm.base.errors import SwarmError
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.base import BulkPipe, Connection
from p2pswarm.net.os.event_loop import new_loop
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.os.web_socket import WebUpgrade
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.reach.relay.circuit_net import CircuitNet
from p2pswarm.reach.relay.relay import Relay, RelayRates
from p2pswarm.reach.relay.reservations_io import RelayKeeper

LOOPBACK = Address("127.0.0.1", 0)
PIECE_BYTES = 1024 * 1024
MB = 1e6
WARM_UP_S = 0.5


class Sink:
    """Takes all that comes: a BulkMachine."""

    def __init__(self) -> None:
        self.nbytes = 0
        self._memory = memoryview(bytearray(PIECE_BYTES))

    def expects_bytes(self) -> bool:
        """Whether bytes may come."""
        return True

    def next_in(self) -> memoryview:
        """The memory for them: always the same."""
        return self._memory

    def on_fill(self) -> None:
        """A piece has come."""
        self.nbytes += PIECE_BYTES

    def next_out(self, now_s: float) -> None:
        """Nothing to send."""
        del now_s

    def on_write(self) -> None:
        """Nothing is sent here."""

    def on_loss(self, error: SwarmError) -> None:
        """The connection has ended, as it must at the end."""
        del error

    def on_release(self) -> None:
        """Nothing is held."""


class Source(Sink):
    """Sends without end: a BulkMachine."""

    def next_out(self, now_s: float) -> memoryview:  # type: ignore[override]
        """The same piece again."""
        del now_s
        return self._memory


# the processes


async def relay_process(rate_mb_s: float) -> None:
    """A relay."""
    rates = None
    if rate_mb_s:
        rates = RelayRates(total_bytes_per_s=rate_mb_s * MB, pair_bytes_per_s=rate_mb_s * MB)
    async with (
        Endpoint(Identity.generate(), SocketNet(), TransportConfig(), os.urandom) as endpoint,
        LinkRpc(endpoint) as rpc,
        Relay(endpoint, rpc, os.urandom, None, rates),
        WebUpgrade() as upgrade,
    ):
        at = await endpoint.listen(LOOPBACK)
        web = await endpoint.listen(LOOPBACK, upgrade)

        async def addresses() -> dict[str, str]:
            return {"tcp": str(at), "web": f"ws://{web}"}

        async def used_s() -> float:
            return time.process_time()

        await obey({"addresses": addresses, "used_s": used_s})


@contextlib.asynccontextmanager
async def reachable(
    relay: Address, accept: Callable[[Connection], None] | None = None
) -> AsyncIterator[tuple[CircuitNet, PeerId]]:
    """A node that is reachable through the relay; `accept`: takes circuits instead of it."""
    async with WebNet(SocketNet()) as web:
        net = CircuitNet(web)
        async with (
            Endpoint(Identity.generate(), net, TransportConfig(), os.urandom) as endpoint,
            LinkRpc(endpoint) as rpc,
            RelayKeeper(endpoint, rpc, net) as keeper,
        ):
            if accept is not None:
                endpoint.accept = accept  # type: ignore[method-assign]
            link = await endpoint.link(Contact(None, relay))
            keeper.offer([link.contact])
            await keeper.reachable()
            yield net, endpoint.peer_id


async def target_process(relay: Address) -> None:
    """Takes what circuits bring."""
    sinks: list[Sink] = []
    pipes: list[BulkPipe] = []

    def accept(connection: Connection) -> None:
        sinks.append(Sink())
        pipes.append(connection.become_bulk(sinks[-1]))

    async with reachable(relay, accept) as (_, us):

        async def peer() -> str:
            return str(us)

        async def taken() -> int:
            return sum(sink.nbytes for sink in sinks)

        await obey({"peer": peer, "taken": taken})


async def dialler_process(relay: Address, target: PeerId, circuits: int) -> None:
    """Sends over circuits until stdin ends."""
    async with WebNet(SocketNet()) as web:
        net = CircuitNet(web)
        pipes = []
        for _ in range(circuits):
            connection = await net.dial(relay.through(target))
            pipes.append(connection.become_bulk(Source()))
            pipes[-1].wake()
        await obey({})
        for pipe in pipes:
            pipe.close()


# the measurements


def process(role: str, *arguments: object) -> Worker:
    """One of the processes."""
    return Worker([sys.executable, __file__, "--be", role, *map(str, arguments)])


def measured(way: str, options: argparse.Namespace) -> dict[str, object]:
    """The rate over TCP (`tcp`) or WebSocket (`web`), and by the relay's processor time."""
    with process("relay", "--rate", options.rate) as relay:
        at = relay.do("addresses")[way]
        with process("target", "--at", at) as target:
            circuits = ["--target", target.do("peer"), "--circuits", options.circuits]
            with process("dialler", "--at", at, *circuits):
                time.sleep(WARM_UP_S)
                began, bytes_0, used_0 = time.perf_counter(), target.do("taken"), relay.do("used_s")
                time.sleep(options.seconds)
                nbytes, used_s = target.do("taken") - bytes_0, relay.do("used_s") - used_0
                took_s = time.perf_counter() - began
    return row(way, options.circuits, nbytes, took_s, used_s)


def row(way: str, circuits: int, nbytes: float, took_s: float, used_s: float) -> dict[str, object]:
    return {
        "way": way,
        "circuits": circuits,
        "mb_s": round(nbytes / took_s / MB, 1),
        "mb_s_by_one_core": round(nbytes / used_s / MB, 1) if used_s else None,
    }


def be(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    work = {
        "relay": lambda: relay_process(options.rate),
        "target": lambda: target_process(options.at),
        "dialler": lambda: dialler_process(options.at, options.target, options.circuits),
    }
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work[options.be]())


def main() -> None:
    """Measure, print, write."""
    parser = command_line(__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--circuits", type=int, default=1)
    parser.add_argument("--rate", type=float, default=0.0, help="limit of the relay, MB/s; 0: none")
    parser.add_argument("--be", choices=["relay", "target", "dialler"], help=argparse.SUPPRESS)
    parser.add_argument("--at", type=Address.parse, help=argparse.SUPPRESS)
    parser.add_argument("--target", type=PeerId.parse, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.be:
        be(options)
        return
    rows = [measured(way, options) for way in ("tcp", "web")]
    for each in rows:
        print(f"{each['way']:>10}  {each['mb_s']:>8} MB/s", end="")
        print(f"  {each['mb_s_by_one_core']} MB/s by one core" if each["mb_s_by_one_core"] else "")
    write_json(options.json, rows)


if __name__ == "__main__":
    main()
