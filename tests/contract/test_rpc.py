"""The contract of SEAM 2: what every implementation of `Rpc` does alike."""

import asyncio
import contextlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import pytest
from contract.harness import BEDS, Bed, Body

from p2pswarm.errors import (
    BadHandshake,
    BadMessage,
    Busy,
    DialFailed,
    Late,
    LinkLost,
    NoRoute,
    NotServing,
    PathError,
    Refused,
    RunEnded,
    SwarmError,
    TooLarge,
)
from p2pswarm.ids import Contact, PeerId
from p2pswarm.rpc.base import Priority, Rpc, Stream
from p2pswarm.rpc.concurrency_limit import HandlerLimits
from p2pswarm.wire.message import Message, Size, message

LONG_S = 60.0  # no test waits so long; a hang ends the suite instead
SOON_S = 0.05
BULK_BYTES = 3 * 1024 * 1024 + 17


@message(61001)
@dataclass(frozen=True, slots=True)
class Ask(Message):
    number: int
    text: str = ""


@message(61002)
@dataclass(frozen=True, slots=True)
class Reply(Message):
    number: int


@message(61003)
@dataclass(frozen=True, slots=True)
class Block(Message):
    data: Annotated[bytes, Size(60_000)]


@message(61004)
@dataclass(frozen=True, slots=True)
class Room(Message):
    transfer: int


def contract(body: Body) -> Callable[[Bed], None]:
    """A test over every bed."""

    @pytest.mark.parametrize("bed", [pytest.param(make, id=name) for name, make in BEDS.items()])
    def test(bed: Callable[[], Bed]) -> None:
        bed().run(body)

    test.__name__, test.__doc__ = body.__name__, inspect.getdoc(body)
    return test


async def double(_peer: PeerId, ask: Ask) -> Reply:
    return Reply(2 * ask.number)


