"""Tensors between endpoints over real sockets: they arrive, are refused, or their link ends."""

import asyncio
import random
import socket
from contextlib import AsyncExitStack

import pytest
from net.link.harness import PATIENCE_S, EchoEnd, End, call, linked, listening, transfer

from p2pswarm.base.errors import BadChunk, BadFrame, BadRecord, LinkLost
from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketConnection, SocketNet
from p2pswarm.net.wire import frames


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("size", [1, 300_000, 5_000_001])
async def test_tensors_cross_both_ways(connections: int, size: int):
    """From the acceptor too: it asks the dialler to join the bulk connections."""
    async with linked(bulk_connections=connections) as (_, _, link, back):
        data = random.Random(size).randbytes(size)

        assert await transfer(back, link, data) == data
        assert await transfer(link, back, data) == data
        assert back.stats.bulk_sent_bytes == link.stats.bulk_received_bytes == size


class LossyNet(SocketNet):
    """A network on which some of the bulk connections that are dialled break at once."""

    def __init__(self, broken: set[int]) -> None:
        super().__init__()
        self._broken = broken
        self._dials = -1  # the first is the control connection

    async def dial(self, to: Address) -> SocketConnection:
        connection = await super().dial(to)
        self._dials += 1
        if self._dials in self._broken:
            connection._socket().shutdown(socket.SHUT_RDWR)
        return connection


@pytest.mark.parametrize(("connections", "broken"), [(1, {1}), (1, {1, 2}), (2, {1, 3})])
async def test_a_bulk_connection_that_breaks_while_it_joins_costs_no_link(connections, broken):
    """As one does that a flood of strangers displaces."""
    settings = {"bulk_connections": connections, "bulk_connections_far": connections}
    async with linked(LossyNet(broken), **settings) as (dialler, _, link, back):
        assert await transfer(link, back, b"tensor" * 1000) == b"tensor" * 1000
        assert dialler.links() == (link,)


async def test_a_link_to_which_no_bulk_connection_can_be_joined_ends():
    async with linked(LossyNet({1, 2, 3}), bulk_connections_far=1) as (dialler, _, link, back):
        arrival = back.expect(memoryview(bytearray(10)))

        with pytest.raises(LinkLost):
            await link.send_bulk(arrival.transfer, memoryview(bytes(10)), 1)

        assert "no bulk connection can be made" in str(await dialler.loss())


async def test_many_transfers_at_once_each_reach_their_own_room():
    async with linked(bulk_connections=2) as (_, _, link, back):
        datas = [random.Random(n).randbytes(100_000 + n) for n in range(20)]

        arrived = await asyncio.gather(*(transfer(link, back, data) for data in datas))

        assert arrived == datas


async def test_an_empty_transfer_is_there_at_once():
    async with linked() as (_, _, link, back):
        assert await transfer(link, back, b"") == b""


async def test_room_must_be_writable_and_flat():
    async with linked() as (_, _, link, back):
        with pytest.raises(ValueError, match="writable"):
            back.expect(memoryview(b"fixed"))
        with pytest.raises(TypeError, match="contiguous"):
            await link.send_bulk(1, memoryview(bytes(10))[::2], 1)


async def test_a_cancelled_arrival_lets_its_chunks_pass_and_the_link_go_on():
    async with linked() as (_, _, link, back):
        arrival = back.expect(memoryview(bytearray(3_000_000)))
        arrival.cancel()
        await link.send_bulk(arrival.transfer, memoryview(bytes(3_000_000)), 1)

        assert await transfer(link, back, b"next" * 1000) == b"next" * 1000


async def test_bulk_where_nothing_was_granted_costs_path_after_path_and_then_the_link():
    """Nothing proves whose bytes they are: no thread is there to open them."""
    async with linked() as (dialler, acceptor, link, _):
        with pytest.raises(LinkLost):  # the kernel cannot hold so much
            await link.send_bulk(77, memoryview(bytes(100_000_000)), 1)

        assert isinstance(await acceptor.loss(), BadRecord)
        assert isinstance(await dialler.loss(), LinkLost)


