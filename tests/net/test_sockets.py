"""Real sockets through the seam: exact reads, every error translated, pipes that end well."""

import asyncio
import errno
import random
import socket
import threading
from contextlib import asynccontextmanager

import pytest

from p2pswarm.errors import BadChunk, DialFailed, LinkLost, SwarmError, Unusable
from p2pswarm.ids import Address
from p2pswarm.net import sockets
from p2pswarm.net.base import CROWDED_BYTES, ControlPipe
from p2pswarm.net.sockets import SocketConnection, SocketNet

HERE = Address("127.0.0.1", 0)
PATIENCE_S = 20.0


@asynccontextmanager
async def connected():
    """Two raw streams that are each other's ends."""
    net = SocketNet()
    listener = await net.listen(HERE)
    ours, theirs = await asyncio.gather(net.dial(listener.address), listener.accept())
    try:
        yield ours, theirs
    finally:
        for stream in (ours, theirs):
            stream.close()
        listener.close()


async def test_a_raw_stream_gives_exactly_what_is_asked_for():
    async with connected() as (ours, theirs):
        await ours.send(b"hello world")

        assert await theirs.receive(5) == b"hello"
        await ours.send(b"!")
        assert await theirs.receive(7) == b" world!"
        assert await theirs.receive(0) == b""


async def test_a_raw_stream_that_ends_early_is_lost():
    async with connected() as (ours, theirs):
        await ours.send(b"half")
        ours.close()

        with pytest.raises(LinkLost, match="closed by the peer"):
            await theirs.receive(8)


async def test_a_stream_that_is_reset_is_lost():
    async with connected() as (ours, theirs):
        await ours.send(b"never read")
        theirs.close()

        with pytest.raises(LinkLost):  # the kernel cannot hold so much
            await ours.send(bytes(100_000_000))
        with pytest.raises(LinkLost):
            await ours.receive(1)


async def test_a_stream_knows_its_other_end():
    async with connected() as (ours, theirs):
        assert ours.remote.host == theirs.remote.host == "127.0.0.1"


async def test_a_host_may_be_given_by_name():
    net = SocketNet()
    listener = await net.listen(HERE)
    dialling = net.dial(Address("localhost", listener.address.port))
    ours, theirs = await asyncio.gather(dialling, listener.accept())

    await ours.send(b"x")
    assert await theirs.receive(1) == b"x"
    for each in (ours, theirs, listener):
        each.close()


async def test_ipv6_works_where_the_machine_has_it():
    net = SocketNet()
    try:
        listener = await net.listen(Address("::1", 0))
    except Unusable:
        pytest.skip("no IPv6 here")
    ours, theirs = await asyncio.gather(net.dial(listener.address), listener.accept())

    assert ours.remote == listener.address
    for each in (ours, theirs, listener):
        each.close()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "127.0.0.1"])
async def test_where_nobody_listens_dialling_fails(host: str):
    with socket.socket() as unused:  # bound, not listening: nobody else gets the port
        unused.bind(("127.0.0.1", 0))

        with pytest.raises(DialFailed, match=host):
            await SocketNet().dial(Address(host, unused.getsockname()[1]))


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1"])
async def test_an_address_that_is_not_ours_cannot_be_listened_on(host: str):
    with pytest.raises(Unusable, match="cannot listen on"):
        await SocketNet().listen(Address(host, 0))


async def test_a_listener_waits_when_files_run_out_and_goes_on(monkeypatch):
    """Others' files close in time; an accept that raised would end the node's ear."""
    failures = [OSError(errno.EMFILE, "too many"), OSError(errno.ECONNABORTED, "gone")]
    real = sockets._accept

    async def flaky(listener):
        if failures:
            raise failures.pop(0)
        return await real(listener)

    monkeypatch.setattr(sockets, "_accept", flaky)
    monkeypatch.setattr(sockets, "OUT_OF_FILES_PAUSE_S", 0.0)
    async with connected() as (ours, theirs):
        await ours.send(b"x")

        assert await theirs.receive(1) == b"x"


async def test_no_connection_is_lost_when_accepting_is_cancelled():
    net = SocketNet()
    listener = await net.listen(HERE)
    accepting = asyncio.create_task(listener.accept())
    await asyncio.sleep(0)
    ours = await net.dial(listener.address)
    accepting.cancel()
    await asyncio.wait([accepting])

    theirs = accepting.result() if not accepting.cancelled() else await listener.accept()
    await ours.send(b"x")
    assert await theirs.receive(1) == b"x"
    for each in (ours, theirs, listener):
        each.close()


class User:
    """A wire's user that keeps what it is told."""

    def __init__(self):
        self.wire: ControlPipe | None = None
        self.data = bytearray()
        self.states = []
        self.error: SwarmError | None = None
        self._news = asyncio.Event()

    def opened(self, wire: ControlPipe):
        self.wire = wire

    def received(self, data: bytes):
        self.data += data
        self._news.set()

    def pause_writing(self):
        self.states.append("crowded")

    def resume_writing(self):
        self.states.append("drained")
        self._news.set()

    def lost(self, error: SwarmError):
        self.error = error
        self._news.set()

    async def until(self, condition):
        async with asyncio.timeout(PATIENCE_S):
            while not condition():
                self._news.clear()
                await self._news.wait()


async def test_a_wire_pushes_what_comes_and_tells_its_end():
    async with connected() as (ours, theirs):
        user, other = User(), User()
        await ours.become_control(user)
        await theirs.become_control(other)

        user.wire.send(b"ping")
        await other.until(lambda: other.data == b"ping")
        other.wire.send(b"pong")
        other.wire.close()

        await user.until(lambda: user.error)
        assert user.data == b"pong"
        assert isinstance(user.error, LinkLost)


