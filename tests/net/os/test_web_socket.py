"""Connections over WebSocket, with a real server and client."""

import asyncio
import contextlib
import os
import subprocess
from contextlib import asynccontextmanager

import pytest

from p2pswarm.base.errors import DialFailed, LinkLost, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketNet
from p2pswarm.net.os.web_net import WebNet
from p2pswarm.net.os.web_socket import WebListener, dialler_of

LOOPBACK = Address("127.0.0.1", 0)
PATIENCE_S = 20.0


@asynccontextmanager
async def pair(**settings):
    """A dialled connection, the accepted one, and the listener."""
    arrived: asyncio.Queue = asyncio.Queue()
    async with (
        asyncio.timeout(PATIENCE_S),
        WebListener(LOOPBACK, arrived.put_nowait, **settings) as listener,
        WebNet(SocketNet()) as net,
    ):
        ours = await net.dial(listener.address)
        theirs = await arrived.get()
        yield ours, theirs, listener
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
    async with pair() as (ours, theirs, listener):
        assert str(listener.address).startswith("ws://127.0.0.1:")
        assert ours.remote == listener.address
        assert theirs.remote == Address("127.0.0.1", 0)


@pytest.fixture
def certificate(tmp_path):
    """A file with a certificate of 127.0.0.1 that nobody vouches for, and its key."""
    pem = tmp_path / "both.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    key, chain = tmp_path / "key.pem", tmp_path / "chain.pem"
    files = ["-keyout", str(key), "-out", str(chain)]
    subprocess.run([*command.split(), *names, *files], check=True, capture_output=True)
    pem.write_bytes(chain.read_bytes() + key.read_bytes())
    return pem


async def test_with_a_certificate_it_is_tls(certificate, monkeypatch):
    with pytest.raises(DialFailed, match=r"(?i)certificate"):
        async with pair(certificate=certificate):
            pass

    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    async with pair(certificate=certificate) as (ours, theirs, listener):
        assert str(listener.address).startswith("wss://")
        await ours.send(b"hello")
        assert await theirs.receive(5) == b"hello"


async def test_a_certificate_that_cannot_be_used_is_told_in_a_line(tmp_path):
    for wrong in (tmp_path / "none.pem", tmp_path / "empty.pem"):
        (tmp_path / "empty.pem").write_text("")
        with pytest.raises(Unusable, match=r"network\.relay_certificate: .*one PEM file"):
            async with WebListener(LOOPBACK, lambda _: None, wrong):
                pass


async def test_what_is_no_websocket_is_told_so_and_a_silent_connection_is_closed():
    async with pair(upgrade_s=0.2) as (ours, theirs, listener):
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"which speaks WebSocket" in await reader.readuntil(b"here\n")
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""  # it did not upgrade in time
        writer.close()
        silent, writer = await asyncio.open_connection("127.0.0.1", listener.address.port)
        with contextlib.suppress(ConnectionError):
            assert await silent.read() == b""
        writer.close()

        await ours.send(b"hello")  # who has upgraded stays
        assert await theirs.receive(5) == b"hello"


async def test_without_files_left_a_websocket_is_closed_and_a_dial_fails(monkeypatch):
    def none_left():
        raise OSError(24, "Too many open files")

    async with pair() as (ours, theirs, listener):
        monkeypatch.setattr("socket.socketpair", none_left)
        async with WebNet(SocketNet()) as net:
            with pytest.raises(DialFailed, match="Too many open files"):
                await net.dial(listener.address)
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


async def test_a_port_that_is_taken_is_told():
    async with pair() as (_, _, listener):
        with pytest.raises(Unusable, match="cannot listen"):
            async with WebListener(Address("127.0.0.1", listener.address.port), lambda _: None):
                pass


@pytest.mark.parametrize(
    ("remote", "forwarded", "host"),
    [
        ("127.0.0.1", "198.51.100.7", "198.51.100.7"),
        ("::1", "6.6.6.6, 2001:db8::7", "2001:db8::7"),
        ("203.0.113.9", "198.51.100.7", "203.0.113.9"),
        ("127.0.0.1", "nonsense", "127.0.0.1"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("", "198.51.100.7", "unknown"),
    ],
)
def test_only_a_proxy_on_this_machine_is_believed_who_dials(remote, forwarded, host):
    assert dialler_of(remote, forwarded) == host
