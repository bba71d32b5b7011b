"""Stage servers with a scripted trainer, in virtual time: they train what a plain loop trains."""

import asyncio
import dataclasses

import pytest
import torch
from core import core_of
from server.gates import Gate
from server.harness import (
    CONFIG,
    B,
    assert_equal,
    compute_here,
    microbatch,
    peer,
    plain_after,
    swarm,
    virtual,
    weights_of,
)

from p2pswarm.base.errors import NotComputed
from p2pswarm.models.compute.autograd_graphs import GraphLimits
from p2pswarm.net.rpc.base import Priority
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import Ready
from p2pswarm.run.messages.microbatch import Counted, Evaluated, Handed, Push, Undelivered
from p2pswarm.server.boundary_cache import BoundaryCache
from p2pswarm.tensors.codecs.base import TensorUse
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.meta import Grant
from p2pswarm.tensors.codecs.registry import CODECS, encode, named
from p2pswarm.tensors.transfer import TensorTransfer

STATELESS = {
    codec.name
    for codec in CODECS
    if codec.kind is not CodecKind.LINKED and TensorUse.GRADIENT in codec.uses
}
CORE = {"raw", "planes-zstd", "int8", "dither3", "nvfp4-eden"}
"""One of each way to round."""
END = int(microbatch(0)[0, 5])
"""A token within a row, which ends a document."""


def test_two_stages_train_what_a_plain_loop_trains():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            for _ in range(3):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(3).flat.parameters)


@pytest.mark.parametrize("keep_bytes", [1 << 30, 0])
def test_stages_whose_rows_keep_documents_apart_train_what_a_plain_loop_trains(keep_bytes):
    """Only the activation crosses: each stage makes positions of its tokens."""
    model = dataclasses.replace(CONFIG.model, documents="apart", document_end=END)
    config = dataclasses.replace(CONFIG, model=model, stages=3, cut=(1, 2, 1))
    assert (microbatch(0)[:, 1:-1] == END).any()

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2, 3, 4, keep_bytes=keep_bytes)
            for _ in range(2):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2, config).flat.parameters)


@pytest.mark.parametrize("codec", core_of(sorted(STATELESS), CORE))
def test_activations_too_large_for_a_message_train_the_same(codec):
    model = dataclasses.replace(CONFIG.model, d_model=64, sequence_length=48)
    back = codec if TensorUse.GRADIENT in named(codec).uses else "nvfp4-eden"
    codecs = dataclasses.replace(CONFIG.codecs, activation=codec, gradient=back)
    config = dataclasses.replace(CONFIG, stages=3, model=model, codecs=codecs)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 7))
            for _ in range(2):
                await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(2, config).flat.parameters)


def test_room_is_asked_for_while_a_microbatch_is_computed():
    model = dataclasses.replace(CONFIG.model, d_model=64, sequence_length=48)
    config = dataclasses.replace(CONFIG, model=model)

    async def main():
        async with swarm(config) as r:
            gate = Gate()
            await r.ready_servers(2, compute=gate)
            await r.ready_servers(3)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            for number in range(3):  # two to learn the size from
                await r.trainer.push(first, number)
                await r.trainer.until(lambda n=number: len(r.trainer.holders(n)) == 2)
            gate.open.clear()
            pushing = asyncio.ensure_future(r.trainer.push(first, 3))
            await gate.waiting.wait()
            await r.trainer.until(lambda: [n for n in first.notes if isinstance(n, Handed)][3:])
            assert not pushing.done()
            assert await r.trainer.fence(last, 3, 0) == ()
            gate.open.set()
            await pushing
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            await r.trainer.fence(first, 3, 0)
            await r.trainer.push(first, 3, attempt=1)
            await r.trainer.until_counted(3)
            await r.trainer.end_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1, config).flat.parameters)


def test_one_stage_alone_trains_what_a_plain_loop_trains():
    config = dataclasses.replace(CONFIG, stages=1)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(2)
            await r.trainer.whole_step()
            return weights_of(r)

    assert_equal(virtual(main), plain_after(1, config).flat.parameters)


@pytest.mark.parametrize("averaging", ["raw", "fp16"])
def test_replicas_are_bit_identical_after_every_step(averaging):
    codecs = dataclasses.replace(CONFIG.codecs, averaging=averaging, exact=averaging == "raw")
    config = dataclasses.replace(CONFIG, codecs=codecs)

    async def main():
        async with swarm(config) as r:
            await r.ready_servers(*range(2, 7))
            for _ in range(2):
                await r.trainer.whole_step()
                assert [len(r.digests(stage)) for stage in range(2)] == [1, 1]
            return weights_of(r)

    if averaging == "raw":
        assert_equal(virtual(main), plain_after(2).flat.parameters)
    else:
        virtual(main)


def test_a_server_without_memory_for_graphs_trains_the_same():
    async def main():
        async with swarm() as r:
            await r.ready_servers(*range(2, 4), keep_bytes=0)
            await r.trainer.whole_step()
            return weights_of(r), [e[-1].stage.recomputed for e in r.engines.values()]

    weights, recomputed = virtual(main)
    assert sorted(recomputed) == [0, B]
    assert_equal(weights, plain_after(1).flat.parameters)


