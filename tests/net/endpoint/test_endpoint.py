"""Endpoints over real sockets: links come up once, carry, end, and leave nothing behind."""

import asyncio
import logging
import threading
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from net.link.harness import (
    LOOPBACK,
    PATIENCE_S,
    EchoEnd,
    End,
    call,
    contact_of,
    linked,
    listening,
    road,
    transfer,
)

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.link.events import CreditGained, StreamData, StreamOpened
from p2pswarm.net.os.base import Connection
from p2pswarm.net.os.sockets import SocketNet


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


class HangsOnce(SocketNet):
    """A network whose first dial never ends, as where a router drops what it does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.dialled = asyncio.Event()

    async def dial(self, to: Address, from_port: int = 0) -> Connection:
        if not self.dialled.is_set():
            self.dialled.set()
            await asyncio.Event().wait()
        return await super().dial(to, from_port)


async def test_a_dial_that_hangs_gives_nobody_the_peers_own_link_when_that_has_ended():
    net = HangsOnce()
    async with End(net=net) as behind, EchoEnd() as peer:
        await listening(behind)
        await listening(peer)
        waiting = asyncio.create_task(behind.link(peer.contact))
        await net.dialled.wait()
        theirs = await peer.link(behind.contact)
        first = await waiting
        theirs.close()
        await behind.loss()

        async with asyncio.timeout(PATIENCE_S):
            again = await behind.link(peer.contact)

        assert again is not first
        assert not again.over


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


async def test_a_peer_that_breaks_the_rules_loses_its_link(caplog):
    async with linked() as (dialler, acceptor, link, _):
        link._send(link.records.seal(b"garbage", 0.0))

        assert "frame header" in str(await acceptor.loss())
        assert isinstance(await dialler.loss(), LinkLost)
        assert len([r for r in caplog.records if r.levelno >= logging.WARNING]) == 1
        assert acceptor.links() == ()
        with pytest.raises(LinkLost):
            link.open(b"x", ended=True)


async def test_messages_far_over_a_window_arrive_in_order():
    """Five times what a stream may have under way, taken one by one."""
    async with linked() as (dialler, acceptor, link, back):
        acceptor.seen.clear()
        messages = [bytes([n]) * 60_000 for n in range(22)]
        stream = link.open(messages[0], ended=False)
        opened = await acceptor.event(StreamOpened)
        back.consume(stream, len(opened.data))

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
            back.consume(stream, len(event.data))
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

    # less than before: garbage of another test was closed meanwhile
    assert all(now <= then for now, then in zip(held(), before, strict=True))


async def test_a_closed_listener_accepts_no_more():
    listener = await SocketNet().listen(LOOPBACK)
    listener.close()

    with pytest.raises(LinkLost):
        await listener.accept()
