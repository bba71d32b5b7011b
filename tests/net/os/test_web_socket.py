"""Connections over WebSocket, with a real server and client."""

import asyncio
import logging
import os
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from net.os.harness import certificate_in

from p2pswarm.base.errors import BadHandshake, DialFailed, LinkLost, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.os.web_socket import MESSAGE_BYTES_MAX, WebUpgrade, dialler_of

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0
UPGRADE = (
    b"GET /p2pswarm HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
)


async def at_once(work):
    """Computes what costs time without waiting for a turn."""
    work()


class Port:
    """Takes all that become a WebSocket at one port."""

    def __init__(self, listener, certificate):
        self.web = Address("127.0.0.1", listener.address.port, web="wss" if certificate else "ws")
        self.arrived: asyncio.Queue = asyncio.Queue()
        self.errors: asyncio.Queue = asyncio.Queue()
        self.ends: asyncio.Queue = asyncio.Queue()
        self.words = 0

    def on_word(self):
        self.words += 1

    async def serve(self, listener, upgrade):
        async with asyncio.TaskGroup() as tasks:
            while True:
                tasks.create_task(self._one(await listener.accept(), upgrade))

    async def _one(self, connection, upgrade):
        try:
            async with upgrade.upgraded(connection, self.on_word, at_once) as made:
                self.arrived.put_nowait(made)
        except (LinkLost, BadHandshake) as error:
            self.errors.put_nowait(error)
        finally:
            connection.close()
            self.ends.put_nowait(None)


@asynccontextmanager
async def web_port(certificate=None):
    async with (
        asyncio.timeout(PATIENCE_S),
        WebUpgrade(certificate) as upgrade,
        AsyncExitStack() as undo,
    ):
        listener = await SocketNet().listen(LOOPBACK)
        undo.callback(listener.close)
        port = Port(listener, certificate)
        serving = asyncio.create_task(port.serve(listener, upgrade))
        try:
            yield port
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@asynccontextmanager
async def pair(certificate=None):
    """A dialled connection, the accepted one, and the port."""
    async with web_port(certificate) as port, WebNet(SocketNet()) as net:
        ours = await net.dial(port.web)
        theirs = await port.arrived.get()
        yield ours, theirs, port
        ours.close()
        theirs.close()


async def test_every_byte_arrives_in_order_both_ways():
    there, back = os.urandom(3_000_000), os.urandom(2_000_000)
    async with pair() as (ours, theirs, _):
        got_there, got_back, *_ = await asyncio.gather(
            theirs.receive(len(there)), ours.receive(len(back)), ours.send(there), theirs.send(back)
        )

    assert got_there == there
    assert got_back == back


@pytest.mark.parametrize("closes", [0, 1])
async def test_an_end_that_closes_ends_the_other(closes):
    async with pair() as ends:
        await ends[closes].send(b"last")
        ends[closes].close()

        assert await ends[1 - closes].receive(4) == b"last"
        with pytest.raises(LinkLost):
            await ends[1 - closes].receive(1)


async def test_an_address_names_the_way():
    async with pair() as (ours, theirs, port):
        assert ours.remote == port.web
        assert theirs.remote == Address("127.0.0.1", 0)


async def test_with_a_certificate_it_is_tls(tmp_path, monkeypatch):
    certificate = certificate_in(tmp_path)
    with pytest.raises(DialFailed, match=r"(?i)certificate"):
        async with pair(certificate):
            pass

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    there, back = os.urandom(3_000_000), os.urandom(2_000_000)
    async with pair(certificate) as (ours, theirs, _):
        got_there, got_back, *_ = await asyncio.gather(
            theirs.receive(len(there)), ours.receive(len(back)), ours.send(there), theirs.send(back)
        )
        assert got_there == there
        assert got_back == back
        theirs.close()
        with pytest.raises(LinkLost):
            await ours.receive(1)


async def test_what_is_no_tls_is_refused(tmp_path):
    async with web_port(certificate_in(tmp_path)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.web.port)
        writer.write(b"GET /p2pswarm HTTP/1.1\r\n\r\n")

        assert "no TLS with it" in str(await port.errors.get())
        with suppress(ConnectionError):
            await reader.read()  # an alert, and the end
        writer.close()


async def test_a_certificate_that_cannot_be_used_is_told_in_a_line(tmp_path):
    for wrong in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").write_text("")
        with pytest.raises(Unusable, match=r"network\.relay_certificate: .*one PEM file"):
            WebUpgrade(wrong)


async def test_nothing_is_spent_on_who_says_nothing(tmp_path):
    async with web_port(certificate_in(tmp_path)) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port.web.port)
        writer.close()

        assert "closed by the peer" in str(await port.errors.get())
        assert port.words == 0


async def test_what_is_no_websocket_is_told_so_and_hung_up_on():
    async with pair() as (ours, theirs, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.web.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

        assert b"which speaks WebSocket" in await reader.read()
        assert "before it was a WebSocket" in str(await port.errors.get())
        writer.close()
        await ours.send(b"hello")  # who has upgraded stays
        assert await theirs.receive(5) == b"hello"


@pytest.mark.parametrize(
    "words",
    [
        b"\0" * 300,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /p2pswarm HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    ],
)
async def test_garbage_is_hung_up_on_without_a_line_in_the_log(words, caplog):
    async with web_port() as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.web.port)
        writer.write(words)

        await port.errors.get()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_who_leaves_while_it_becomes_a_websocket_is_no_error(caplog):
    async with web_port() as port:
        for _ in range(20):
            _, writer = await asyncio.open_connection("127.0.0.1", port.web.port)
            writer.write(UPGRADE)
            writer.transport.abort()
        for _ in range(20):
            await port.ends.get()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_message_that_we_would_not_send_ends_the_connection():
    async with web_port() as port, aiohttp.ClientSession() as session:
        web_socket = await session.ws_connect(f"http://127.0.0.1:{port.web.port}/p2pswarm")
        theirs = await port.arrived.get()
        await web_socket.send_bytes(bytes(MESSAGE_BYTES_MAX + 1))

        with pytest.raises(LinkLost):
            await theirs.receive(1)
        theirs.close()


async def test_without_files_left_a_websocket_is_closed_and_a_dial_fails(monkeypatch):
    def none_left():
        raise OSError(24, "Too many open files")

    async with pair() as (ours, theirs, port):
        monkeypatch.setattr("socket.socketpair", none_left)
        async with WebNet(SocketNet()) as net:
            with pytest.raises(DialFailed, match="Too many open files"):
                await net.dial(port.web)
        monkeypatch.undo()
        await ours.send(b"still")
        assert await theirs.receive(5) == b"still"


async def test_a_dial_that_fails_says_why():
    async with WebNet(SocketNet()) as net:
        nobody = await SocketNet().listen(LOOPBACK)
        address = Address("127.0.0.1", nobody.address.port, web="ws")
        nobody.close()
        with pytest.raises(DialFailed, match=r"ws://127\.0\.0\.1:"):
            await net.dial(address)
        with pytest.raises(DialFailed, match="only TCP"):
            await SocketNet().dial(address)


@pytest.mark.parametrize(
    ("remote", "forwarded", "host"),
    [
        ("127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("::1", "6.6.6.6, 2001:db8::7", "2001:db8::7"),
        ("203.0.113.9", "198.51.100.7", "203.0.113.9"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.2", "198.51.100.7", "127.0.0.2"),
    ],
)
def test_only_a_proxy_on_this_machine_is_believed_who_dials(remote, forwarded, host):
    assert dialler_of(remote, forwarded) == host