@pytest.mark.parametrize("keep_bytes", [1 << 30, 0])
def test_servers_whose_graphs_are_made_block_by_block_train_the_same(keep_bytes):
    graphs = GraphLimits(keep_bytes, recompute="block")

    async def main():
        async with swarm() as r:
            await r.ready_servers(*range(2, 4), keep_bytes=graphs)
            await r.trainer.whole_step()
            return weights_of(r), [e[-1].stage.recomputed for e in r.engines.values()]

    weights, recomputed = virtual(main)
    assert sorted(recomputed) == [0, 0 if keep_bytes else B]
    assert_equal(weights, plain_after(1).flat.parameters)


def test_the_trainer_is_told_the_way_of_a_microbatch():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            await r.trainer.push(first, 1)
            await r.trainer.until_counted(1)
            handed = Handed(0, 1, 0, last.record.peer, last.record.incarnation)
            assert first.notes == [first.notes[0], handed, Counted(0, 1, 0, True, None)]
            assert isinstance(first.notes[0], Ready)
            loss = last.notes[-1].loss
            assert last.notes[-1] == Counted(0, 1, 0, True, loss)
            return loss

    assert virtual(main) == pytest.approx(plain_after(0).evaluate(microbatch(1), 1))


def test_an_evaluation_counts_nothing_and_tells_the_loss():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            (first,), (last,) = r.trainer.of_stage(0), r.trainer.of_stage(1)
            number = 2**61
            await r.trainer.push(first, number, work=Work.EVALUATE, counting=())
            await r.trainer.until(lambda: r.trainer.notes(Evaluated))
            assert r.trainer.bitmap(first) == r.trainer.bitmap(last) == b"\0"
            return r.trainer.notes(Evaluated)

    (note,) = virtual(main)
    assert note.loss == pytest.approx(plain_after(0).evaluate(microbatch(2**61), 2**61))


def test_a_gradient_that_is_not_finite_is_told_and_not_counted():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2)
            fake = r.world.rpc(peer(50))
            taken = asyncio.Queue()

            async def take(stream, push):
                async with r.trainer.tensors.accept(stream, push.tensors) as coming:
                    await stream.send(coming.grant)
                    await coming.tensors()
                taken.put_nowait(push)
                await stream.receive()

            fake.serve_stream(Push, take)
            first = r.trainer.of_stage(0)[0]
            record = dataclasses.replace(
                first.record, peer=peer(50).raw, address=str(fake.contact.address), stage=1
            )
            r.trainer.members[peer(50).raw] = dataclasses.replace(
                first, record=record, contact=fake.contact
            )
            await r.trainer.publish()
            del r.trainer.members[peer(50).raw]
            pushing = asyncio.ensure_future(r.trainer.push(first, 0))
            push = await taken.get()
            rows, length = CONFIG.batch.rows, CONFIG.model.sequence_length
            gradient = torch.zeros(rows, length, CONFIG.model.d_model, dtype=torch.float64)
            gradient[0, 0, 0] = torch.nan
            encoded_tensor = encode(gradient, "raw")
            back = dataclasses.replace(
                push,
                stage=0,
                work=Work.BACKWARD,
                incarnation=first.record.incarnation,
                tensors=(encoded_tensor.meta,),
            )
            async with fake.open_stream(first.contact, back, 10.0) as stream:
                grant = await stream.receive()
                assert isinstance(grant, Grant)
                await r.trainer.tensors.send(stream, grant, [encoded_tensor], Priority.TENSOR)
                with pytest.raises(NotComputed, match="not finite"):
                    await stream.receive()
            await r.trainer.until(lambda: r.trainer.notes(Undelivered))
            await pushing
            flat = r.engines[peer(2).raw][-1].weights._flat
            return r.trainer.notes(Undelivered), flat.sum_N.any().item()

    (note,), touched = virtual(main)
    assert "not finite" in note.reason
    assert not touched


def test_a_whole_run_repeats_from_its_seed():
    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3, 4, 5, compute=compute_here)
            for _ in range(2):
                await r.trainer.whole_step()
            return r.world.world.digest

    assert virtual(main) == virtual(main)


def test_what_a_stage_keeps_for_its_neighbours_is_copied_from_a_device_to_the_host(monkeypatch):
    """Here each bundle counts as one on a device."""
    copied: list[int] = []

    async def on_host(_, bundle):
        return {name: tensor.clone() for name, tensor in bundle.items()}

    def replace(kept, microbatch, bundle, copy):
        assert kept.keeps(microbatch, bundle)
        assert copy["x"] is not bundle["x"]
        copied.append(microbatch)

    monkeypatch.setattr(TensorTransfer, "is_on_device", lambda *_: True)
    monkeypatch.setattr(TensorTransfer, "on_host", on_host)
    monkeypatch.setattr(BoundaryCache, "replace", replace)

    async def main():
        async with swarm() as r:
            await r.ready_servers(2, 3)
            await r.trainer.whole_step()

    virtual(main)

    microbatches = range(CONFIG.batch.microbatches)
    assert sorted(copied) == sorted([*microbatches, *microbatches])  # an activation and a gradient
