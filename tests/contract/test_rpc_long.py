"""The contract of SEAM 2: messages longer than a frame, the same over every implementation."""

import asyncio
from dataclasses import dataclass
from typing import Annotated

import pytest
from contract.harness import LONG_S, SOON_S, Ask, Bed, Block, Reply, contract, double, pair

from p2pswarm.base.errors import NotServing, Refused
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Stream
from p2pswarm.net.wire.message import LONG_BYTES_MAX, Message, Size, message

FULL = LONG_BYTES_MAX - 16


@message(61011, bytes_max=LONG_BYTES_MAX)
@dataclass(frozen=True, slots=True)
class Book(Message):
    data: Annotated[bytes, Size(LONG_BYTES_MAX)]


@message(61012)
@dataclass(frozen=True, slots=True)
class Page(Message):
    data: Annotated[bytes, Size(61_440)]


def book(number: int, nbytes: int = FULL) -> Book:
    return Book(bytes([number % 256]) * nbytes)


@contract
async def test_long_request_and_long_reply_arrive_as_they_were(bed: Bed) -> None:
    a, b = await pair(bed)

    async def later(_peer: PeerId, asked: Book) -> Book:
        await asyncio.sleep(SOON_S)
        return Book(asked.data[::-1])

    b.serve_unary(Book, later)
    sent = Book(bytes(range(256)) * 450)
    assert await a.call(b.contact, sent, LONG_S) == Book(sent.data[::-1])

    b.serve_unary(Book, lambda _peer, asked: asked)  # a plain function, too
    assert await a.call(b.contact, book(1), LONG_S) == book(1)
    assert await a.call(b.contact, book(2, 3), LONG_S) == book(2, 3)


@contract
async def test_small_request_may_have_a_long_reply(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, lambda _peer, ask: book(ask.number))

    replies = await asyncio.gather(*(a.call(b.contact, Ask(i), LONG_S) for i in range(20)))

    assert replies == [book(i) for i in range(20)]


@contract
async def test_long_requests_go_on_one_after_another(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Book, lambda _peer, asked: Reply(asked.data[0]))

    for i in range(60):  # more than any window has room for
        assert await a.call(b.contact, book(i), LONG_S) == Reply(i)


@contract
async def test_long_messages_of_a_stream_come_in_order_among_small_ones(bed: Bed) -> None:
    a, b = await pair(bed)

    async def echo(stream: Stream, _ask: Ask) -> None:
        while (got := await stream.receive()) is not None:
            await stream.send(got)

    b.serve_stream(Ask, echo)
    sent = [m for i in range(12) for m in (book(i, FULL - 999 * i), Ask(i), Block(bytes(50_000)))]
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream, asyncio.TaskGroup() as group:

        async def send() -> None:
            for m in sent:
                await stream.send(m)

        group.create_task(send())
        assert [await stream.receive() for _ in sent] == sent


@contract
async def test_reader_that_comes_late_gets_all_long_messages(bed: Bed) -> None:
    """A long message waits for credit that unread ones hold, and never for its own."""
    a, b = await pair(bed)
    go = asyncio.Event()
    read: list[Message] = []
    done = asyncio.Event()

    async def late_reader(stream: Stream, _ask: Ask) -> None:
        await go.wait()
        while (got := await stream.receive()) is not None:
            read.append(got)
        done.set()

    b.serve_stream(Ask, late_reader)
    sizes = [FULL, 70_000, 120_000, FULL, 1, 61_439, FULL, FULL, 99_999, FULL]
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream, asyncio.TaskGroup() as group:

        async def send() -> None:
            for i, nbytes in enumerate(sizes):
                await stream.send(book(i, nbytes))

        sending = group.create_task(send())
        await asyncio.sleep(10 * SOON_S)
        assert not sending.done()
        go.set()
        await sending
    await done.wait()

    assert read == [book(i, nbytes) for i, nbytes in enumerate(sizes)]


@contract
async def test_tasks_that_send_long_messages_on_one_stream_do_not_mix_their_parts(
    bed: Bed,
) -> None:
    a, b = await pair(bed)
    read: list[int] = []
    done = asyncio.Event()

    async def reader(stream: Stream, _ask: Ask) -> None:
        while (got := await stream.receive()) is not None:
            assert isinstance(got, Book)
            assert set(got.data) == {got.data[0]}
            read.append(got.data[0])
        done.set()

    b.serve_stream(Ask, reader)
    async with a.open_stream(b.contact, Ask(0), LONG_S) as stream, asyncio.TaskGroup() as group:
        for i in range(8):
            group.create_task(stream.send(book(i)))
    await done.wait()

    assert sorted(read) == list(range(8))


@contract
async def test_long_request_that_nobody_serves_is_not_served(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)

    with pytest.raises(NotServing, match="Book"):
        await a.call(b.contact, book(1), LONG_S)
    assert await a.call(b.contact, Ask(1), LONG_S) == Reply(2)


@contract
async def test_small_calls_do_not_wait_for_long_ones(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Book, lambda _peer, asked: asked)
    b.serve_unary(Ask, double)

    async with asyncio.TaskGroup() as group:
        for i in range(4):
            group.create_task(a.call(b.contact, book(i), LONG_S))
        assert await a.call(b.contact, Ask(4), LONG_S) == Reply(8)


@contract
async def test_what_may_not_be_long_is_our_own_mistake_to_send(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, lambda _peer, _ask: Page(bytes(61_440)))
    b.serve_unary(Page, lambda _peer, _page: Reply(0))

    async def idle(_stream: Stream, _opening: Message) -> None:
        await asyncio.sleep(LONG_S)

    b.serve_stream(Book, idle)
    b.serve_stream(Ask, idle)
    with pytest.raises(ValueError, match="61440"):
        await a.call(b.contact, Page(bytes(61_440)), LONG_S)
    with pytest.raises(Refused, match="internal error"):
        await a.call(b.contact, Ask(1), LONG_S)
    with pytest.raises(ValueError, match="61440"):
        async with a.open_stream(b.contact, book(1), LONG_S):
            pass
    async with a.open_stream(b.contact, Ask(1), LONG_S) as stream:
        with pytest.raises(ValueError, match="61440"):
            await stream.send(Page(bytes(61_440)))
        with pytest.raises(ValueError, match="over"):
            await stream.send(book(1, LONG_BYTES_MAX))