class Handler:
    """A handler that tells what becomes of it."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.how: BaseException | None = None

    async def answer(self, _peer: PeerId, _ask: Ask) -> Reply:
        await self._hang()
        return Reply(0)

    async def serve_stream(self, _stream: Stream, _ask: Ask) -> None:
        await self._hang()

    async def read(self, stream: Stream, _ask: Ask) -> None:
        self.started.set()
        try:
            while await stream.receive() is not None:
                pass
        except BaseException as error:
            self.how = error
            raise
        finally:
            self.ended.set()

    async def _hang(self) -> None:
        self.started.set()
        try:
            await asyncio.get_running_loop().create_future()
        except BaseException as error:
            self.how = error
            raise
        finally:
            self.ended.set()


async def pair(bed: Bed) -> tuple[Rpc, Rpc]:
    return await bed.peer(), await bed.peer()


# calls


@contract
async def test_call_returns_the_reply(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)

    assert await a.call(b.contact, Ask(21), LONG_S) == Reply(42)


@contract
async def test_plain_function_answers_too(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, lambda _peer, ask: Reply(ask.number + 1))

    assert await a.call(b.contact, Ask(1), LONG_S) == Reply(2)


@contract
async def test_handler_knows_who_asks(bed: Bed) -> None:
    a, b = await pair(bed)
    asked: list[PeerId] = []

    async def note(peer: PeerId, ask: Ask) -> Reply:
        asked.append(peer)
        return Reply(ask.number)

    b.serve_unary(Ask, note)
    await a.call(b.contact, Ask(1), LONG_S)

    assert asked == [a.contact.peer]


@contract
async def test_both_sides_of_a_link_may_call(bed: Bed) -> None:
    a, b = await pair(bed)
    a.serve_unary(Ask, double)
    b.serve_unary(Ask, double)

    assert await a.call(b.contact, Ask(1), LONG_S) == Reply(2)
    assert await b.call(a.contact, Ask(2), LONG_S) == Reply(4)


@contract
async def test_address_alone_is_enough_to_call(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)

    assert await a.call(Contact(None, b.contact.address), Ask(3), LONG_S) == Reply(6)


@contract
async def test_hundred_calls_in_flight_get_their_own_replies(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)

    replies = await asyncio.gather(*(a.call(b.contact, Ask(i), LONG_S) for i in range(100)))

    assert replies == [Reply(2 * i) for i in range(100)]


@contract
async def test_slow_call_does_not_hold_up_a_quick_one(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_unary(Ask, slow.answer)
    b.serve_unary(Block, lambda _peer, _block: Reply(7))

    async with asyncio.TaskGroup() as group:
        hanging = group.create_task(a.call(b.contact, Ask(0), LONG_S))
        await slow.started.wait()
        assert await a.call(b.contact, Block(b"x" * 60_000), LONG_S) == Reply(7)
        hanging.cancel()


@contract
async def test_type_that_nobody_serves_is_not_served(bed: Bed) -> None:
    a, b = await pair(bed)

    with pytest.raises(NotServing, match="Ask"):
        await a.call(b.contact, Ask(1), LONG_S)
    with pytest.raises(NotServing, match="Ask"):
        async with a.open_stream(b.contact, Ask(1), LONG_S) as stream:
            await stream.receive()


@contract
async def test_each_error_of_a_handler_reaches_the_caller_as_its_class(bed: Bed) -> None:
    a, b = await pair(bed)
    errors = (NotServing, TooLarge, Refused, NoRoute, RunEnded, BadMessage, LinkLost, SwarmError)

    async def fail(_peer: PeerId, ask: Ask) -> Reply:
        raise errors[ask.number](f"for reason {ask.number}")

    b.serve_unary(Ask, fail)
    for number, error in enumerate(errors):
        with pytest.raises(error, match=f"for reason {number}") as raised:
            await a.call(b.contact, Ask(number), LONG_S)
        assert type(raised.value) is error


@contract
async def test_busy_tells_when_to_come_again(bed: Bed) -> None:
    a, b = await pair(bed)

    def refuse(_peer: PeerId, _ask: Ask) -> Reply:
        raise Busy("queue full", retry_after_s=1.5)

    b.serve_unary(Ask, refuse)
    with pytest.raises(Busy, match="queue full") as raised:
        await a.call(b.contact, Ask(1), LONG_S)

    assert raised.value.retry_after_s == 1.5


@contract
async def test_bug_in_a_handler_is_told_as_a_refusal_without_detail(bed: Bed) -> None:
    a, b = await pair(bed)

    async def broken(_peer: PeerId, _ask: Ask) -> Reply:
        raise KeyError("our secret")

    b.serve_unary(Ask, broken)
    with pytest.raises(Refused) as raised:
        await a.call(b.contact, Ask(1), LONG_S)

    assert "secret" not in str(raised.value)
    b.serve_unary(Ask, double)
    assert await a.call(b.contact, Ask(1), LONG_S) == Reply(2)


@contract
async def test_too_many_handlers_are_refused_as_busy(bed: Bed) -> None:
    a, b = await bed.peer(), await bed.peer(HandlerLimits(per_peer=2, total=2))
    slow = Handler()
    b.serve_unary(Ask, slow.answer)
    b.serve_unary(Block, lambda _peer, _block: Reply(1))

    async with asyncio.TaskGroup() as group:
        hanging = [group.create_task(a.call(b.contact, Ask(i), LONG_S)) for i in range(2)]
        await slow.started.wait()
        with pytest.raises(Busy):
            await a.call(b.contact, Ask(3), LONG_S)
        assert await a.call(b.contact, Block(b""), LONG_S) == Reply(1)
        for call in hanging:
            call.cancel()


@contract
async def test_call_without_an_answer_is_late_and_its_handler_is_cancelled(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_unary(Ask, slow.answer)
    b.serve_unary(Block, lambda _peer, _block: Reply(1))
    await a.call(b.contact, Block(b""), LONG_S)  # a link is up

    with pytest.raises(Late):
        await a.call(b.contact, Ask(1), 4 * SOON_S)
    await slow.ended.wait()

    assert isinstance(slow.how, asyncio.CancelledError)


@contract
async def test_cancelled_caller_cancels_the_handler(bed: Bed) -> None:
    a, b = await pair(bed)
    slow = Handler()
    b.serve_unary(Ask, slow.answer)

    call = asyncio.ensure_future(a.call(b.contact, Ask(1), LONG_S))
    await slow.started.wait()
    call.cancel()
    await slow.ended.wait()

    assert isinstance(slow.how, asyncio.CancelledError)
    with pytest.raises(asyncio.CancelledError):
        await call


# streams


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
