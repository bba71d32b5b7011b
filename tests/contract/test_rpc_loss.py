"""The contract of SEAM 2: bulk bytes, and the loss of a peer, in every implementation."""

import asyncio

import pytest
from contract.harness import (
    BULK_BYTES,
    LONG_S,
    Ask,
    Bed,
    Block,
    Handler,
    Room,
    contract,
    pair,
)

from p2pswarm.base.errors import (
    BadHandshake,
    DialFailed,
    Late,
    LinkLost,
    PathError,
    TooLarge,
)
from p2pswarm.base.ids import Contact
from p2pswarm.net.rpc.base import Priority, Stream

# bulk


@contract
async def test_bulk_bytes_arrive_both_ways(bed: Bed) -> None:
    a, b = await pair(bed)
    data = bytes(range(256)) * (BULK_BYTES // 256 + 1)

    async def mirror(stream: Stream, _ask: Ask) -> None:
        room = memoryview(bytearray(BULK_BYTES))
        arrival = stream.expect(room)
        await stream.send(Room(arrival.transfer))
        await arrival.wait()
        grant = await stream.receive()
        assert isinstance(grant, Room)
        await stream.send_bulk(grant.transfer, room, Priority.STATE)

    b.serve_stream(Ask, mirror)
    room = bytearray(BULK_BYTES)
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
        grant = await stream.receive()
        assert isinstance(grant, Room)
        await stream.send_bulk(grant.transfer, memoryview(data)[:BULK_BYTES], Priority.TENSOR)
        arrival = stream.expect(memoryview(room))
        await stream.send(Room(arrival.transfer))
        await arrival.wait()

    assert bytes(room) == data[:BULK_BYTES]


@contract
async def test_refusal_ends_the_wait_for_bulk_bytes(bed: Bed) -> None:
    """A handler that fails sends no more: whoever waits for its bytes learns why."""
    a, b = await pair(bed)

    async def fail(_stream: Stream, _ask: Ask) -> None:
        raise TooLarge("over the budget")

    b.serve_stream(Ask, fail)
    with pytest.raises(TooLarge):  # noqa: PT012  the block as a whole fails
        async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
            arrival = stream.expect(memoryview(bytearray(1000)))
            try:
                await arrival.wait()
            finally:
                arrival.cancel()


@contract
async def test_late_bytes_of_a_cancelled_arrival_are_thrown_away(bed: Bed) -> None:
    a, b = await pair(bed)

    async def give_back(stream: Stream, _ask: Ask) -> None:
        arrival = stream.expect(memoryview(bytearray(BULK_BYTES)))
        arrival.cancel()
        await stream.send(Room(arrival.transfer))
        room = memoryview(bytearray(10))
        second = stream.expect(room)
        await stream.send(Room(second.transfer))
        await second.wait()
        await stream.send(Block(bytes(room)))

    b.serve_stream(Ask, give_back)
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
        first, second = await stream.receive(), await stream.receive()
        assert isinstance(first, Room)
        assert isinstance(second, Room)
        await stream.send_bulk(first.transfer, memoryview(bytes(BULK_BYTES)), Priority.TENSOR)
        await stream.send_bulk(second.transfer, memoryview(b"0123456789"), Priority.TENSOR)
        assert await stream.receive() == Block(b"0123456789")


# death


@contract
async def test_death_of_the_peer_ends_what_waits_for_it(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_unary(Ask, slow.answer)
    b.serve_stream(Ask, slow.serve_stream)

    async def ask() -> None:
        async with a.open_stream(b.contact, Ask(0), None) as stream:
            await stream.receive()

    call = asyncio.ensure_future(a.call(b.contact, Ask(1), LONG_S))
    talk = asyncio.ensure_future(ask())
    await slow.started.wait()
    await bed.kill(b)

    with pytest.raises((LinkLost, Late)):
        await call
    with pytest.raises(PathError):
        await talk


@contract
async def test_nobody_can_be_reached_where_nobody_listens(bed: Bed) -> None:
    a, b = await pair(bed)
    await bed.kill(b)

    with pytest.raises((DialFailed, Late)):
        await a.call(b.contact, Ask(1), LONG_S)
    with pytest.raises((DialFailed, Late)):
        async with a.open_stream(b.contact, Ask(1), LONG_S):
            pass


@contract
async def test_stranger_at_the_address_is_not_the_peer_we_want(bed: Bed) -> None:
    a, b = await pair(bed)
    c = await bed.peer()

    with pytest.raises(BadHandshake):
        await a.call(Contact(c.contact.peer, b.contact.address), Ask(1), LONG_S)


@contract
async def test_lost_caller_is_lost_to_the_handler_that_reads(bed: Bed) -> None:
    a, b = await pair(bed)
    reader = Handler()
    b.serve_stream(Ask, reader.read)

    async def ask() -> None:
        async with a.open_stream(b.contact, Ask(0), None) as stream:
            await stream.receive()

    asking = asyncio.ensure_future(ask())
    await reader.started.wait()
    await bed.kill(a)
    await reader.ended.wait()

    assert isinstance(reader.how, LinkLost)
    asking.cancel()
    with pytest.raises((asyncio.CancelledError, LinkLost)):
        await asking
