"""One member of bench/averaging.py on our side: a real link to every other, and its averaging."""

import asyncio
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from peers_ours import contact, listening
from peers_worker import obey

from p2pswarm.base.ids import Contact
from p2pswarm.models.compute.torch_sums import GradientMemory, TorchSums
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.os.event_loop import run
from p2pswarm.run.averaging.averaging_io import Averaging, AveragingSettings
from p2pswarm.run.messages.averaging import Shard
from p2pswarm.run.messages.step import Reduce
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.transfer import TensorTransfer

RUN = b"r" * 16


async def main(number: int, mb: int) -> None:
    torch.set_num_threads(1)
    gradient = torch.randn(mb * 10**6 // 4, generator=torch.Generator().manual_seed(number))
    memory = GradientMemory(gradient)
    group: dict[bytes, Contact] = {}
    executor = ThreadPoolExecutor(1, "compute")

    async def compute(work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, work)

    async with listening(Identity.generate()) as rpc, asyncio.TaskGroup() as tasks:
        settings = AveragingSettings(secret=os.urandom(32))
        averaging = Averaging(rpc, TensorTransfer(Budget()), compute, group.get, tasks, settings)
        rpc.serve_stream(Shard, averaging.shard)

        async def address() -> list[str]:
            return [str(rpc.contact.peer), str(rpc.contact.address)]

        async def meet(members: list[list[str]]) -> None:
            for each in map(contact, members):
                group[each.peer.raw] = each

        async def prepare(number: int) -> None:
            """Do nothing: what every averaging needs is made when it is ordered."""

        async def average(number: int) -> dict[str, Any]:
            begun = time.monotonic()
            order = Reduce(RUN, number, 1, 1, b"", tuple(group), ())
            outcome = await averaging.average(order, TorchSums(gradient, "raw", memory))
            return {"begun": begun, "ended": time.monotonic(), "result": outcome.digest.hex()}

        await obey({"address": address, "meet": meet, "prepare": prepare, "average": average})


if __name__ == "__main__":
    run(main(int(sys.argv[1]), int(sys.argv[2])))
