"""Endpoints that meet strangers, garbage, stallers and nobody: one error or one line each."""

import asyncio
import logging
import os
import threading
from contextlib import AsyncExitStack, suppress

import pytest
from net.crypto.harness import with_short_key
from net.link.harness import (
    LOOPBACK,
    PATIENCE_S,
    EchoEnd,
    End,
    call,
    contact_of,
    linked,
    listening,
    raw_connection,
    stranger,
    transfer,
)

from p2pswarm.base.errors import BadHandshake, Busy, DialFailed, LinkLost, Unusable
from p2pswarm.base.ids import Address, Contact
from p2pswarm.net.cards.card import Card, CardFlags
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.crypto.handshake import HELLO_BYTES, Handshake, Hello, StaticKey
from p2pswarm.net.crypto.identity import Identity
from p2pswarm.net.crypto.noise_xx import NoiseXX, Role
from p2pswarm.net.crypto.suite import Suite
from p2pswarm.net.endpoint.endpoint import Endpoint
from p2pswarm.net.endpoint.link_io import Link
from p2pswarm.net.endpoint.link_request import JOIN, BulkJoin
from p2pswarm.net.guard.connection_limits import PEER_LINKS_MAX
from p2pswarm.net.link.events import StreamOpened
from p2pswarm.net.link.session import Introduction
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.wire.message import encode


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

    assert [record.message for record in caplog.records if "refused" in record.message]


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


