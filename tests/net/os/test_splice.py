"""Splices over real sockets: every byte arrives, in order, and a slow reader stops its sender."""

import asyncio
import contextlib
import os
import socket
from contextlib import asynccontextmanager

from p2pswarm.base.ids import Address
from p2pswarm.net.os.sockets import SocketConnection
from p2pswarm.net.os.splice import PIECE_BYTES, Splicer

PATIENCE_S = 20.0
NOBODY = Address("192.0.2.1", 1)


class Slow:
    """Lets each direction go on when told."""

    def __init__(self):
        self.flows = []
        self.nbytes = 0

    def on_bytes(self, flow, nbytes):
        self.flows.append(flow)
        self.nbytes += nbytes
        return False


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


class Ends:
    """The two ends of a circuit, and the splice in the middle."""

    def __init__(self, pace=None, **settings):
        self.one, inner_one = connected()
        self.other, inner_other = connected()
        self.over = asyncio.Event()
        self.times_ended = 0
        self.splice = Splicer(**settings).join(
            SocketConnection(inner_one, NOBODY),
            SocketConnection(inner_other, NOBODY),
            pace,
            self._ended,
        )
        for end in (self.one, self.other):
            end.setblocking(False)

    def _ended(self):
        self.times_ended += 1
        self.over.set()

    async def receive(self, sock, nbytes) -> bytes:
        parts = []
        while nbytes and (part := await asyncio.get_running_loop().sock_recv(sock, nbytes)):
            parts.append(part)
            nbytes -= len(part)
        return b"".join(parts)


@asynccontextmanager
async def circuit(pace=None, **settings):
    async with asyncio.timeout(PATIENCE_S):
        ends = Ends(pace, **settings)
        try:
            yield ends
        finally:
            ends.splice.close()
            ends.one.close()
            ends.other.close()


async def send(sock, data):
    await asyncio.get_running_loop().sock_sendall(sock, data)


async def test_both_directions_carry_every_byte_in_order():
    there, back = bytes(range(251)) * 40_000, bytes(range(250, -1, -1)) * 30_000
    async with circuit() as ends, asyncio.TaskGroup() as tasks:
        tasks.create_task(send(ends.one, there))
        tasks.create_task(send(ends.other, back))
        got_there = tasks.create_task(ends.receive(ends.other, len(there)))
        got_back = tasks.create_task(ends.receive(ends.one, len(back)))

    assert got_there.result() == there
    assert got_back.result() == back
    assert ends.splice.carried_bytes == len(there) + len(back)


async def test_a_direction_that_ends_leaves_the_other_open():
    async with circuit() as ends:
        await send(ends.one, b"last words")
        ends.one.shutdown(socket.SHUT_WR)

        assert await ends.receive(ends.other, 11) == b"last words"
        await send(ends.other, b"answer")
        assert await ends.receive(ends.one, 6) == b"answer"
        ends.other.close()
        await ends.over.wait()


async def test_a_direction_that_goes_on_alone_has_some_time():
    async with circuit(half_closed_s=0.05) as ends:
        ends.one.shutdown(socket.SHUT_WR)

        await ends.over.wait()
        assert await ends.receive(ends.one, 1) == b""


async def test_an_end_that_is_gone_ends_the_other():
    async with circuit() as ends:
        ends.one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # RST
        ends.one.close()

        assert await ends.receive(ends.other, 1) == b""
        await ends.over.wait()


async def test_a_reader_that_stands_still_stops_its_sender_and_only_it():
    async with circuit() as ends:
        taken = 0
        with contextlib.suppress(TimeoutError):  # the kernel's buffers are full: nothing more goes
            async with asyncio.timeout(0.5):
                while True:
                    await send(ends.one, bytes(PIECE_BYTES))
                    taken += PIECE_BYTES
        before = ends.splice.carried_bytes
        await send(ends.other, b"the other way is free")

        assert await ends.receive(ends.one, 21) == b"the other way is free"
        assert ends.splice.carried_bytes == before + 21
        rest = await ends.receive(ends.other, taken)
        assert len(rest) == taken


async def test_what_was_sent_before_the_end_arrives_though_the_reader_is_slow():
    sent = os.urandom(8_000_000)  # more than the kernel's buffers hold on the way
    async with circuit() as ends:

        async def send_and_end():
            await send(ends.one, sent)
            ends.one.shutdown(socket.SHUT_WR)

        sending = asyncio.create_task(send_and_end())
        got = [await ends.receive(ends.other, 10_000)]
        while part := await ends.receive(ends.other, 333_333):
            got.append(part)
        await sending

    assert b"".join(got) == sent


async def test_a_direction_waits_until_it_may_go_on():
    pace = Slow()
    async with circuit(pace) as ends:
        await send(ends.one, b"first")
        assert await ends.receive(ends.other, 5) == b"first"
        await send(ends.one, b"second")
        await send(ends.other, b"back")
        assert await ends.receive(ends.one, 4) == b"back"
        assert pace.nbytes == 9

        pace.flows[0].resume()
        assert await ends.receive(ends.other, 6) == b"second"


async def test_it_ends_once_and_a_flow_that_is_resumed_then_does_nothing():
    pace = Slow()
    async with circuit(pace) as ends:
        await send(ends.one, b"paused")
        assert await ends.receive(ends.other, 6) == b"paused"
        ends.splice.close()
        ends.splice.close()
        pace.flows[0].resume()

        assert ends.times_ended == 1
        assert await ends.receive(ends.one, 1) == b""
