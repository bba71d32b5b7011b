"""Endpoints over real sockets: links come up once, carry, end, and leave nothing behind."""

import asyncio
import logging
import os
import random
import threading
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest
from transport.harness import LOOPBACK, PATIENCE_S, EchoEnd, End, contact_of, listening, transfer

from p2pswarm.crypto.identity import Identity
from p2pswarm.errors import BadChunk, BadFrame, BadHandshake, DialFailed, LinkLost, Unusable
from p2pswarm.ids import Address, Contact
from p2pswarm.net.sockets import SocketNet
from p2pswarm.transport.bulk.join import BulkJoin
from p2pswarm.transport.endpoint import Endpoint
from p2pswarm.transport.events import CreditGained, StreamData, StreamOpened


@asynccontextmanager
async def linked(**settings):
    """Two ends and the link between them, seen from both: dialler first."""
    async with End(**settings) as dialler, EchoEnd(**settings) as acceptor:
        await listening(acceptor)
        link = await dialler.link(acceptor.contact)
        await call(dialler, acceptor)
        yield dialler, acceptor, link, acceptor.links()[0]


async def call(source: End, target: Endpoint, data: bytes = b"hello") -> bytes:
    link = await source.link(target.contact)
    link.open(data, ended=True)
    reply = await source.event(StreamData)
    return reply.data


async def test_a_stream_crosses_and_its_answer_comes_back():
    async with linked() as (dialler, acceptor, link, back):
        assert await call(dialler, acceptor, b"x" * 5000) == b"x" * 5000
        assert link.peer == acceptor.peer_id
        assert back.peer == dialler.peer_id
        assert link.stats.control_sent_bytes > 5000


async def test_many_callers_of_one_peer_share_one_dial():
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)

        links = await asyncio.gather(*(dialler.link(acceptor.contact) for _ in range(20)))

        assert len(set(links)) == 1
        assert await dialler.link(contact_of(acceptor)) is links[0]


async def test_a_dial_outlives_the_caller_that_began_it():
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)
        first = asyncio.create_task(dialler.link(acceptor.contact))
        second = asyncio.create_task(dialler.link(acceptor.contact))
        await asyncio.sleep(0)
        first.cancel()

        assert (await second).peer == acceptor.peer_id


async def test_the_acceptor_learns_where_to_dial_its_peer():
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)
        await listening(dialler)
        await call(dialler, acceptor)

        assert acceptor.links()[0].contact == dialler.contact


async def test_an_end_bound_to_every_address_learns_its_own_from_its_peers():
    async with End() as dialler, EchoEnd() as acceptor:
        at = await acceptor.listen(Address("0.0.0.0", 0))
        await dialler.link(Contact(None, Address("127.0.0.1", at.port)))

        assert acceptor.contact == Contact(acceptor.peer_id, Address("127.0.0.1", at.port))
        assert dialler.contact.address.port == 0


@pytest.mark.parametrize("attempt", range(5))
async def test_two_ends_that_dial_each_other_at_once_keep_one_link_and_lose_no_call(attempt: int):
    async with EchoEnd() as one, EchoEnd() as other:
        await listening(one)
        await listening(other)

        async def use(source: End, target: End):
            for number in range(10):
                text = f"{attempt} {number}".encode()
                assert await call(source, target, text) == text

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(use(one, other))
            group.create_task(use(other, one))

        assert len(one.links()) == len(other.links()) == 1
        assert await call(one, other) == await call(other, one) == b"hello"
        small = min(one, other, key=lambda end: end.peer_id)
        assert small.links()[0].session.dialled


async def test_a_peer_that_was_started_again_replaces_its_former_self():
    identity = Identity.generate()
    async with EchoEnd() as stays:
        await listening(stays)
        async with AsyncExitStack() as stack:
            first = await stack.enter_async_context(End(identity))
            await call(first, stays)
            former = stays.links()[0]

            async with End(identity) as second:
                await call(second, stays)

                assert isinstance(await stays.loss(), LinkLost)
                assert former not in stays.links()


async def test_who_listens_is_not_whom_we_asked_for():
    stranger = Identity.generate().peer_id
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)

        with pytest.raises(BadHandshake, match="expected peer"):
            await dialler.link(contact_of(acceptor, stranger))


async def test_a_peer_of_another_network_is_turned_away_and_told_why(caplog):
    caplog.set_level(logging.INFO, "p2pswarm")
    async with End(network_id=b"n" * 16) as dialler, EchoEnd() as acceptor:
        await listening(acceptor)

        with pytest.raises(BadHandshake, match="another network"):
            await dialler.link(acceptor.contact)

    assert [record.message for record in caplog.records if "turned away" in record.message]