@pytest.mark.parametrize(
    ("greeting", "hang_up", "error", "why"),
    [
        (b"SSH-2.0-OpenSSH_9.6\r\n", True, BadHandshake, "."),
        (
            b"PSW1" + bytes(17),
            False,
            BadHandshake,
            "speaks version 1, we 2; install the same release",
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
    b"PSW2" + bytes(1000),
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


async def test_who_stalls_in_the_handshake_is_hung_up_on():
    async with EchoEnd(handshake_s=0.1) as acceptor:
        await listening(acceptor)
        reader, writer = await raw_connection(acceptor)
        writer.write(b"PSW2")

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


async def test_a_crowd_of_empty_connections_displaces_nobody_who_awaits_an_answer():
    """An honest peer is a round trip away: its own host opens 300 connections meanwhile."""
    async with EchoEnd() as acceptor:
        await listening(acceptor)
        reader, writer = await raw_connection(acceptor)
        hello = Hello(Suite.AES_GCM, TransportConfig().network_id)
        identity = Identity.generate()
        static = StaticKey(identity, b"s" * 32)
        card = Card.make(identity, 0, (), flags=CardFlags.CLIENT).data
        introduction = encode(Introduction(b"i" * 16, 0, "127.0.0.1", card))
        side = Handshake(Role.INITIATOR, hello, static, b"e" * 32, introduction)
        writer.writelines(side.data_to_send())
        answer = await reader.readexactly(2)
        answer += await reader.readexactly(int.from_bytes(answer))
        crowd = [await raw_connection(acceptor) for _ in range(300)]

        side.receive(answer)
        writer.writelines(side.data_to_send())

        assert await reader.read(1), "the records of a link"
        for _, each in [*crowd, (reader, writer)]:
            each.close()


async def test_idle_links_of_many_identities_make_way_for_a_newcomer():
    async with AsyncExitStack() as stack, EchoEnd(links_max=3) as acceptor:
        await listening(acceptor)
        crowd = [await stack.enter_async_context(End()) for _ in range(3)]
        for each in crowd:
            await call(each, acceptor)

        newcomer = await stack.enter_async_context(End())

        assert await call(newcomer, acceptor) == b"hello"
        assert "closed" in str(await crowd[0].loss())
        assert await call(crowd[2], acceptor) == b"hello"


async def test_one_identity_holds_a_few_links_however_many_it_opens():
    """It leaves none of them, and shows one incarnation on all."""
    async with AsyncExitStack() as stack, EchoEnd() as acceptor:
        await listening(acceptor)
        identity = Identity.generate()
        first = await stack.enter_async_context(End(identity))
        ends = [first]
        for _ in range(PEER_LINKS_MAX + 3):
            end = await stack.enter_async_context(End(identity))
            end._handshaker.incarnation = first._handshaker.incarnation
            ends.append(end)
        for end in ends:
            (await end.link(acceptor.contact)).open(b"never ends", ended=False)

        lost = [await end.loss() for end in ends[: len(ends) - PEER_LINKS_MAX]]

        assert len(lost) == len(ends) - PEER_LINKS_MAX
        assert await call(ends[-1], acceptor) == b"hello"


async def test_bulk_connections_that_nobody_asked_for_cost_no_threads():
    async with linked(bulk_connections=16) as (_, acceptor, link, back):
        before = threading.active_count()
        link._want_bulk()
        while back.stats.bulk_connections < 16:
            await call_again(acceptor, link)

        assert threading.active_count() == before


async def call_again(acceptor: End, link: Link) -> None:
    link.open(b"hello", ended=True)
    await acceptor.event(StreamOpened)


async def test_a_replayed_join_is_refused():
    """Somebody on the way repeats the first bytes of a bulk connection."""
    async with linked() as (_, acceptor, link, back):
        await transfer(link, back, b"x")
        reader, writer = await raw_connection(acceptor)
        exporter = link.session.exporter
        writer.write(BulkJoin.make(JOIN, exporter, 0, os.urandom(16)).raw)

        assert await reader.read() == b""
        writer.close()
        assert await transfer(link, back, b"y") == b"y"


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


def framed(message: bytes) -> bytes:
    return len(message).to_bytes(2) + message


async def test_a_listener_that_shows_a_short_key_is_a_bad_handshake_for_its_dialler():
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter):
        hello = await reader.readexactly(HELLO_BYTES)
        first = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        side = NoiseXX(Role.RESPONDER, Suite.AES_GCM, b"s" * 32, b"e" * 32, hello)
        side.read(first)
        writer.write(framed(with_short_key(side, 4)))
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, End() as dialler:
        contact = Contact(None, Address(*server.sockets[0].getsockname()))

        with pytest.raises(BadHandshake, match="not authentic"):
            await dialler.link(contact)


async def test_a_dialler_that_shows_a_short_key_is_refused_with_one_line(caplog):
    caplog.set_level(logging.INFO)
    async with EchoEnd() as acceptor:
        await listening(acceptor)
        reader, writer = await raw_connection(acceptor)
        hello = Hello(Suite.AES_GCM, TransportConfig().network_id).raw
        side = NoiseXX(Role.INITIATOR, Suite.AES_GCM, b"s" * 32, b"e" * 32, hello)
        writer.write(hello + framed(side.write(b"")))
        side.read(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
        writer.write(framed(with_short_key(side, 4)))

        assert await reader.read() == b""
        writer.close()
    assert [record.exc_info for record in caplog.records] == [None]


class BrokenNet(SocketNet):
    """A network with a bug."""

    async def dial(self, to: Address):
        raise ZeroDivisionError(str(to))


async def test_a_bug_in_a_dial_is_logged_and_an_error_for_the_caller(caplog):
    """A caller that was told of a cancellation that nobody asked for would go silent."""
    async with Endpoint(Identity.generate(), BrokenNet(), TransportConfig(), os.urandom) as dialler:
        with pytest.raises(DialFailed, match="internal error"):
            await dialler.link(Contact(None, Address("192.0.2.1", 4001)))

    assert [record.exc_info is not None for record in caplog.records] == [True]


async def test_dials_under_way_are_bounded():
    async with stranger(b"", hang_up=False) as contact, End(dials_max=1) as dialler:
        dialling = asyncio.create_task(dialler.link(contact))
        await asyncio.sleep(0)

        with pytest.raises(Busy, match="1 dials are under way"):
            await dialler.link(Contact(None, Address("192.0.2.1", 1)))

        await dialler.close()
        await asyncio.wait([dialling])
