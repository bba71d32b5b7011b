"""Tests of `net/os/sockets.py`."""

import asyncio
import errno
import socket
import sys

import pytest
from net.os.harness import HERE, PATIENCE_S, connected

from p2pswarm.base.errors import DialFailed, LinkLost, SwarmError, Unusable
from p2pswarm.base.ids import Address
from p2pswarm.net.os.base import CROWDED_BYTES, ControlPipe
from p2pswarm.net.os.sockets import (
    ACCEPTED_IN_A_ROW,
    READ_BYTES,
    READ_BYTES_MAX,
    ControlProtocol,
    SocketConnection,
    SocketListener,
    SocketNet,
    reason_of,
)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('::1', 1)"), "refused"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "Network is unreachable"),
        (OSError("no number"), "no number"),
        (TimeoutError(), "TimeoutError"),
    ],
)
def test_an_error_has_one_line_without_the_address(error: OSError, reason: str):
    assert reason in reason_of(error)
    assert "::1" not in reason_of(error)


class Reader:
    """A user that keeps what comes."""

    def __init__(self):
        self.came = []

    def on_data(self, data: bytes):
        self.came.append(data)


def test_a_read_that_fills_the_buffer_makes_it_grow_for_good():
    reader = Reader()
    protocol = ControlProtocol(reader, "here")
    sizes = []

    for nbytes in (100, READ_BYTES, READ_BYTES_MAX, 100):
        buffer = protocol.get_buffer(-1)
        sizes.append(len(buffer))
        buffer[:nbytes] = bytes([len(sizes)]) * nbytes
        protocol.buffer_updated(nbytes)

    assert sizes == [READ_BYTES, READ_BYTES, READ_BYTES_MAX, READ_BYTES_MAX]
    assert reader.came[2] == b"\3" * READ_BYTES_MAX
    assert reader.came[3] == b"\4" * 100


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


async def test_who_listens_on_all_of_ipv6_hears_ipv4_too_and_sees_whose_address_it_is():
    net = SocketNet()
    try:
        listener = await net.listen(Address("::", 0))
    except Unusable:
        pytest.skip("this machine has no IPv6")
    dialling = net.dial(Address("127.0.0.1", listener.address.port))
    ours, theirs = await asyncio.gather(dialling, listener.accept())

    assert theirs.remote.host == "127.0.0.1"
    for each in (ours, theirs, listener):
        each.close()


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


class FlakySocket(socket.socket):
    """A listening socket whose first calls of `accept` fail."""

    def __init__(self, *failures: int):
        super().__init__()
        self.failures = list(failures)

    def accept(self):
        if self.failures:
            raise OSError(self.failures.pop(0), "not now")
        return super().accept()


async def test_a_listener_waits_when_files_run_out_and_goes_on():
    """Others' files close in time; an accept that raised would end the node's ear."""
    sock = FlakySocket(errno.EMFILE, errno.ECONNABORTED)
    sock.setblocking(False)
    sock.bind(("127.0.0.1", 0))
    sock.listen()
    listener = SocketListener(sock, pause_s=0.0)

    ours, theirs = await asyncio.gather(SocketNet().dial(listener.address), listener.accept())

    assert sock.failures == []
    for each in (ours, theirs, listener):
        each.close()


async def test_a_listener_that_fails_for_good_is_lost():
    listener = SocketListener(FlakySocket(errno.EPERM))

    with pytest.raises(LinkLost, match="not now"):
        await listener.accept()
    listener.close()


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


async def test_a_crowd_in_the_queue_does_not_hold_the_event_loop():
    """Who was accepted is greeted, or hung up on, before the whole crowd was accepted."""
    listener = await SocketNet().listen(HERE)
    at = listener.address.host, listener.address.port
    crowd = [socket.create_connection(at) for _ in range(5 * ACCEPTED_IN_A_ROW)]
    loop, turns = asyncio.get_running_loop(), 0

    def turn() -> None:
        nonlocal turns
        turns += 1
        loop.call_soon(turn)

    loop.call_soon(turn)
    accepted = [await listener.accept() for _ in crowd]

    assert turns >= 4
    for each in (*accepted, *crowd, listener):
        each.close()


def reset(stream: SocketConnection):
    stream._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    stream.close()


