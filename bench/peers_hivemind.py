"""The hivemind side of peers.py and averaging.py, as its users write it; runs in .venv-peers.

Streams go the way of its mixture of experts (moe/client/expert.py and
moe/server/connection_handler.py): serialized, split into its largest messages,
deserialized at the other end. That runs on uvloop, as its own servers do.
"""

import asyncio
import sys
import time
from functools import partial
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind knows a stream by typing's name alone

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.compression import deserialize_tensor_stream, serialize_torch_tensor
from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2P, P2PContext, PeerID, ServicerBase
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
from hivemind.proto import runtime_pb2
from hivemind.utils import get_dht_time, switch_to_uvloop
from hivemind.utils.asyncio import amap_in_executor, iter_as_aiter
from hivemind.utils.streaming import split_for_streaming
from workers import obey

EXPIRES_AFTER_S = 600.0
START_S = 60.0  # for its daemon, in the lab
GROUP_S = 120.0  # for all members of an average to find each other


class Sink(ServicerBase):
    """Takes tensors and small calls."""

    async def rpc_push(
        self, requests: AsyncIterator[runtime_pb2.ExpertRequest], _: P2PContext
    ) -> AsyncIterator[runtime_pb2.ExpertResponse]:
        """Take one tensor in parts; tell its size when it is a tensor again."""
        tensors = await deserialize_tensor_stream(amap_in_executor(lambda r: r.tensors, requests))
        yield runtime_pb2.ExpertResponse(tensors=[runtime_pb2.Tensor(chunks=tensors[0].nbytes)])

    async def rpc_echo(
        self, request: runtime_pb2.ExpertUID, _: P2PContext
    ) -> runtime_pb2.ExpertUID:
        """Say the same."""
        return request


async def link(server: list[str] | None, host: str = "") -> None:
    """One end of the stream and the small calls; `server` is the other's id and addresses.

    `host`: where it listens, on a host of the WAN lab.
    """
    where = {"host_maddrs": [f"/ip4/{host}/tcp/0"], "startup_timeout": START_S} if host else {}
    p2p = await P2P.create(initial_peers=server[1:] if server else None, **where)
    sink = Sink()
    await sink.add_p2p_handlers(p2p)
    stub = Sink.get_stub(p2p, PeerID.from_base58(server[0])) if server else None

    async def address() -> list[str]:
        return [p2p.peer_id.to_base58(), *map(str, await p2p.get_visible_maddrs())]

    async def stream(bytes_: int, times: int) -> list[float]:
        """Seconds for each of the tensors, until the other side has it as a tensor."""
        x = torch.randn(bytes_ // 4)
        taken_s = []
        for _ in range(times):
            begin_s = time.perf_counter()
            parts = split_for_streaming(serialize_torch_tensor(x), DEFAULT_MAX_MSG_SIZE)
            replies = await stub.rpc_push(
                amap_in_executor(
                    lambda part: runtime_pb2.ExpertRequest(uid="x", tensors=[part]),
                    iter_as_aiter(parts),
                )
            )
            async for reply in replies:
                assert reply.tensors[0].chunks == x.nbytes
            taken_s.append(time.perf_counter() - begin_s)
        return taken_s

    async def echo(bytes_: int, times: int) -> list[float]:
        """Seconds for each call."""
        request = runtime_pb2.ExpertUID(uid="x" * bytes_)
        taken_s = []
        for _ in range(times):
            begin_s = time.perf_counter()
            await stub.rpc_echo(request)
            taken_s.append(time.perf_counter() - begin_s)
        return taken_s

    await obey({"address": address, "stream": stream, "echo": echo})
    await p2p.shutdown()


async def holds(_: DHT, node: DHTNode, keys: list[str]) -> list[bool]:
    """Which keys a peer could answer for without asking anybody."""
    ids = [DHTID.generate(source=key) for key in keys]
    local = (node.protocol.storage, node.protocol.cache)
    return [any(store.get(key_id) is not None for store in local) for key_id in ids]


def dht(peers: int) -> None:
    """A DHT of `peers`; each is a process of its own with a daemon of its own."""
    nodes = [DHT(start=True)]
    for _ in range(peers - 1):
        nodes.append(DHT(initial_peers=nodes[0].get_visible_maddrs(), start=True))

    async def store(keys: list[str], value: str, peer: int) -> list[float]:
        taken_s = []
        for key in keys:
            begin_s = time.perf_counter()
            assert nodes[peer].store(key, value.encode(), get_dht_time() + EXPIRES_AFTER_S)
            taken_s.append(time.perf_counter() - begin_s)
        return taken_s

    async def get(keys: list[str], value: str, peer: int) -> list[float]:
        """Seconds for each key that the peer does not hold itself."""
        taken_s = []
        held = nodes[peer].run_coroutine(partial(holds, keys=keys))
        for key in (k for k, here in zip(keys, held, strict=True) if not here):
            begin_s = time.perf_counter()
            found = nodes[peer].get(key)
            taken_s.append(time.perf_counter() - begin_s)
            assert found.value == value.encode()
        return taken_s

    async def start() -> float:
        """Seconds for one more peer to be there."""
        known = nodes[0].get_visible_maddrs()
        begin_s = time.perf_counter()
        newcomer = DHT(initial_peers=known, start=True)
        taken_s = time.perf_counter() - begin_s
        newcomer.shutdown()
        return taken_s

    asyncio.run(obey({"store": store, "get": get, "start": start}))
    for node in reversed(nodes):
        node.shutdown()


def averaging(number: int, members: int, mb: int, seed: list[str]) -> None:
    """A member of averaging.py, with hivemind's defaults: no compression, parts of 512 KiB.

    `require_trigger` lets all members begin at once, after they have found each other.
    """
    dht = DHT(initial_peers=seed or None, start=True)
    tensor = torch.randn(mb * 10**6 // 4, generator=torch.Generator().manual_seed(number))
    averager = DecentralizedAverager(
        [tensor],
        dht,
        start=True,
        prefix="bench",
        target_group_size=members,
        min_group_size=members,
    )
    steps: list[StepControl] = []

    async def address() -> list[str]:
        return [str(each) for each in dht.get_visible_maddrs()]

    async def prepare(number: int) -> None:
        """Find the group."""
        step = averager.step(gather=number, wait=False, require_trigger=True, timeout=GROUP_S)
        while step.stage is not AveragingStage.AWAITING_TRIGGER:
            assert not step.done(), step.exception()
            await asyncio.sleep(0.02)
        steps[:] = [step]

    async def average(number: int) -> dict[str, Any]:
        begun = time.monotonic()
        steps[0].allow_allreduce()
        gathered = await asyncio.to_thread(steps[0].result)
        ended = time.monotonic()
        assert len(gathered) == members
        assert set(gathered.values()) == {number}
        with averager.get_tensors() as (averaged,):
            return {"begun": begun, "ended": ended, "result": round(averaged[0].item(), 4)}

    asyncio.run(obey({"address": address, "prepare": prepare, "average": average}))
    averager.shutdown()
    dht.shutdown()


def main(role: str, *rest: str) -> None:
    torch.set_num_threads(1)
    if role == "dht":
        dht(int(rest[0]))
    elif role == "averaging":
        averaging(*map(int, rest[:3]), list(rest[3:]))
    else:
        host, server = (rest[0], rest[1:]) if role == "wan" else ("", rest)
        switch_to_uvloop().run_until_complete(link(list(server) or None, host))


if __name__ == "__main__":
    main(*sys.argv[1:])
