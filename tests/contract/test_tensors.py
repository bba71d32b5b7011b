"""Tensors over every implementation of `Rpc`: whole, refused by name, and gone with the link."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from contract.harness import LONG_S, Bed, contract

from p2pswarm.base.errors import BadMessage, Busy, LinkLost, TooLarge
from p2pswarm.net.rpc.base import Priority, Rpc, Stream
from p2pswarm.net.wire.message import Message, Size, message
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.codec import CodecKind
from p2pswarm.tensors.codecs.meta import Grant, TensorMeta
from p2pswarm.tensors.codecs.registry import CODECS, EncodedTensor
from p2pswarm.tensors.transfer import TensorTransfer


@message(9101)
@dataclass(frozen=True, slots=True)
class Parade(Message):
    metas: Annotated[tuple[TensorMeta, ...], Size(64)]


@message(9102)
@dataclass(frozen=True, slots=True)
class Seen(Message):
    sums: tuple[str, ...]


def digest(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.double().sum().item():.9g}"


def receiving(rpc: Rpc, budget: Budget) -> None:
    """Serve: take what is announced and tell what came."""
    tensors = TensorTransfer(budget)

    async def take(stream: Stream, parade: Parade) -> None:
        async with tensors.accept(stream, parade.metas) as coming:
            await stream.send(coming.grant)
            await stream.send(Seen(tuple(digest(t) for t in await coming.tensors())))

    rpc.serve_stream(Parade, take)


async def hand(rpc: Rpc, to: Rpc, encoded: list[EncodedTensor]) -> Message | None:
    async with rpc.open_stream(
        to.contact, Parade(tuple(p.meta for p in encoded)), LONG_S
    ) as stream:
        grant = await stream.receive()
        assert isinstance(grant, Grant)
        await TensorTransfer(Budget()).send(stream, grant, encoded, Priority.TENSOR)
        return await stream.receive()


@contract
async def test_tensors_of_every_codec_arrive_whole(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    budget = Budget()
    receiving(b, budget)
    tensors = [
        torch.linspace(-9, 9, 700_000),
        torch.tensor(5.0),
        torch.zeros(0, 4),
        torch.ones(9, 9).t(),
    ]

    for codec in (each for each in CODECS if each.kind is not CodecKind.KEYED):
        encoded = await TensorTransfer(Budget()).pack(tensors, codec.name)
        seen = await hand(a, b, encoded)
        assert isinstance(seen, Seen)
        if codec.name in ("raw", "planes-zstd"):
            assert seen.sums == tuple(digest(t) for t in tensors)

    assert budget.held_bytes == 0


@contract
async def test_sixty_tensors_share_one_announcement(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    receiving(b, Budget())
    tensors = [torch.full((3000,), float(i)) for i in range(60)]

    seen = await hand(a, b, await TensorTransfer(Budget()).pack(tensors, "raw"))

    assert seen == Seen(tuple(digest(t) for t in tensors))


@contract
async def test_announcement_over_the_budget_is_refused_by_name(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    budget = Budget(peer_bytes=100_000, process_bytes=100_000)
    receiving(b, budget)
    encoded = await TensorTransfer(Budget()).pack([torch.zeros(20_000)], "raw")

    assert await hand(a, b, encoded) == Seen((digest(torch.zeros(20_000)),))
    with pytest.raises(TooLarge):
        await hand(a, b, await TensorTransfer(Budget()).pack([torch.zeros(30_000)], "raw"))
    peer = a.contact.peer
    assert peer is not None
    budget.reserve(peer, 50_000)
    with pytest.raises(Busy):
        await hand(a, b, encoded)


@contract
async def test_nonsense_announced_is_refused_before_any_memory(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    budget = Budget()
    receiving(b, budget)
    nonsense = EncodedTensor(TensorMeta(99, (1,), 1, 4), memoryview(b""))

    with pytest.raises((BadMessage, LinkLost)):
        await hand(a, b, [nonsense])

    assert budget.held_bytes == 0


@contract
async def test_sender_that_dies_leaves_no_memory_held(bed: Bed) -> None:
    """Announced and granted, then the sender is gone: the receiver gets its room back."""
    a, b = await bed.peer(), await bed.peer()
    budget, outcome = Budget(), []
    tensors = TensorTransfer(budget)
    encoded = await tensors.pack([torch.zeros(100_000)], "raw")

    async def take(stream: Stream, parade: Parade) -> None:
        try:
            async with tensors.accept(stream, parade.metas) as coming:
                await stream.send(coming.grant)
                await coming.tensors()
        finally:
            outcome.append(budget.held_bytes)

    b.serve_stream(Parade, take)

    async def die() -> None:
        async with a.open_stream(b.contact, Parade((encoded[0].meta,)), LONG_S) as stream:
            await stream.receive()
            await bed.kill(a)
            await stream.receive()

    with pytest.raises(LinkLost):
        await die()

    receiving(b, budget)
    c = await bed.peer()
    assert isinstance(await hand(c, b, encoded), Seen)
    assert outcome == [0]
    assert budget.held_bytes == 0