async def test_bulk_that_was_not_granted_ends_the_link():
    async with linked() as (dialler, acceptor, link, back):
        await transfer(link, back, b"warm")
        with pytest.raises(LinkLost):
            await link.send_bulk(77, memoryview(bytes(100_000_000)), 1)

        assert isinstance(await acceptor.loss(), BadChunk)
        assert isinstance(await dialler.loss(), LinkLost)


async def test_who_waits_for_bulk_learns_that_the_link_is_lost():
    async with linked() as (_, _, link, back):
        await transfer(link, back, b"warm")
        arrival = back.expect(memoryview(bytearray(1000)))
        waiting = asyncio.create_task(arrival.wait())
        await asyncio.sleep(0)

        link.close()

        with pytest.raises(LinkLost):
            await waiting
        with pytest.raises(LinkLost):
            back.expect(memoryview(bytearray(1)))
        with pytest.raises(LinkLost):
            await back.send_bulk(1, memoryview(b"x"), 1)


async def test_a_send_that_nobody_reads_is_cancelled_and_the_link_goes_on():
    async with linked() as (_, _, link, back):
        room = memoryview(bytearray(64_000_000))
        arrival = back.expect(room)
        sending = asyncio.create_task(link.send_bulk(arrival.transfer, room.toreadonly(), 1))
        await asyncio.sleep(0)
        sending.cancel()
        await asyncio.wait([sending])
        arrival.cancel()

        assert sending.cancelled()
        assert await transfer(link, back, b"next") == b"next"


async def test_who_accepted_may_not_be_asked_to_join_bulk():
    async with linked() as (_, acceptor, link, _):
        link._mux.say(frames.ASK_BULK)
        link.open(b"", ended=True)

        assert isinstance(await acceptor.loss(), BadFrame)


@pytest.mark.parametrize("broken_side", ["sender", "receiver"])
async def test_one_broken_bulk_connection_costs_its_chunks_time_and_not_the_link(broken_side: str):
    settings = {"bulk_connections": 3, "bulk_connections_far": 3}
    async with linked(**settings) as (dialler, acceptor, link, back):
        await transfer(link, back, bytes(1000))
        data = random.Random(1).randbytes(32_000_000)
        room = bytearray(len(data))
        arrival = back.expect(memoryview(room))
        sending = asyncio.create_task(link.send_bulk(arrival.transfer, memoryview(data), 1))
        while back.stats.bulk_received_bytes < 5_000_000:
            await call(dialler, acceptor)
        broken = link if broken_side == "sender" else back
        next(iter(broken._channels._channels.values()))[1].close()

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(sending, arrival.wait())

        assert room == data
        assert back.stats.bulk_received_bytes == len(data) + 1000, "no chunk came twice"
        assert dialler.links() == (link,)


async def test_a_transfer_outlives_all_of_its_bulk_connections():
    async with linked() as (dialler, acceptor, link, back):
        await transfer(link, back, bytes(1000))
        arrival = back.expect(memoryview(room := bytearray(1000)))
        for side in (link, back):
            for _, pipe in side._channels._channels.values():
                pipe.close()

        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(
                link.send_bulk(arrival.transfer, memoryview(b"tensor" * 166 + b"abcd"), 1),
                arrival.wait(),
            )

        assert room == b"tensor" * 166 + b"abcd"
        assert len(dialler.links()) == len(acceptor.links()) == 1


async def test_bulk_connections_that_nobody_asked_for_are_counted_over_all_links():
    """A crowd of one host holds all places; the newcomer's tensor costs the oldest idle link."""
    async with EchoEnd(bulk_joined_max=4) as acceptor, AsyncExitStack() as ends:
        await listening(acceptor)
        crowd = [await ends.enter_async_context(End()) for _ in range(2)]
        for dialler in crowd:
            link = await dialler.link(acceptor.contact)
            for _ in range(2):
                await dialler._joiner.dial_once(link, link.path)
        newcomer = await ends.enter_async_context(End())
        link = await newcomer.link(acceptor.contact)
        await call(newcomer, acceptor)
        back = acceptor.links()[-1]

        assert await transfer(link, back, b"tensor") == b"tensor"

        await crowd[0].loss()
        assert crowd[0].links() == ()
        assert len(crowd[1].links()) == len(newcomer.links()) == 1
