"""Tests of `net/os/bulk_threads.py`."""

import asyncio
import random
import socket
import sys
import threading
from contextlib import asynccontextmanager

import pytest
from net.os.harness import PATIENCE_S, connected

from p2pswarm.base.errors import BadChunk, BadRecord, LinkLost, SwarmError
from p2pswarm.net.os.bulk_threads import SocketBulkPipe, acknowledged_bytes
from p2pswarm.net.os.sockets import BULK_TIMEOUT_MS, IPPROTO_TCP, TCP_USER_TIMEOUT, USER_TIMEOUT_MS


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it")
def test_the_kernel_counts_what_the_other_end_has():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as sock,
    ):
        far, _ = server.accept()
        with far:
            before = acknowledged_bytes(sock)
            sock.sendall(bytes(1000))
            far.recv(1000, socket.MSG_WAITALL)
            far.sendall(b"x")
            sock.recv(1)

            assert acknowledged_bytes(sock) - before == 1000


def test_of_what_is_no_connection_it_says_nothing():
    left, right = socket.socketpair()
    with left, right:
        assert acknowledged_bytes(left) is None
    assert acknowledged_bytes(left) is None


class Machine:
    """A bulk machine of plain bytes: sends what is put in, keeps what comes."""

    def __init__(self, record: int = 4):
        self.buffer = bytearray(record)
        self.received = bytearray()
        self.to_send: list[bytes] = []
        self.told: list[str] = []
        self.error: SwarmError | None = None
        self.refuse = False
        self.granted = True
        self.threads: set[str] = set()
        self._news = asyncio.Event()

    def expects_bytes(self) -> bool:
        return self.granted

    def next_in(self) -> memoryview:
        return memoryview(self.buffer)

    def on_fill(self):
        self.threads.add(threading.current_thread().name)
        if self.refuse:
            raise BadChunk("refused")
        self.received += self.buffer
        return lambda: self.tell("filled")

    def next_out(self, now_s: float) -> memoryview | None:
        assert now_s > 0
        self.threads.add(threading.current_thread().name)
        return memoryview(self.to_send[0]) if self.to_send else None

    def on_write(self):
        del self.to_send[0]
        return None if self.to_send else lambda: self.tell("sent")

    def on_loss(self, error: SwarmError):
        self.error = error
        self.tell("lost")

    def on_release(self):
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
async def piped(size: int = 4, *, loop_waits: bool = True):
    """Two machines on the ends of a socket."""
    async with connected() as (ours, theirs):
        ends = Machine(size), Machine(size)
        if loop_waits:
            pipes = ours.become_bulk(ends[0]), theirs.become_bulk(ends[1])
        else:
            socks = ours.release(), theirs.release()
            for sock in socks:
                sock.setblocking(True)
            pipes = tuple(
                SocketBulkPipe(sock, machine, "bulk", loop_waits=False)
                for sock, machine in zip(socks, ends, strict=True)
            )
        yield ends, pipes
        for machine, pipe in zip(ends, pipes, strict=True):
            pipe.close()
            await machine.until("released")
        assert [machine.told.count("released") for machine in ends] == [1, 1]


@pytest.mark.skipif(TCP_USER_TIMEOUT is None, reason="this system's TCP waits as long as it likes")
async def test_a_bulk_socket_waits_less_for_acknowledgements_than_a_control_socket():
    async with connected() as (ours, theirs):
        sock, machine = ours._sock, Machine()
        waits = [sock.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT)]
        pipe = ours.become_bulk(machine)
        waits.append(sock.getsockopt(IPPROTO_TCP, TCP_USER_TIMEOUT))
        pipe.close()
        await machine.until("released")
        theirs.close()

    assert waits == [USER_TIMEOUT_MS, BULK_TIMEOUT_MS]
    assert BULK_TIMEOUT_MS < USER_TIMEOUT_MS


async def test_a_pipe_sends_what_its_machine_gives_and_fills_its_memory():
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


async def test_a_pipe_on_which_nothing_happens_costs_no_thread():
    before = threading.active_count()
    async with piped() as ((one, other), (pipe, _)):
        assert threading.active_count() == before

        pipe.close()

        await one.until("released")
        await other.until("released")
        assert isinstance(other.error, LinkLost)


