"""The contract of SEAM 2: calls, the same over every implementation of `Rpc`."""

import asyncio

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
    BadMessage,
    Busy,
    Late,
    LinkLost,
    NoRoute,
    NotServing,
    Refused,
    RunEnded,
    SwarmError,
    TooLarge,
)
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.endpoint.link_table import ProvenAddress
from p2pswarm.net.guard.connection_limits import HandlerLimits


@contract
async def test_call_returns_the_reply(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)

    assert await a.call(b.contact, Ask(21), LONG_S) == Reply(42)


@contract
async def test_a_link_shows_where_a_peer_is_and_to_its_dialler_that_it_listens_there(
    bed: Bed,
) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)
    await a.call(b.contact, Ask(21), LONG_S)

    for near, far, reach in ((a, b, ProvenAddress.DIALLED), (b, a, ProvenAddress.HOST)):
        assert near.reach(far.contact) is reach
        elsewhere = Contact(far.contact.peer, Address("10.9.9.9", 9))
        assert near.reach(elsewhere) is ProvenAddress.CLAIMED
        assert near.reach(Contact(None, far.contact.address)) is ProvenAddress.CLAIMED


@contract
async def test_a_link_brings_the_cards_of_both_sides(bed: Bed) -> None:
    a, b = await pair(bed)
    b.serve_unary(Ask, double)
    await a.call(b.contact, Ask(21), LONG_S)

    for near, far in ((a, b), (b, a)):
        assert far.contact.peer is not None
        card = near.cards.of(far.contact.peer)
        assert card is not None
        assert card.addresses == (far.contact.address,)
        assert near.cards.read(card.data).peer == far.contact.peer
        assert not near.cards.learn(card, "127.0.0.1")  # it is known already
        with pytest.raises(BadMessage):
            near.cards.read(b"no card")


@contract
async def test_who_asks_an_address_who_is_there_dials_it_though_a_link_comes_from_it(
    bed: Bed,
) -> None:
    a, b = await pair(bed)
    a.serve_unary(Ask, double)
    b.serve_unary(Ask, double)
    await a.call(b.contact, Ask(21), LONG_S)

    await b.call(Contact(None, a.contact.address), Ask(1), LONG_S)

    assert b.reach(a.contact) is not ProvenAddress.CLAIMED
    assert await b.call(a.contact, Ask(2), LONG_S) == Reply(4)
    assert await a.call(b.contact, Ask(3), LONG_S) == Reply(6)


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
async def test_a_request_that_a_plain_function_finds_malformed_costs_the_caller_its_link(
    bed: Bed,
) -> None:
    a, b = await pair(bed)

    def refuse(_peer: PeerId, ask: Ask) -> Reply:
        raise BadMessage(f"{ask.number} is no number")

    b.serve_unary(Ask, refuse)
    b.serve_unary(Block, lambda _peer, _block: Reply(1))
    with pytest.raises(LinkLost):
        await a.call(b.contact, Ask(1), LONG_S)

    assert await a.call(b.contact, Block(b""), LONG_S) == Reply(1), "it may dial again"


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
