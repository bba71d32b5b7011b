"""The p2pswarm side of peers.py and averaging.py: the roles that peers_hivemind.py has too."""

import asyncio
import hashlib
import os
import random
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from workers import Verb, obey

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.discovery.dht.config import DhtConfig
from p2pswarm.discovery.dht.node import Dht
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.os.event_loop import run
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.rpc.base import Priority, Stream
from p2pswarm.net.rpc.link_rpc import LinkRpc
from p2pswarm.net.wire.message import Message, message

CALL_S = 30.0
EXPIRES_AFTER_S = 600.0
RUN = b"r" * 16
HERE = Address("127.0.0.1", 0)
GRID_SPREAD = 16.0  # of whole numbers: some 6 bits each, as sums on a grid have (docs/codecs.md)


@message(60001)
@dataclass(frozen=True, slots=True)
class Echo(Message):
    """Say the same."""

    payload: bytes


@message(60002)
@dataclass(frozen=True, slots=True)
class Taken(Message):
    """The tensor is a tensor again."""

    size_bytes: int


@asynccontextmanager
async def listening(identity: Identity, at: Address = HERE) -> AsyncIterator[LinkRpc]:
    """A node's network, as `node/__main__.py` makes it."""
    async with Endpoint(identity, SocketNet(), TransportConfig(), os.urandom) as endpoint:
        await endpoint.listen(at)
        async with LinkRpc(endpoint) as rpc:
            yield rpc


def contact(server: list[str]) -> Contact:
    """What `address` told."""
    return Contact(PeerId.parse(server[0]), Address.parse(server[1]))