async def test_a_byte_before_anything_was_granted_ends_the_pipe_without_a_thread():
    async with piped() as ((source, target), (pipe, _)):
        target.granted = False
        source.to_send = [b"x"]
        pipe.wake()

        await target.until("released")

        assert isinstance(target.error, BadRecord)
        assert not target.threads


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
        await one.until("sent")
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
        target.on_fill = lambda: 1 / 0
        source.to_send = [b"abcd"]
        pipe.wake()

        await target.until("released")

        assert "ZeroDivisionError" in str(target.error)
    assert isinstance(shown[0], ZeroDivisionError)


@pytest.fixture
async def shown() -> list[BaseException]:
    """The errors of callbacks that the event loop shows."""
    found: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: found.append(context["exception"])
    )
    return found


@pytest.mark.parametrize("loop_waits", [True, False])
async def test_a_fault_at_the_first_byte_ends_its_pipe_and_is_shown(shown, loop_waits):
    """A pipe that is not released keeps its endpoint, and so the process, for ever."""
    async with piped(loop_waits=loop_waits) as ((source, target), (pipe, _)):
        target.expects_bytes = lambda: 1 / 0
        source.to_send = [b"abcd"]
        pipe.wake()

        await target.until("released")

        assert "ZeroDivisionError" in str(target.error)
        assert not target.threads
    assert isinstance(shown[0], ZeroDivisionError)


async def test_a_fault_of_what_the_loop_is_to_call_ends_its_pipe_and_is_shown(shown):
    async with piped() as ((source, target), (pipe, _)):
        target.on_fill = lambda: lambda: 1 / 0
        source.to_send = [b"abcd"]
        pipe.wake()

        await target.until("released")

        assert "ZeroDivisionError" in str(target.error)
    assert isinstance(shown[0], ZeroDivisionError)


@pytest.fixture
def no_threads():
    """Lets the system start no thread: each would have a larger stack than there are addresses."""

    def refuse(size_bytes: int = 1 << 46) -> None:
        threading.stack_size(size_bytes)

    yield refuse
    threading.stack_size(0)


async def test_a_pipe_that_no_thread_can_wait_for_ends(no_threads):
    no_threads()
    async with piped(loop_waits=False) as ((one, other), _):
        await one.until("released")
        await other.until("released")

        assert "thread" in str(one.error)


async def test_a_pipe_for_which_the_system_has_no_thread_ends(no_threads):
    async with piped() as ((source, target), (pipe, _)):
        source.to_send = [b"abcd"]
        no_threads()
        pipe.wake()

        await source.until("released")
        await target.until("released")

        assert "thread" in str(source.error)


async def test_a_receiver_for_which_the_system_has_no_thread_ends(no_threads):
    async with piped() as ((source, target), (pipe, _)):
        source.to_send = [b"abcd"]
        pipe.wake()
        no_threads()

        await target.until("released")

        assert "thread" in str(target.error)


async def test_a_pipe_may_wait_for_its_first_byte_in_a_thread():
    """Where an event loop watches few sockets, as on Windows."""
    before = threading.active_count()
    async with piped(loop_waits=False) as ((one, other), (pipe, back)):
        assert threading.active_count() == before + 2
        one.to_send, other.to_send = [b"abcd"], [b"efgh"]
        pipe.wake()
        back.wake()

        await one.until("filled")
        await other.until("filled")

        assert (one.received, other.received) == (b"efgh", b"abcd")
    assert threading.active_count() == before


async def test_a_pipe_that_waits_in_a_thread_ends_when_it_is_closed():
    async with piped(loop_waits=False) as ((one, other), (pipe, _)):
        pipe.close()

        await one.until("released")
        await other.until("released")
        assert isinstance(other.error, LinkLost)


async def test_a_byte_that_was_not_granted_ends_a_pipe_that_waits_in_a_thread():
    async with piped(loop_waits=False) as ((source, target), (pipe, _)):
        target.granted = False
        source.to_send = [b"x"]
        pipe.wake()

        await target.until("released")

        assert isinstance(target.error, BadRecord)


def test_a_pipe_that_outlives_its_loop_just_ends():
    machine, sides = Machine(), []

    async def start():
        async with connected() as (ours, theirs):
            sides.append(theirs)
            ours.become_bulk(machine)
            await theirs.send(b"abcd")  # its thread runs now
            await machine.until("filled")
            theirs._sock, kept = None, theirs._sock
            sides.append(kept)

    asyncio.run(start())
    (thread,) = (t for t in threading.enumerate() if t.name.startswith("bulk-rx"))
    sides[1].close()

    thread.join(PATIENCE_S)

    assert not thread.is_alive()
    assert machine.told == ["filled"]
