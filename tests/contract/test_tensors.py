"""Tensors over every implementation of `Rpc`: whole, refused by name, and gone with the link."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
import torch
from contract.beds import BEDS, Bed, Body

from p2pswarm.errors import BadMessage, Busy, LinkLost, TooLarge
from p2pswarm.rpc.base import Exchange, Priority, Rpc
from p2pswarm.tensors.budget import Budget
from p2pswarm.tensors.codecs.registry import CODECS, Parcel
from p2pswarm.tensors.meta import Grant, TensorMeta
from p2pswarm.tensors.service import Tensors
from p2pswarm.wire.codec import Message, Size, message

LONG_S = 60.0


@message(9101)
@dataclass(frozen=True, slots=True)
class Parade(Message):
    metas: Annotated[tuple[TensorMeta, ...], Size(64)]


@message(9102)
@dataclass(frozen=True, slots=True)
class Seen(Message):
    sums: tuple[str, ...]


def contract(body: Body) -> Callable[[Bed], None]:
    """A test over every bed."""

    @pytest.mark.parametrize("bed", [pytest.param(make, id=name) for name, make in BEDS.items()])
    def test(bed: Callable[[], Bed]) -> None:
        bed().run(body)

    test.__name__, test.__doc__ = body.__name__, inspect.getdoc(body)
    return test


def digest(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} {tensor.double().sum().item():.9g}"


def receiving(rpc: Rpc, budget: Budget) -> None:
    """Serve: take what is announced and tell what came."""
    tensors = Tensors(budget)

    async def take(exchange: Exchange, parade: Parade) -> None:
        async with tensors.accept(exchange, parade.metas) as coming:
            await exchange.send(coming.grant)
            await exchange.send(Seen(tuple(digest(t) for t in await coming.tensors())))

    rpc.attend(Parade, take)


async def hand(rpc: Rpc, to: Rpc, parcels: list[Parcel]) -> Message | None:
    async with rpc.converse(to.contact, Parade(tuple(p.meta for p in parcels)), LONG_S) as exchange:
        grant = await exchange.receive()
        assert isinstance(grant, Grant)
        await Tensors(Budget()).send(exchange, grant, parcels, Priority.TENSOR)
        return await exchange.receive()


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

    for codec in CODECS:
        parcels = await Tensors(Budget()).pack(tensors, codec.name)
        seen = await hand(a, b, parcels)
        assert isinstance(seen, Seen)
        if codec.name in ("raw", "planes-zstd"):
            assert seen.sums == tuple(digest(t) for t in tensors)

    assert budget.held_bytes == 0


@contract
async def test_sixty_tensors_share_one_announcement(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    receiving(b, Budget())
    tensors = [torch.full((3000,), float(i)) for i in range(60)]

    seen = await hand(a, b, await Tensors(Budget()).pack(tensors, "raw"))

    assert seen == Seen(tuple(digest(t) for t in tensors))


@contract
async def test_announcement_over_the_budget_is_refused_by_name(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    budget = Budget(peer_bytes=100_000, process_bytes=100_000)
    receiving(b, budget)
    parcels = await Tensors(Budget()).pack([torch.zeros(20_000)], "raw")

    assert await hand(a, b, parcels) == Seen((digest(torch.zeros(20_000)),))
    with pytest.raises(TooLarge):
        await hand(a, b, await Tensors(Budget()).pack([torch.zeros(30_000)], "raw"))
    peer = a.contact.peer
    assert peer is not None
    budget.reserve(peer, 50_000)
    with pytest.raises(Busy):
        await hand(a, b, parcels)


@contract
async def test_nonsense_announced_is_refused_before_any_memory(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer()
    budget = Budget()
    receiving(b, budget)
    nonsense = Parcel(TensorMeta(99, (1,), 1, 4), memoryview(b""))

    with pytest.raises((BadMessage, LinkLost)):
        await hand(a, b, [nonsense])

    assert budget.held_bytes == 0


@contract
async def test_sender_that_dies_leaves_no_memory_held(bed: Bed) -> None:
    """Announced and granted, then the sender is gone: the receiver gets its room back."""
    a, b = await bed.peer(), await bed.peer()
    budget, outcome = Budget(), []
    tensors = Tensors(budget)
    parcels = await tensors.pack([torch.zeros(100_000)], "raw")

    async def take(exchange: Exchange, parade: Parade) -> None:
        try:
            async with tensors.accept(exchange, parade.metas) as coming:
                await exchange.send(coming.grant)
                await coming.tensors()
        finally:
            outcome.append(budget.held_bytes)

    b.attend(Parade, take)

    async def die() -> None:
        async with a.converse(b.contact, Parade((parcels[0].meta,)), LONG_S) as exchange:
            await exchange.receive()
            await bed.kill(a)
            await exchange.receive()

    with pytest.raises(LinkLost):
        await die()

    receiving(b, budget)
    c = await bed.peer()
    assert isinstance(await hand(c, b, parcels), Seen)
    assert outcome == [0]
    assert budget.held_bytes == 0
