"""The contract of SEAM 2: streams, the same over every implementation of `Rpc`."""

import asyncio
import contextlib

import pytest
from contract.harness import (
    LONG_S,
    SOON_S,
    Ask,
    Bed,
    Block,
    Handler,
    Reply,
    contract,
    double,
    pair,
)

from p2pswarm.base.errors import (
    Busy,
    Late,
    NoRoute,
    Refused,
)
from p2pswarm.net.rpc.base import Stream


@contract
async def test_exchange_carries_messages_both_ways_in_order(bed: Bed) -> None:
    a, b = await pair(bed)

    async def echo(stream: Stream, opening: Ask) -> None:
        assert stream.peer == a.contact.peer
        await stream.send(Reply(opening.number))
        while (got := await stream.receive()) is not None:
            assert isinstance(got, Ask)
            await stream.send(Reply(got.number))

    b.serve_stream(Ask, echo)
    async with a.open_stream(b.contact, Ask(100), LONG_S) as stream:
        assert stream.peer == b.contact.peer
        for i in range(50):
            await stream.send(Ask(i))
        replies = [await stream.receive() for _ in range(51)]

    assert replies == [Reply(100), *(Reply(i) for i in range(50))]


@contract
async def test_end_of_the_handler_is_a_good_end(bed: Bed) -> None:
    a, b = await pair(bed)

    async def brief(stream: Stream, _ask: Ask) -> None:
        await stream.send(Reply(1))

    b.serve_stream(Ask, brief)
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
        assert await stream.receive() == Reply(1)
        assert await stream.receive() is None
        assert await stream.receive() is None
        with pytest.raises(Refused):
            await stream.send(Ask(1))


@contract
async def test_end_of_the_block_is_a_good_end(bed: Bed) -> None:
    a, b = await pair(bed)
    reader = Handler()
    b.serve_stream(Ask, reader.read)

    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
        await stream.send(Ask(1))
    await reader.ended.wait()

    assert reader.how is None


@contract
async def test_handler_may_go_on_when_the_caller_has_left(bed: Bed) -> None:
    """What it still sends is thrown away, however much, and does not hold it up."""
    a, b = await pair(bed)
    done = asyncio.Event()

    async def talkative(stream: Stream, _ask: Ask) -> None:
        assert await stream.receive() is None
        for _ in range(100):
            await stream.send(Block(b"x" * 50_000))
        done.set()

    b.serve_stream(Ask, talkative)
    async with a.open_stream(b.contact, Ask(0), LONG_S):
        pass

    await done.wait()


@contract
async def test_error_of_the_handler_ends_the_exchange_as_its_class(bed: Bed) -> None:
    a, b = await pair(bed)

    async def fail(stream: Stream, _ask: Ask) -> None:
        await stream.send(Reply(1))
        raise Busy("no more", retry_after_s=2.0)

    b.serve_stream(Ask, fail)
    with pytest.raises(Busy, match="no more") as raised:  # noqa: PT012  the block as a whole fails
        async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
            assert await stream.receive() == Reply(1)
            await stream.receive()

    assert raised.value.retry_after_s == 2.0


@contract
async def test_error_in_the_block_reaches_the_handler_as_its_class(bed: Bed) -> None:
    a, b = await pair(bed)
    reader = Handler()
    b.serve_stream(Ask, reader.read)

    with pytest.raises(NoRoute):  # noqa: PT012  the block as a whole fails
        async with a.open_stream(b.contact, Ask(0), LONG_S):
            await reader.started.wait()
            raise NoRoute("changed my mind")
    await reader.ended.wait()

    assert isinstance(reader.how, NoRoute)


@contract
async def test_cancelled_exchange_cancels_a_handler_at_work(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_stream(Ask, slow.serve_stream)

    async def ask() -> None:
        async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
            await stream.receive()

    asking = asyncio.ensure_future(ask())
    await slow.started.wait()
    asking.cancel()
    await slow.ended.wait()

    assert isinstance(slow.how, asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        await asking


@contract
async def test_exchange_past_its_deadline_is_late_on_both_sides(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_stream(Ask, slow.serve_stream)
    b.serve_unary(Ask, double)
    await a.call(b.contact, Ask(1), LONG_S)

    with pytest.raises(Late):
        async with a.open_stream(b.contact, Ask(0), 4 * SOON_S) as stream:
            await stream.receive()
    await slow.ended.wait()

    assert isinstance(slow.how, asyncio.CancelledError)


@contract
async def test_sender_waits_for_a_reader_that_does_not_read(bed: Bed) -> None:
    """Unread messages are bounded by the stream's credit."""
    a, b = await pair(bed)
    go = asyncio.Event()

    async def late_reader(stream: Stream, _ask: Ask) -> None:
        await go.wait()
        count = 0
        while await stream.receive() is not None:
            count += 1
        assert count == 40

    b.serve_stream(Ask, late_reader)
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream:
        sent = 0
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10 * SOON_S):
                for _ in range(40):
                    await stream.send(Block(b"x" * 50_000))
                    sent += 1
        assert 2 <= sent <= 16  # of blocks, so many went out
        go.set()
        for _ in range(40 - sent):
            await stream.send(Block(b"x" * 50_000))


@contract
async def test_exchange_is_not_held_up_by_another_that_nobody_reads(bed: Bed) -> None:
    a, b = await pair(bed)
    stuck = Handler()

    async def echo(stream: Stream, _block: Block) -> None:
        while (got := await stream.receive()) is not None:
            await stream.send(got)

    b.serve_stream(Ask, stuck.serve_stream)
    b.serve_stream(Block, echo)
    async with asyncio.TaskGroup() as group, a.open_stream(b.contact, Ask(0), LONG_S) as first:

        async def flood() -> None:
            while True:
                await first.send(Block(b"x" * 50_000))

        flooding = group.create_task(flood())
        async with a.open_stream(b.contact, Block(b""), LONG_S) as second:
            for i in range(20):
                await second.send(Ask(i))
                assert await second.receive() == Ask(i)
        flooding.cancel()