async def test_dialling_ourselves_is_refused():
    async with EchoEnd() as end:
        await listening(end)

        with pytest.raises(DialFailed, match="ourselves"):
            await end.link(contact_of(end))


async def test_nobody_there_is_a_failed_dial():
    async with End() as dialler, EchoEnd() as gone:
        await listening(gone)
        contact = gone.contact
        await gone.close()

        with pytest.raises(DialFailed, match="refused"):
            await dialler.link(contact)


async def test_a_port_in_use_is_the_users_to_mend():
    async with End() as one, End() as other:
        at = await one.listen(LOOPBACK)

        with pytest.raises(Unusable, match="in use"):
            await other.listen(at)


@asynccontextmanager
async def stranger(greeting: bytes, *, hang_up: bool):
    """A server that is no peer: says `greeting`, then hangs up or stays silent."""
    gone = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        writer.write(greeting)
        await reader.read(1)
        if not hang_up:
            await gone.wait()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Contact(None, Address(*server.sockets[0].getsockname()))
    finally:
        gone.set()
        server.close()


@pytest.mark.parametrize(
    ("greeting", "hang_up", "error", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", True, BadHandshake, "."),
        (
            b"PSW2" + bytes(17),
            False,
            BadHandshake,
            "speaks version 2, we 1; install the same release",
        ),
        (b"", True, DialFailed, "closed"),
        (b"", False, BadHandshake, "stalled"),
        (b"\0\x60" + bytes(96), False, BadHandshake, "."),
    ],
)
async def test_a_server_that_is_no_peer_is_one_clear_error(greeting, hang_up, error, why):
    async with stranger(greeting, hang_up=hang_up) as contact, End(handshake_s=0.3) as dialler:
        with pytest.raises(error, match=why) as caught:
            await dialler.link(contact)

        assert "\n" not in str(caught.value)
        assert dialler.links() == ()


GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 10,
    b"PSW1" + bytes(1000),
    b"PSW2" + bytes(100),
    b"PSB1" + bytes(100),
    bytes(100),
]


@pytest.mark.parametrize("garbage", GARBAGE)
async def test_garbage_is_hung_up_on_with_one_line_at_most(garbage: bytes, caplog):
    caplog.set_level(logging.INFO)
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)
        reader, writer = await raw_connection(acceptor)
        writer.write(garbage)
        with suppress(ConnectionResetError):
            async with asyncio.timeout(PATIENCE_S):
                while await reader.read(100):
                    pass
        writer.close()

        assert await call(dialler, acceptor) == b"hello"
    assert len(caplog.records) <= 1
    assert all(record.exc_info is None for record in caplog.records)


async def raw_connection(end: Endpoint):
    at = end.contact.address
    return await asyncio.open_connection(at.host, at.port)


async def test_who_stalls_in_the_handshake_is_hung_up_on():
    async with EchoEnd(handshake_s=0.1) as acceptor:
        await listening(acceptor)
        reader, writer = await raw_connection(acceptor)
        writer.write(b"PSW1")

        async with asyncio.timeout(PATIENCE_S):
            assert await reader.read() == b""
        writer.close()


async def test_a_crowd_of_stallers_keeps_no_honest_peer_out():
    async with End() as dialler, EchoEnd() as acceptor:
        await listening(acceptor)
        crowd = [await raw_connection(acceptor) for _ in range(100)]

        assert await call(dialler, acceptor) == b"hello"

        for _, writer in crowd:
            writer.close()


async def test_a_peer_that_breaks_the_rules_loses_its_link(caplog):
    async with linked() as (dialler, acceptor, link, _):
        link._pipe.send(b"\0\0\0\x20" + bytes(32))

        assert "authentic" in str(await acceptor.loss())
        assert isinstance(await dialler.loss(), LinkLost)
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        assert acceptor.links() == ()
        with pytest.raises(LinkLost):
            link.open(b"x", ended=True)


@pytest.mark.parametrize("connections", [1, 4])
@pytest.mark.parametrize("size", [1, 300_000, 5_000_001])
async def test_tensors_cross_both_ways(connections: int, size: int):
    """From the acceptor too: it asks the dialler to join the bulk connections."""
    async with linked(bulk_connections=connections) as (_, _, link, back):
        data = random.Random(size).randbytes(size)

        assert await transfer(back, link, data) == data
        assert await transfer(link, back, data) == data
        assert back.stats.bulk_sent_bytes == link.stats.bulk_received_bytes == size


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


