"""Tensors between two peers: announced, granted, sent in pieces, received into place."""

import asyncio

import pytest
import torch
from tensors.harness import pair
from tensors.recording_device import RecordingDevice

from p2pswarm.base.errors import BadMessage, Busy, LinkLost, TooLarge
from p2pswarm.net.rpc.base import Priority
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.base import CPU
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.device_streams import DeviceStreams
from p2pswarm.tensors.codecs.host_memory import LockedMemory
from p2pswarm.tensors.codecs.meta import TENSORS_MAX, Grant, TensorMeta
from p2pswarm.tensors.codecs.registry import CODECS, TensorToEncode, encode, round_trip
from p2pswarm.tensors.codecs.tensor_pool import TensorPool
from p2pswarm.tensors.transfer import TensorTransfer


def some(seed: int = 0) -> list[torch.Tensor]:
    """Tensors for the inline way and for the long one."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=rng) for shape in ((64, 1024), (), (0, 3), (33, 7))]


def side(peer_bytes: int = 1 << 22) -> tuple[TensorTransfer, Budget]:
    budget = Budget(peer_bytes, peer_bytes * 4)
    return TensorTransfer(budget), budget


@pytest.mark.parametrize("codec", [c.name for c in CODECS if c.kind is not CodecKind.KEYED])
async def test_tensors_arrive_in_their_order(codec):
    a, b = pair()
    (sender, _), (receiver, budget) = side(), side()
    sent = some()

    encoded = await sender.pack(sent, codec)
    async with receiver.accept(b, [p.meta for p in encoded]) as incoming:
        await sender.send(a, incoming.grant, encoded, Priority.TENSOR)
        got = await incoming.tensors()

    whole = [p.meta.encoded_bytes > len(p.meta.inline) for p in encoded]
    assert [t > 0 for t in incoming_transfers(b)] == [True] * sum(whole)
    assert [t.shape for t in got] == [t.shape for t in sent]
    assert all(torch.equal(round_trip(x, codec), y) for x, y in zip(sent, got, strict=True))
    assert budget.held_bytes == 0
    assert set(a.priorities) == {Priority.TENSOR}


async def test_a_bundle_arrives_by_the_key_that_both_ends_know():
    a, b = pair()
    (sender, _), (receiver, _) = side(), side()
    keys = (bytes(8), b"", bytes(range(8)))
    values = torch.randn(3, 64, 512, generator=torch.Generator().manual_seed(1)).unbind()
    bundle = list(map(TensorToEncode, values, ("dither6", "raw", "dither3"), keys))

    encoded = await sender.pack_bundle(bundle)
    async with receiver.accept(b, [each.meta for each in encoded], keys) as incoming:
        await sender.send(a, incoming.grant, encoded, Priority.TENSOR)
        got = await incoming.tensors()

    for each, value, came in zip(bundle, values, got, strict=True):
        assert torch.equal(came, round_trip(value, each.codec_name, each.key))


async def test_bytes_of_another_key_are_an_error_and_not_noise():
    a, b = pair()
    (sender, _), (receiver, _) = side(), side()
    encoded = await sender.pack_bundle([TensorToEncode(torch.ones(64, 512), "dither4", bytes(8))])

    async with receiver.accept(b, [encoded[0].meta], (bytes(range(8)),)) as incoming:
        await sender.send(a, incoming.grant, encoded, Priority.TENSOR)
        with pytest.raises(BadMessage, match="dither4 bytes of another key"):
            await incoming.tensors()


async def test_no_tensor_waits_until_the_one_before_is_with_the_peer():
    a, b = pair()
    (sender, _), (receiver, _) = side(), side()
    encoded = await sender.pack([torch.zeros(1 << 15)] * 3, "raw")
    send, waiting = a.send_bulk, asyncio.Barrier(3)  # a call ends when there are three

    async def send_bulk(*args):
        await waiting.wait()
        await send(*args)

    a.send_bulk = send_bulk
    async with receiver.accept(b, [p.meta for p in encoded]) as incoming:
        await asyncio.wait_for(sender.send(a, incoming.grant, encoded, Priority.TENSOR), 10)
        assert len(await incoming.tensors()) == 3


def incoming_transfers(end) -> list[int]:
    return list(end.slots)


async def test_memory_is_charged_until_the_block_is_left():
    a, b = pair()
    (sender, _), (receiver, budget) = side(), side()
    encoded = await sender.pack([torch.zeros(1 << 16)], "bf16")

    async with receiver.accept(b, [p.meta for p in encoded]) as incoming:
        assert budget.held_bytes == (1 << 16) * 6
        await sender.send(a, incoming.grant, encoded, Priority.STATE)
        await incoming.tensors()

    assert budget.held_bytes == 0


async def test_announcement_over_the_budget_is_refused_before_any_memory_is_set_aside():
    _, b = pair()
    receiver, budget = side(peer_bytes=1000)

    with pytest.raises(TooLarge):
        receiver.accept(b, [encode(torch.zeros(300), "raw", 0).meta])

    assert budget.held_bytes == 0
    assert b.slots == {}


async def test_second_announcement_waits_for_the_first_to_be_done():
    _, b = pair()
    receiver, budget = side(peer_bytes=1000)
    meta = encode(torch.zeros(150), "raw", 0).meta

    async with receiver.accept(b, [meta]):
        with pytest.raises(Busy):
            receiver.accept(b, [meta])
    async with receiver.accept(b, [meta]):
        pass

    assert budget.held_bytes == 0
    assert all(slot.cancelled for slot in b.slots.values())


async def test_one_bad_announcement_refuses_them_all():
    _, b = pair()
    receiver, budget = side()
    good = encode(torch.zeros(9), "raw", 0).meta

    with pytest.raises(BadMessage):
        receiver.accept(b, [good, TensorMeta(99, (1,), 1, 4)])
    with pytest.raises(BadMessage, match="256 are the most"):
        receiver.accept(b, [good] * (TENSORS_MAX + 1))

    assert (budget.held_bytes, b.slots) == (0, {})


async def test_failure_to_set_memory_aside_gives_back_what_was_set_aside():
    _, b = pair()
    receiver, budget = side()
    encoded = [encode(torch.zeros(9), "raw", 0) for _ in range(3)]
    expect = b.expect

    def expect_two(room):
        if len(b.slots) == 2:
            raise Busy("enough transfers")
        return expect(room)

    b.expect = expect_two

    with pytest.raises(Busy, match="enough"):
        receiver.accept(b, [p.meta for p in encoded])

    assert [slot.cancelled for slot in b.slots.values()] == [True, True]
    assert budget.held_bytes == 0


async def test_lost_link_ends_the_wait_and_gives_the_memory_back():
    _, b = pair()
    receiver, budget = side()
    meta = encode(torch.zeros(9), "raw", 0).meta

    async with receiver.accept(b, [meta]) as incoming:
        b.cut()
        with pytest.raises(LinkLost):
            await incoming.tensors()

    assert budget.held_bytes == 0


@pytest.mark.parametrize("transfers", [(), (1, 1), (0,), (1, 2, 3)])
async def test_grant_that_does_not_fit_what_was_announced_is_a_broken_protocol(transfers):
    a, _ = pair()
    sender, _ = side()
    encoded = [encode(torch.zeros(9), "raw", 0)]

    with pytest.raises(BadMessage, match="does not fit"):
        await sender.send(a, Grant(transfers), encoded, Priority.TENSOR)


async def test_bytes_that_are_not_of_the_codec_are_a_broken_protocol():
    a, b = pair()
    (sender, _), (receiver, budget) = side(), side()
    encoded_tensor = encode(torch.arange(100_000), "planes-zstd", 0)
    garbage = type(encoded_tensor)(encoded_tensor.meta, memoryview(bytes(len(encoded_tensor.data))))

    async with receiver.accept(b, [encoded_tensor.meta]) as incoming:
        await sender.send(a, incoming.grant, [garbage], Priority.TENSOR)
        with pytest.raises(BadMessage):
            await incoming.tensors()

    assert budget.held_bytes == 0


async def test_a_bundle_on_a_device_is_copied_aside_into_memory_of_its_own():
    device, transfer = RecordingDevice(), TensorTransfer(Budget())
    page_locked = LockedMemory(lambda size: torch.empty(size, dtype=torch.uint8), 1 << 20)
    transfer._pool = TensorPool(CPU, streams=DeviceStreams(device, page_locked))
    sent = torch.randn(1 << 17, generator=torch.Generator().manual_seed(1))
    with device.launching_on(device.computing):
        there = device.empty(tuple(sent.shape), sent.dtype, CPU).copy_(sent)
    device.computing.finish()  # a compute call waits at its end

    assert not transfer.is_on_device({"x": sent})
    assert transfer.is_on_device({"x": there})
    here = (await transfer.on_host({"x": there}))["x"]
    locked = transfer._pool.way(tuple(sent.shape), sent.dtype)  # it is free again

    assert torch.equal(here, sent)
    assert not device.holds(here)
    assert locked.data_ptr() != here.data_ptr()
    assert device.breaches == []
