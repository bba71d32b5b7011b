"""Strangers at a port for WebSockets: they take places of their own address group."""

import asyncio
import ssl
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace

import pytest
from net.link.harness import LOOPBACK, PATIENCE_S, EchoEnd, End, call, listening
from net.os.harness import certificate_in

from p2pswarm.base.errors import BadHandshake
from p2pswarm.base.ids import Contact
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.os.web_socket import WebUpgrade

PLACES = 4
CROWD = 12
CROWD_HOST = "127.7.7.7"
UPGRADE = (
    "GET /p2pswarm HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n"
)


@pytest.fixture
def certificate(tmp_path, monkeypatch):
    """A certificate that diallers trust."""
    pem = certificate_in(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    return pem


@asynccontextmanager
async def web_end(certificate=None, **settings):
    """An end with a port for WebSockets, and its address there."""
    limits = {"silent_max": PLACES, "upgrading_max": PLACES, "handshake_s": PATIENCE_S, **settings}
    async with (
        asyncio.timeout(2 * PATIENCE_S),
        EchoEnd(**limits) as end,
        WebUpgrade(certificate) as upgrade,
    ):
        await listening(end)
        at = await end.listen(LOOPBACK, upgrade)
        yield end, replace(at, web="wss" if certificate else "ws")


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="x")
    with suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


async def says(at, words, host=CROWD_HOST):
    """A connection that says something, and then nothing more."""
    reader, writer = await asyncio.open_connection(at.host, at.port, local_addr=(host, 0))
    writer.write(words)
    return reader, writer


async def is_hung_up_on(reader):
    with suppress(ConnectionError):
        while await reader.read(65_536):
            pass


async def dial(at):
    """Call over a WebSocket, as somebody who is honest."""
    async with WebNet(SocketNet()) as net, End(net=net) as dialler:
        link = await dialler.link(Contact(None, at))
        return link.peer


WHOLE = UPGRADE + "\r\n"
HALF = [b"GET /p2pswarm HTTP/1.1\r\n", WHOLE.encode()]


@pytest.mark.parametrize("words", HALF, ids=["half a request", "a silent WebSocket"])
async def test_a_crowd_over_http_displaces_its_own(words):
    async with web_end() as (end, at), AsyncExitStack() as undo:
        crowd = []
        for _ in range(CROWD):
            reader, writer = await says(at, words)
            undo.callback(writer.close)
            crowd.append(reader)

        for reader in crowd[: CROWD - PLACES]:
            await is_hung_up_on(reader)
        assert await dial(at) == end.peer_id


@pytest.mark.parametrize("cut", [1, 60, None], ids=["a byte", "half a hello", "a hello"])
async def test_tls_that_is_never_finished_displaces_its_own(certificate, cut):
    async with web_end(certificate) as (end, at), AsyncExitStack() as undo:
        crowd = []
        for _ in range(CROWD):
            reader, writer = await says(at, client_hello()[:cut])
            undo.callback(writer.close)
            crowd.append(reader)

        for reader in crowd[: CROWD - PLACES]:
            await is_hung_up_on(reader)
        assert await dial(at) == end.peer_id


async def test_who_says_nothing_at_a_port_for_websockets_displaces_its_own(certificate):
    async with web_end(certificate) as (end, at), AsyncExitStack() as undo:
        crowd = []
        for _ in range(CROWD):
            reader, writer = await says(at, b"")
            undo.callback(writer.close)
            crowd.append(reader)

        for reader in crowd[: CROWD - PLACES]:
            await is_hung_up_on(reader)
        assert await dial(at) == end.peer_id


async def test_a_crowd_behind_a_proxy_displaces_its_own():
    """The proxy is on this machine; the crowd has one address, who is honest another."""
    async with web_end() as (_, at), AsyncExitStack() as undo:

        async def through_proxy(host):
            words = f"{UPGRADE}X-Forwarded-For: {host}\r\n\r\n".encode()
            reader, writer = await says(at, words, "127.0.0.1")
            undo.callback(writer.close)
            return reader

        honest = await through_proxy("203.0.113.9")
        assert b"101" in await honest.readline()
        crowd = [await through_proxy("198.51.100.7") for _ in range(CROWD)]

        for reader in crowd[: CROWD - PLACES + 1]:
            await is_hung_up_on(reader)
        await honest.readuntil(b"\r\n\r\n")
        assert not honest.at_eof()


@pytest.mark.parametrize("secure", [False, True])
async def test_what_becomes_no_websocket_in_time_is_hung_up_on(secure, certificate):
    words = client_hello() if secure else HALF[0]
    async with web_end(certificate if secure else None, handshake_s=0.1) as (_, at):
        reader, writer = await says(at, words)

        await is_hung_up_on(reader)
        writer.close()


async def test_a_websocket_that_says_nothing_in_time_is_hung_up_on():
    async with web_end(handshake_s=0.1) as (_, at):
        reader, writer = await says(at, WHOLE.encode())

        await is_hung_up_on(reader)
        writer.close()


async def test_over_a_websocket_one_is_told_why_it_is_refused():
    async with (
        web_end() as (_, at),
        WebNet(SocketNet()) as net,
        End(net=net, network_id=b"n" * 16) as dialler,
    ):
        with pytest.raises(BadHandshake, match="another network"):
            await dialler.link(Contact(None, at))


async def test_a_link_over_a_websocket_outlives_the_crowd_that_comes_after_it(certificate):
    async with (
        web_end(certificate) as (end, at),
        WebNet(SocketNet()) as net,
        End(net=net) as dialler,
        AsyncExitStack() as undo,
    ):
        link = await dialler.link(Contact(None, at))
        crowd = []
        for _ in range(CROWD):
            reader, writer = await says(at, client_hello(), "127.0.0.1")
            undo.callback(writer.close)
            crowd.append(reader)
        for reader in crowd[: CROWD - PLACES]:
            await is_hung_up_on(reader)

        assert await call(dialler, end) == b"hello"
        assert list(dialler.links()) == [link]