async def test_bulk_that_was_not_granted_ends_the_link():
    async with linked() as (dialler, acceptor, link, _):
        with pytest.raises(LinkLost):  # the kernel cannot hold so much
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
        link._mux.ask_for_bulk()
        link.open(b"", ended=True)

        assert isinstance(await acceptor.loss(), BadFrame)


async def test_a_replayed_join_is_refused():
    """Somebody on the way repeats the first bytes of a bulk connection."""
    async with linked() as (_, acceptor, link, back):
        await transfer(link, back, b"x")
        reader, writer = await raw_connection(acceptor)
        exporter = link.session.exporter
        writer.write(BulkJoin.make(exporter, 0, os.urandom(16)).raw)

        assert await reader.read() == b""
        writer.close()
        assert await transfer(link, back, b"y") == b"y"


async def test_messages_far_over_a_window_arrive_in_order():
    """Five times what a stream may have under way, taken one by one."""
    async with linked() as (dialler, acceptor, link, back):
        acceptor.seen.clear()
        messages = [bytes([n]) * 60_000 for n in range(22)]
        stream = link.open(messages[0], ended=False)
        opened = await acceptor.event(StreamOpened)
        back.consumed(stream, len(opened.data))

        async def send():
            for number, message in enumerate(messages[1:], 2):
                while not link.writable(stream):
                    await dialler.event(CreditGained)
                link.send(stream, message, ended=number == len(messages))

        sending = asyncio.create_task(send())
        received = [opened.data]
        while len(received) < len(messages):
            event = await acceptor.event(StreamData)
            received.append(event.data)
            back.consumed(stream, len(event.data))
        await sending

        assert received == messages


async def test_a_link_that_nobody_answers_on_is_given_up():
    """The road between goes silent without a word: only pings can tell."""
    async with (
        EchoEnd(idle_ping_s=0.05, dead_after_s=0.2) as acceptor,
        End(idle_ping_s=0.05, dead_after_s=0.2) as dialler,
    ):
        await listening(acceptor)
        async with road(acceptor.contact) as (contact, frozen):
            await dialler.link(contact)
            link = dialler.links()[0]
            link.open(b"hello", ended=True)
            await dialler.event(StreamData)
            frozen.set()

            assert "silent" in str(await dialler.loss())
            assert "silent" in str(await acceptor.loss())


@asynccontextmanager
async def road(to: Contact):
    """A relay on the way that can stop to carry."""
    frozen = asyncio.Event()
    pumps: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        while not frozen.is_set() and (data := await reader.read(65536)):
            if not frozen.is_set():
                writer.write(data)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        there, back = await asyncio.open_connection(to.address.host, to.address.port)
        writers.extend([writer, back])
        pumps.append(asyncio.create_task(carry(reader, back)))
        pumps.append(asyncio.create_task(carry(there, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield Contact(to.peer, Address(*server.sockets[0].getsockname())), frozen
    finally:
        for task in pumps:
            task.cancel()
        for writer in writers:
            writer.close()
        server.close()


async def test_cycles_of_links_leave_no_task_thread_or_file_behind():
    async def cycle():
        async with linked(bulk_connections=2) as (_, _, link, back):
            assert await transfer(link, back, b"x" * 50_000) == b"x" * 50_000

    def held() -> tuple[int, int, int]:
        return (
            len(asyncio.all_tasks()),
            threading.active_count(),
            len(list(Path("/proc/self/fd").iterdir())),
        )

    await cycle()
    before = held()

    for _ in range(30):
        await cycle()

    assert held() == before


async def test_closing_ends_a_dial_under_way():
    async with stranger(b"", hang_up=False) as contact:
        dialler = End()
        dialling = asyncio.create_task(dialler.link(contact))
        await asyncio.sleep(0)

        await dialler.close()

        await asyncio.wait([dialling])
        assert dialling.cancelled() or isinstance(dialling.exception(), LinkLost)
        with pytest.raises(LinkLost, match="closed"):
            await dialler.link(contact)


async def test_a_closed_listener_accepts_no_more():
    listener = await SocketNet().listen(LOOPBACK)
    listener.close()

    with pytest.raises(LinkLost):
        await listener.accept()


async def test_last_words_are_heard_although_a_bulk_connection_ended_before_them():
    """When a peer leaves, a channel may see the end before the loop has read the rest."""
    async with linked() as (dialler, _, link, back):
        link._bulk_lost(LinkLost("the peer closed it"))
        back.open(b"last words", ended=True)
        back.close()

        heard = await dialler.event(StreamOpened)

        assert heard.data == b"last words"
        assert isinstance(await dialler.loss(), LinkLost)