async def test_a_wire_that_is_cut_off_is_lost_on_both_sides():
    async with connected() as (ours, theirs):
        user, other = User(), User()
        await ours.become_control(user)
        await theirs.become_control(other)

        user.wire.abort()

        await user.until(lambda: user.error)
        await other.until(lambda: other.error)


async def test_a_wire_tells_when_it_is_crowded_and_when_no_more():
    async with connected() as (ours, theirs):
        user, total = User(), 0
        await ours.become_control(user)
        while not user.states:
            user.wire.send(bytes(CROWDED_BYTES))
            total += CROWDED_BYTES

        await theirs.receive(total)

        await user.until(lambda: len(user.states) == 2)
        assert user.states == ["crowded", "drained"]


async def test_a_reset_wire_is_lost_with_the_systems_reason():
    async with connected() as (ours, theirs):
        user = User()
        await ours.become_control(user)
        theirs._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        theirs.close()

        await user.until(lambda: user.error)
        assert "reset" in str(user.error)


class Machine:
    """A bulk machine of plain bytes: sends what is put in, keeps what comes."""

    def __init__(self, record: int = 4):
        self.buffer = bytearray(record)
        self.received = bytearray()
        self.to_send: list[bytes] = []
        self.told: list[str] = []
        self.error: SwarmError | None = None
        self.refuse = False
        self.threads: set[str] = set()
        self._news = asyncio.Event()

    def room(self) -> memoryview:
        return memoryview(self.buffer)

    def filled(self):
        self.threads.add(threading.current_thread().name)
        if self.refuse:
            raise BadChunk("refused")
        self.received += self.buffer
        return lambda: self.tell("filled")

    def next_out(self, now_s: float) -> memoryview | None:
        assert now_s > 0
        self.threads.add(threading.current_thread().name)
        return memoryview(self.to_send[0]) if self.to_send else None

    def sent(self):
        del self.to_send[0]
        return None if self.to_send else lambda: self.tell("sent")

    def lost(self, error: SwarmError):
        self.error = error
        self.tell("lost")

    def released(self):
        self.tell("released")

    def tell(self, what: str):
        self.told.append(what)
        self._news.set()

    async def until(self, what: str):
        async with asyncio.timeout(PATIENCE_S):
            while what not in self.told:
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def piped(size: int = 4):
    """Two machines on the ends of a socket."""
    async with connected() as (ours, theirs):
        ends = Machine(size), Machine(size)
        pipes = ours.become_bulk(ends[0]), theirs.become_bulk(ends[1])
        yield ends, pipes
        for machine, pipe in zip(ends, pipes, strict=True):
            pipe.close()
            await machine.until("released")


async def test_a_pipe_sends_what_its_machine_gives_and_fills_its_rooms():
    async with piped(size=100_000) as ((source, target), (pipe, _)):
        data = random.Random(1).randbytes(300_000)
        source.to_send = [data[:1], data[1:200_000], data[200_000:]]
        pipe.wake()

        await source.until("sent")
        while len(target.received) < len(data):
            target.told.clear()
            await target.until("filled")

        assert target.received == data
        assert all(name.startswith("bulk-") for name in source.threads | target.threads)


async def test_a_pipe_carries_both_ways_at_once():
    async with piped() as ((one, other), (pipe, back)):
        one.to_send, other.to_send = [b"abcd"], [b"efgh"]
        pipe.wake()
        back.wake()

        await one.until("filled")
        await other.until("filled")

        assert (one.received, other.received) == (b"efgh", b"abcd")


async def test_a_closed_pipe_tells_both_ends_and_leaves_no_thread():
    before = threading.active_count()
    async with piped() as ((one, other), (pipe, _)):
        one.to_send = [b"abcd"]
        pipe.wake()
        await other.until("filled")

        pipe.close()
        pipe.close()
        pipe.wake()

        await one.until("released")
        await other.until("released")
        assert one.told[-2:] == other.told[-2:] == ["lost", "released"]
        assert isinstance(one.error, LinkLost)
        assert threading.active_count() == before


async def test_a_sender_that_is_stuck_leaves_when_its_pipe_is_closed():
    """Nobody reads at the other end: the kernel takes no more."""
    async with connected() as (ours, theirs):
        machine = Machine()
        machine.to_send = [bytes(100_000_000)]
        pipe = ours.become_bulk(machine)
        pipe.wake()
        await theirs.receive(1)

        pipe.close()

        await machine.until("released")


async def test_a_machine_that_refuses_what_came_ends_its_pipe():
    async with piped() as ((source, target), (pipe, _)):
        target.refuse = True
        source.to_send = [b"abcd"]
        pipe.wake()

        await target.until("released")

        assert isinstance(target.error, BadChunk)


async def test_a_fault_of_the_machine_itself_ends_its_pipe_and_is_shown(monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    async with piped() as ((source, target), (pipe, _)):
        target.filled = lambda: 1 / 0
        source.to_send = [b"abcd"]
        pipe.wake()

        await target.until("released")

        assert "ZeroDivisionError" in str(target.error)
    assert isinstance(shown[0], ZeroDivisionError)


def test_a_pipe_that_outlives_its_loop_just_ends():
    machine, sides = Machine(), []

    async def start():
        async with connected() as (ours, theirs):
            sides.append(theirs)
            ours.become_bulk(machine)
            theirs._sock, kept = None, theirs._sock
            sides.append(kept)

    asyncio.run(start())
    (thread,) = (t for t in threading.enumerate() if t.name.startswith("bulk-rx"))
    sides[1].close()

    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert machine.told == []


def test_a_stream_that_became_something_else_is_spent():
    sock = socket.socket()
    stream = SocketConnection(sock, HERE)
    stream.close()
    stream.close()

    with pytest.raises(AssertionError, match="become something else"):
        stream._socket()