async def link(server: list[str] | None) -> None:
    """One end of the stream and the small calls; `server` is the other's id and address."""
    import torch  # noqa: PLC0415 - the DHT's peers do without

    from p2pswarm.tensors.budget import Budget  # noqa: PLC0415
    from p2pswarm.tensors.codecs.meta import Grant, TensorMeta  # noqa: PLC0415
    from p2pswarm.tensors.transfer import TensorTransfer  # noqa: PLC0415

    torch.set_num_threads(1)
    tensors = TensorTransfer(Budget())

    def on_echo(_: PeerId, request: Echo) -> Echo:
        return request

    async def on_push(stream: Stream, meta: TensorMeta) -> None:
        async with tensors.accept(stream, [meta]) as incoming:
            await stream.send(incoming.grant)
            got = await incoming.tensors()
            await stream.send(Taken(got[0].nbytes))

    async with listening(Identity.generate()) as rpc:
        rpc.serve_unary(Echo, on_echo)
        rpc.serve_stream(TensorMeta, on_push)

        async def stream(bytes_: int, times: int) -> list[float]:
            """Seconds for each of the tensors, until the other side has it as a tensor."""
            x = torch.randn(bytes_ // 4)
            taken_s = []
            for _ in range(times):
                begin_s = time.perf_counter()
                encoded = await tensors.pack([x], "raw")
                async with rpc.open_stream(contact(server), encoded[0].meta, CALL_S) as stream:
                    grant = await stream.receive()
                    assert isinstance(grant, Grant)
                    await tensors.send(stream, grant, encoded, Priority.TENSOR)
                    assert await stream.receive() == Taken(x.nbytes)
                taken_s.append(time.perf_counter() - begin_s)
            return taken_s

        async def echo(bytes_: int, times: int) -> list[float]:
            """Seconds for each call."""
            to, request = contact(server), Echo(b"x" * bytes_)
            taken_s = []
            for _ in range(times):
                begin_s = time.perf_counter()
                await rpc.call(to, request, CALL_S)
                taken_s.append(time.perf_counter() - begin_s)
            return taken_s

        await obey({"address": address_of(rpc), "stream": stream, "echo": echo})


@asynccontextmanager
async def joined(seed: list[str] | None) -> AsyncIterator[tuple[LinkRpc, Dht]]:
    """A node that listens and is in the DHT."""
    identity = Identity.generate()
    async with listening(identity) as rpc:
        rng = random.Random(os.urandom(16))
        async with Dht(rpc, identity, DhtConfig(), rng, time.time) as dht:
            if seed:
                await dht.bootstrap([contact(seed)])
            yield rpc, dht


async def dht(seed: list[str] | None) -> None:
    """One peer of the DHT."""
    async with joined(seed) as (rpc, node):
        upkeep = asyncio.create_task(node.maintain())
        address = address_of(rpc)

        async def store(keys: list[str], value: str) -> list[float]:
            taken_s = []
            for key in map(digest, keys):
                begin_s = time.perf_counter()
                assert await node.put(key, b"", value.encode(), EXPIRES_AFTER_S)
                taken_s.append(time.perf_counter() - begin_s)
            return taken_s

        async def get(keys: list[str], value: str) -> list[float]:
            """Seconds for each key that the peer does not hold itself."""
            taken_s = []
            for key in (k for k in map(digest, keys) if k not in node.store):
                begin_s = time.perf_counter()
                found = await node.get(key)
                taken_s.append(time.perf_counter() - begin_s)
                assert found[b""].value == value.encode()
            return taken_s

        async def start() -> float:
            """Seconds for one more peer to be there."""
            begin_s = time.perf_counter()
            async with joined(await address()):
                return time.perf_counter() - begin_s

        await obey({"address": address, "store": store, "get": get, "start": start})
        upkeep.cancel()


async def averaging(number: int, mb: int, codec: str = "raw", host: str = HERE.host) -> None:
    """A member of averaging.py: a real link to every other, and its averaging."""
    import torch  # noqa: PLC0415 - the DHT's peers do without

    from p2pswarm.models.compute.torch_sums import GradientMemory, TorchSums  # noqa: PLC0415
    from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings  # noqa: PLC0415
    from p2pswarm.run.messages.step import Reduce, Shard  # noqa: PLC0415
    from p2pswarm.tensors.budget import Budget  # noqa: PLC0415
    from p2pswarm.tensors.codecs.self_test import use_kernels  # noqa: PLC0415
    from p2pswarm.tensors.transfer import TensorTransfer  # noqa: PLC0415

    torch.set_num_threads(1)
    use_kernels([codec])  # as a server does
    gradient = torch.randn(mb * 10**6 // 4, generator=torch.Generator().manual_seed(number))
    if codec == "int-grid":
        gradient = gradient.mul_(GRID_SPREAD).round_().add_(0.0)  # no negative zeros
    memory = GradientMemory(gradient)
    group: dict[bytes, Contact] = {}
    executor = ThreadPoolExecutor(1, "compute")

    async def compute(work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    at = replace(HERE, host=host)
    async with listening(Identity.generate(), at) as rpc, asyncio.TaskGroup() as tasks:
        settings = AveragingSettings(secret=os.urandom(32))
        averaging = Averaging(rpc, TensorTransfer(Budget()), compute, group.get, tasks, settings)
        rpc.serve_stream(Shard, averaging.shard)

        async def meet(members: list[list[str]]) -> None:
            for each in map(contact, members):
                group[each.peer.raw] = each

        async def prepare(number: int) -> None:
            """Do nothing: what every averaging needs is made when it is ordered."""

        async def average(number: int) -> dict[str, Any]:
            begun = time.monotonic()
            order = Reduce(RUN, number, 1, 1, b"", tuple(group), ())
            outcome = await averaging.average(order, TorchSums(gradient, codec, memory))
            return {"begun": begun, "ended": time.monotonic(), "result": outcome.digest.hex()}

        await obey(
            {"address": address_of(rpc), "meet": meet, "prepare": prepare, "average": average}
        )


def address_of(rpc: LinkRpc) -> Verb:
    """The verb that tells where this peer is."""

    async def address() -> list[str]:
        return [str(rpc.contact.peer), str(rpc.contact.address)]

    return address


def digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def main(role: str, *rest: str) -> None:
    if role == "averaging":
        number, mb, *at = rest
        run(averaging(int(number), int(mb), *at))
    else:
        run({"link": link, "dht": dht}[role](list(rest) or None))


if __name__ == "__main__":
    main(*sys.argv[1:])
