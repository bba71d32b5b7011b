"""One end of bench/peers_wan.py; runs in .venv-peers, on a host of the lab."""

import asyncio
import sys
import time

import torch
from hivemind.compression import serialize_torch_tensor
from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.control import DEFAULT_MAX_MSG_SIZE
from hivemind.proto import runtime_pb2
from hivemind.utils import switch_to_uvloop
from hivemind.utils.asyncio import amap_in_executor, iter_as_aiter
from hivemind.utils.streaming import split_for_streaming
from peers_hivemind import Sink

VALUES = 16 << 20  # 64 MiB of float32
START_S = 60.0


def request(part: runtime_pb2.Tensor) -> runtime_pb2.ExpertRequest:
    return runtime_pb2.ExpertRequest(uid="x", tensors=[part])


async def main(host: str, times: str, *server: str) -> None:
    """Serve, or send to `server` (its id and addresses) and print Mbit/s for each tensor."""
    p2p = await P2P.create(
        host_maddrs=[f"/ip4/{host}/tcp/0"], initial_peers=server[1:], startup_timeout=START_S
    )
    sink = Sink()
    await sink.add_p2p_handlers(p2p)
    if not server:
        print(p2p.peer_id.to_base58(), *await p2p.get_visible_maddrs(), flush=True)
        await asyncio.Event().wait()
    stub = Sink.get_stub(p2p, PeerID.from_base58(server[0]))
    x = torch.randn(VALUES)
    for _ in range(int(times)):
        begin_s = time.perf_counter()
        parts = split_for_streaming(serialize_torch_tensor(x), DEFAULT_MAX_MSG_SIZE)
        replies = await stub.rpc_push(amap_in_executor(request, iter_as_aiter(parts)))
        async for reply in replies:
            assert reply.tensors[0].chunks == x.nbytes
        print(x.nbytes * 8e-6 / (time.perf_counter() - begin_s), flush=True)
    await p2p.shutdown()


if __name__ == "__main__":
    switch_to_uvloop().run_until_complete(main(*sys.argv[1:]))
