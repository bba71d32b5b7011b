"""What cannot be computed or encoded is told; what cannot be mended ends the server."""

import asyncio
import dataclasses

import pytest
from server.harness import CONFIG, swarm, virtual

from p2pswarm.config import CodecConfig
from p2pswarm.errors import Unusable
from p2pswarm.swarm.messages.microbatch import Undelivered


def test_an_activation_that_its_codec_cannot_hold_is_told_to_the_trainer():
    codecs = CodecConfig(activation="fp16", gradient="raw")

    async def main():
        async with swarm(dataclasses.replace(CONFIG, codecs=codecs)) as r:
            for number in (2, 3):
                r.serve(number)
            await r.trainer.until_ready(2)
            (door,) = r.trainer.of_stage(0)
            r.engines[door.record.peer][-1].weights._flat.params_N.fill_(1e6)
            await r.trainer.push(door, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            return r.trainer.notes(Undelivered)[0].reason, len(r.trainer.members)

    reason, members = virtual(main)
    assert "fp16 holds values up to 65504" in reason
    assert members == 2


def test_torch_without_memory_is_told_with_the_remedy():
    async def main():
        async with swarm() as r:
            for number in (2, 3):
                r.serve(number)
            await r.trainer.until_ready(2)
            (door,) = r.trainer.of_stage(0)
            block = r.engines[door.record.peer][-1].weights._flat.blocks[0]
            block.forward = out_of_memory
            await r.trainer.push(door, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            return r.trainer.notes(Undelivered)[0].reason

    assert "lower serve.graph_mib" in virtual(main)


def out_of_memory(_tokens):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_a_model_that_computes_something_else_than_when_traced_ends_the_server():
    async def main():
        async with swarm() as r:
            for number in (2, 3):
                r.serve(number)
            await r.trainer.until_ready(2)
            (door,) = r.trainer.of_stage(0)
            block = r.engines[door.record.peer][-1].weights._flat.blocks[-1]
            block.forward = lambda x: {"y": x}
            r.tasks.create_task(r.trainer.push(door, 0))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        virtual(main)
    assert caught.group_contains(Unusable, match="when traced")
