"""Calls to a router that means harm: what comes is bounded, and nothing is followed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from p2pswarm.reach.nat.mapping_search import CallRouter, Lease
from p2pswarm.reach.nat.port_mapping_io import PortMapper
from p2pswarm.reach.nat.upnp import XML_BYTES_MAX

PATIENCE_S = 20.0
HERE = "127.0.0.1"
OK = b"HTTP/1.1 200 OK\r\nConnection: close\r\n"


class Router:
    """An HTTP server that answers each request with the same bytes, and counts them."""

    def __init__(self, answer: bytes, *, endless: bool):
        self._answer = answer
        self._endless = endless
        self.requests: list[bytes] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(self._answer)
            while self._endless:
                writer.write(b"x" * 65_536)
                await writer.drain()
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            return
        finally:
            writer.close()


@asynccontextmanager
async def router(answer: bytes, *, endless: bool = False) -> AsyncIterator[Router]:
    it = Router(answer, endless=endless)
    server = await asyncio.start_server(it.serve, HERE, 0)
    it.port = server.sockets[0].getsockname()[1]
    async with server:
        yield it


async def called(at: Router) -> tuple[int, bytes | None]:
    """What the machine is told of a call to the router."""
    told: asyncio.Future[tuple[int, bytes | None]] = asyncio.get_running_loop().create_future()

    mapper = PortMapper(4000, bytes, lambda _lease: None)

    class Machine:
        """Makes one call."""

        def __init__(self, inner):
            self._inner = inner
            self._calls = [CallRouter(1, f"http://{HERE}:{at.port}/a%2Fb?c")]

        def drain(self):
            calls, self._calls = self._calls, []
            return calls

        def on_reply(self, _number: int, status: int, data: bytes | None, _now_s: float):
            told.set_result((status, data))

        def __getattr__(self, name: str):
            return getattr(self._inner, name)

    mapper.machine = Machine(mapper.machine)
    task = asyncio.create_task(mapper.run())
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await told
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_an_answer_is_read_and_the_path_is_sent_as_it_is():
    async with router(OK + b"Content-Length: 2\r\n\r\nok") as it:
        assert await called(it) == (200, b"ok")
        assert it.requests[0].startswith(b"GET /a%2Fb?c HTTP/1.1\r\n")
        assert b"Cookie" not in it.requests[0]


async def test_no_more_is_read_than_a_description_may_have():
    async with router(OK + b"\r\n", endless=True) as it:
        assert await called(it) == (200, None)

    at_most = OK + f"Content-Length: {XML_BYTES_MAX}\r\n\r\n".encode() + b"x" * XML_BYTES_MAX
    async with router(at_most) as it:
        assert await called(it) == (200, b"x" * XML_BYTES_MAX)


async def test_no_redirect_is_followed():
    async with router(b"") as other:
        moved = f"HTTP/1.1 302 Found\r\nLocation: http://{HERE}:{other.port}/\r\n".encode()
        async with router(moved + b"Content-Length: 0\r\nConnection: close\r\n\r\n") as it:
            assert await called(it) == (302, b"")
        assert other.requests == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"garbage\r\n\r\n",
        OK + b"A: " + b"x" * 100_000 + b"\r\n\r\n",
        OK + b"Content-Length: -1\r\n\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
async def test_what_is_no_answer_is_none(answer):
    async with router(answer) as it:
        status, data = await called(it)

    assert data is None
    assert status == 0


async def test_a_compressed_bomb_is_not_unpacked():
    packed = b"Content-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\x8b\x08\x00"
    async with router(OK + packed) as it:
        assert await called(it) == (200, b"\x1f\x8b\x08\x00")


async def test_without_a_router_there_is_none_and_that_is_known():
    leases: list[Lease | None] = []
    came = asyncio.Event()

    def on_lease(lease: Lease | None) -> None:
        leases.append(lease)
        came.set()

    mapper = PortMapper(4000, bytes, on_lease)
    task = asyncio.create_task(mapper.run())
    async with asyncio.timeout(PATIENCE_S):
        await came.wait()
    assert leases == [None]
    assert mapper.settled
    came.clear()

    mapper.on_gateway("127.0.0.9", HERE)  # nobody is there
    async with asyncio.timeout(PATIENCE_S):
        while not mapper.settled or not came.is_set():
            came.clear()
            await came.wait()
    assert leases[-1] is None
    assert mapper.router == "127.0.0.9"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_address_that_is_not_ours_gives_no_socket_and_no_search():
    came = asyncio.Event()
    mapper = PortMapper(4000, bytes, lambda _lease: came.set())
    mapper.on_gateway("192.0.2.1", "192.0.2.77")
    task = asyncio.create_task(mapper.run())

    async with asyncio.timeout(PATIENCE_S):
        await came.wait()

    assert mapper.settled
    assert not mapper.machine.searching
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