class User:
    """A wire's user that keeps what it is told."""

    def __init__(self):
        self.wire: ControlPipe | None = None
        self.data = bytearray()
        self.states = []
        self.error: SwarmError | None = None
        self._news = asyncio.Event()

    def on_open(self, wire: ControlPipe):
        self.wire = wire

    def on_data(self, data: bytes):
        self.data += data
        self._news.set()

    def pause_writing(self):
        self.states.append("crowded")

    def resume_writing(self):
        self.states.append("drained")
        self._news.set()

    def on_loss(self, error: SwarmError):
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


async def test_the_last_words_of_a_wire_reach_a_peer_that_still_sends():
    async with connected() as (ours, theirs):
        user = User()
        await ours.become_control(user)

        user.wire.send(b"last words")
        user.wire.close()
        for _ in range(3):  # a reset, the answer to the first, would fail the others
            await theirs.send(b"not read any more")
            await asyncio.sleep(0.01)

        assert await theirs.receive(10) == b"last words"
        with pytest.raises(LinkLost):
            await theirs.receive(1)
        theirs.close()
        await user.until(lambda: user.error)


async def test_a_wire_that_closes_after_a_reset_is_over():
    async with connected() as (ours, theirs):
        user = User()
        await ours.become_control(user)
        reset(theirs)

        user.wire.close()

        await user.until(lambda: user.error)


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
        reset(theirs)

        await user.until(lambda: user.error)
        assert "reset" in str(user.error)


def test_a_stream_that_became_something_else_is_spent():
    sock = socket.socket()
    stream = SocketConnection(sock, HERE)
    stream.close()
    stream.close()

    with pytest.raises(AssertionError, match="become something else"):
        stream._socket()


async def test_a_dial_may_come_from_the_port_that_listens():
    net = SocketNet()
    ours, theirs = await net.listen(HERE), await net.listen(HERE)

    dialling = net.dial(theirs.address, from_port=ours.address.port)
    dialled, accepted = await asyncio.gather(dialling, theirs.accept())

    assert accepted.remote == ours.address
    with pytest.raises(ValueError, match="nothing listens at port 9,"):
        await net.dial(theirs.address, from_port=9)
    with pytest.raises(DialFailed):  # two ports have one connection at a time
        await net.dial(theirs.address, from_port=ours.address.port)
    for each in (dialled, accepted, ours, theirs):
        each.close()


async def test_a_port_from_which_is_dialled_is_still_taken():
    net = SocketNet()
    listener = await net.listen(HERE)

    with pytest.raises(Unusable, match="in use"):
        await net.listen(listener.address)
    listener.close()


async def test_a_listener_tells_how_many_it_accepted_since_nobody_waited():
    listener = await SocketNet().listen(HERE)
    at = listener.address.host, listener.address.port
    crowd = [socket.create_connection(at) for _ in range(3)]

    accepted, counts = [], []
    for _ in crowd:
        accepted.append(await listener.accept())
        counts.append(listener.in_a_row)
    accepting = asyncio.create_task(listener.accept())
    await asyncio.sleep(0.01)
    crowd.append(socket.create_connection(at))
    accepted.append(await accepting)

    assert counts == [1, 2, 3]
    assert listener.in_a_row == 1
    for each in (*accepted, *crowd, listener):
        each.close()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux runs a program where they arrive")
@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
async def test_new_connections_of_a_thinned_network_are_dropped_and_others_go_on(host: str):
    """Of one at the highest level one of 1,024 passes: that a test fails by chance is as likely."""
    try:
        listener = await SocketNet().listen(Address(host, 0))
    except Unusable:
        pytest.skip("this machine has no IPv6")
    port = listener.address.port
    ours = socket.create_connection(("127.0.0.1", port), source_address=("127.77.1.1", 0))
    theirs = await listener.accept()
    listener.thin({"127.77.0.0/16": 5, "2001:db8::/32": 1})

    ours.sendall(b"still here")  # a connection that is up
    assert await theirs.receive(10) == b"still here"
    with pytest.raises(TimeoutError):
        socket.create_connection(("127.0.0.1", port), 0.3, source_address=("127.77.1.2", 0))
    other = socket.create_connection(("127.0.0.1", port), 5.0, source_address=("127.78.1.2", 0))
    listener.thin({})
    again = socket.create_connection(("127.0.0.1", port), 5.0, source_address=("127.77.1.2", 0))

    for each in (ours, theirs, other, again, listener):
        each.close()
