"""What cannot be computed or encoded is told; what cannot be mended ends the server."""

import asyncio
import dataclasses

import models.harness  # noqa: F401  registers the family
import pytest
import torch
from models.of_ours import run_as_ours
from server.harness import CONFIG, swarm, virtual

from p2pswarm.base.errors import NotComputed, Refused, Unusable
from p2pswarm.run.messages.microbatch import Undelivered
from p2pswarm.settings.config import BatchConfig, CodecConfig


def test_an_activation_that_its_codec_cannot_hold_is_told_to_the_trainer():
    codecs = CodecConfig(activation="fp16", gradient="raw")

    async def main():
        async with swarm(dataclasses.replace(CONFIG, codecs=codecs)) as r:
            await r.ready_servers(2, 3)
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
            await r.ready_servers(2, 3)
            (door,) = r.trainer.of_stage(0)
            block = r.engines[door.record.peer][-1].weights._flat.blocks[0]
            block.forward = out_of_memory
            with pytest.raises(NotComputed) as told:
                await r.trainer.push(door, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            (note,) = r.trainer.notes(Undelivered)
            return note.reason, str(told.value), door.contact.peer.short

    noted, told, who = virtual(main)
    assert noted == told
    assert noted.startswith(f"{who} could not compute it: out of memory: set serve.recompute")


def test_a_whole_number_of_a_neighbour_that_indexes_nothing_ends_no_server():
    """Torch raises it from the frame that indexes, as from a bug of ours."""
    skipping = dataclasses.replace(CONFIG.model, family="skipping")
    config = dataclasses.replace(CONFIG, stages=3, model=skipping)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2, 3, 4)
            (door,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(2)
            first = r.engines[door.record.peer][-1].weights._flat.blocks[0]
            end = r.engines[last.record.peer][-1].weights._flat.blocks[0]
            honest = first.forward
            first.forward = lambda x: {**honest(x), "marks": torch.full_like(x, 10**6)}
            run_as_ours(
                "end.forward = lambda bundle: (table[bundle['marks']], make(bundle))[1]",
                end=end,
                make=end.forward,
                table=torch.zeros(8),
            )
            await r.trainer.push(door, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            failed = r.trainer.notes(Undelivered)[0].reason
            first.forward = honest
            await r.trainer.push(door, 1)
            await r.trainer.until_counted(1)
            return failed, last.contact.peer.short, len(r.trainer.members)

    reason, who, members = virtual(main)
    assert reason.startswith(f"{who} could not compute it: torch could not compute it: index 1000")
    assert members == 3


def test_a_server_that_fails_fast_attracts_no_work_and_is_named():
    """It would be chosen most of all if a failure counted as a microbatch done in no time."""
    config = dataclasses.replace(CONFIG, batch=BatchConfig(microbatches=24, rows=2))

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 8), compute=one_second)
            door, bad = r.trainer.of_stage(0)[0], r.trainer.of_stage(1)[0]
            block = r.engines[bad.record.peer][-1].weights._flat.blocks[0]
            block.forward = out_of_memory
            for number in range(24):
                await r.trainer.push(door, number)
            failed = lambda: {n.microbatch for n in r.trainer.notes(Undelivered)}  # noqa: E731
            await r.trainer.until(
                lambda: all(len(r.trainer.holders(n)) == 2 or n in failed() for n in range(24))
            )
            reasons = {n.reason.partition(" ")[0] for n in r.trainer.notes(Undelivered)}
            return len(failed()), reasons, bad.contact.peer.short

    failed, reasons, who = virtual(main)
    assert 1 <= failed <= 6
    assert reasons == {who}


async def one_second(work):
    """A processor that takes a second for whatever can be computed."""
    result = work()
    await asyncio.sleep(1.0)
    return result


def test_a_result_for_whose_encoding_there_is_no_memory_is_told_to_the_trainer():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (door,) = r.trainer.of_stage(0)

            async def pack_bundle(bundle):
                out_of_memory(bundle)

            r.servers[door.record.peer]._context.tensors.pack_bundle = pack_bundle
            await r.trainer.push(door, 0)
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            return r.trainer.notes(Undelivered)[0].reason, len(r.trainer.members)

    reason, members = virtual(main)
    assert "out of memory" in reason
    assert members == 2


def test_a_microbatch_for_whose_decoding_there_is_no_memory_is_refused_with_the_remedy():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (door,) = r.trainer.of_stage(0)
            tensors = r.servers[door.record.peer]._context.tensors
            accept = tensors.accept

            async def no_memory():
                out_of_memory(None)

            def accept_without_memory(stream, metas, keys):
                coming = accept(stream, metas, keys)
                coming.tensors = no_memory
                return coming

            tensors.accept = accept_without_memory
            with pytest.raises(Refused) as told:
                await r.trainer.push(door, 0)
            return str(told.value), len(r.trainer.members)

    told, members = virtual(main)
    assert "out of memory: lower serve.graph_mib" in told
    assert members == 2


def out_of_memory(_tokens):
    raise RuntimeError("DefaultCPUAllocator: can't allocate memory")


def test_a_model_that_computes_something_else_than_when_traced_ends_the_server():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (door,) = r.trainer.of_stage(0)
            block = r.engines[door.record.peer][-1].weights._flat.blocks[-1]
            block.forward = lambda x: {"y": x}
            r.tasks.create_task(r.trainer.push(door, 0))
            await asyncio.Event().wait()

    with pytest.raises(ExceptionGroup) as caught:
        virtual(main)
    assert caught.group_contains(Unusable, match="when traced")
