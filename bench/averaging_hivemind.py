"""One member of bench/averaging.py on hivemind's side; runs in .venv-peers.

The averager has hivemind's defaults: no compression, parts of 512 KiB, its own process and daemon.
`require_trigger` lets all members begin at once, after they have found each other.
"""

import asyncio
import sys
import time
from typing import Any

import torch
from hivemind import DHT, DecentralizedAverager
from hivemind.averaging.control import AveragingStage, StepControl
from peers_worker import obey

GROUP_S = 120.0  # for all members to find each other


def serve(number: int, members: int, mb: int, seed: list[str]) -> None:
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
