"""SEAM 1 simulated: streams between hosts, under the real handshake, records and mux.

What `sim/tcp.py` carries is seen here through the seam: first raw, then as a wire
or a bulk pipe. Bulk pipes run on the loop where real ones have threads.

Units:   virtual seconds, bytes.
Errors:  as `net/base.py`.
"""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager

from p2pswarm.errors import DialFailed, LinkLost, SwarmError, Unusable
from p2pswarm.ids import Address, PeerId
from p2pswarm.net.base import CROWDED_BYTES, BulkMachine, BulkPipe, ControlMachine
from p2pswarm.sim.tcp import Socket
from p2pswarm.sim.world import Host, World, WorldConfig

KERNEL_BYTES = 256 * 1024  # what a kernel takes before it sends, as NOTSENT_LOWAT in net/sockets.py
SYN_S = 127.0  # Linux dials so long: six retries
BACKLOG = 256  # connections that nobody has accepted yet
EPHEMERAL_PORT = 32768


class SimInternet:
    """Hosts, who listens where, and every stream between them."""

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        self.world = World(seed, config or WorldConfig())
        self.listeners: dict[Address, SimListener] = {}
        self.sockets: dict[Socket, None] = {}
        self._next_port = EPHEMERAL_PORT

    def net(self, peer: PeerId, at: tuple[float, float] | None = None) -> "SimNet":
        """The network as the host of `peer` sees it; the host is placed at the first time."""
        host = self.world.hosts.get(peer.raw) or self.world.place(peer, at)
        host.alive = True
        return SimNet(self, host)

    def kill(self, peer: PeerId, *, silent: bool = True) -> None:
        """End what runs on a host; `silent` as a power cut is, else as SIGKILL is."""
        host = self.world.hosts[peer.raw]
        for address, listener in list(self.listeners.items()):
            if address.host == host.address.host:
                listener.close()
        for socket in [socket for socket in self.sockets if socket.host is host]:
            if not silent:
                socket.close()
            socket.die()
        host.alive = not silent

    def free_port(self) -> int:
        """A port that no other stream has."""
        self._next_port += 1
        return EPHEMERAL_PORT + self._next_port % EPHEMERAL_PORT


class SimNet:
    """One host's network: implements `Net`."""

    def __init__(self, internet: SimInternet, host: Host) -> None:
        self._internet = internet
        self._host = host

    async def listen(self, at: Address) -> "SimListener":
        """Listen on this host, whatever name `at` gives it."""
        address = Address(self._host.address.host, at.port or self._internet.free_port())
        if address in self._internet.listeners:
            raise Unusable(f"cannot listen on {address}: Address already in use")
        listener = SimListener(self._internet, address)
        self._internet.listeners[address] = listener
        return listener

    async def dial(self, to: Address) -> "SimConnection":
        """Connect: one round trip."""
        internet, world = self._internet, self._internet.world
        target = world.at(to)
        if target is None or not world.connected(self._host, target):
            await asyncio.sleep(SYN_S)
            raise DialFailed(f"{to}: no answer")
        way_s = world.one_way_s(self._host, target)
        await asyncio.sleep(2 * way_s)
        listener = internet.listeners.get(to)
        if listener is None or listener.full:
            raise DialFailed(f"{to}: Connection refused")
        here = Socket(internet.world, internet.sockets, self._host, to)
        caller = Address(self._host.address.host, internet.free_port())
        there = Socket(internet.world, internet.sockets, target, caller)
        here.far, there.far = there, here
        asyncio.get_running_loop().call_later(way_s, listener.came, SimConnection(there))
        return SimConnection(here)

    def lock(self) -> AbstractContextManager[object]:
        """All runs in one thread here."""
        return contextlib.nullcontext()


class SimListener:
    """A place where streams arrive: implements `Listener`."""

    def __init__(self, internet: SimInternet, address: Address) -> None:
        self.address = address
        """What was bound."""
        self._internet = internet
        self._waiting: asyncio.Queue[SimConnection] = asyncio.Queue(BACKLOG)

    @property
    def full(self) -> bool:
        """Whether a further connection is refused."""
        return self._waiting.full()

    def came(self, stream: "SimConnection") -> None:
        """A connection is up."""
        if self._internet.listeners.get(self.address) is not self or self.full:
            stream.close()
        else:
            self._waiting.put_nowait(stream)

    async def accept(self) -> "SimConnection":
        """The next stream. Cancel this before `close`."""
        return await self._waiting.get()

    def close(self) -> None:
        """Stop listening."""
        if self._internet.listeners.get(self.address) is self:
            del self._internet.listeners[self.address]


class SimConnection:
    """A connection whose purpose is not yet known: implements `Stream`."""

    def __init__(self, socket: Socket) -> None:
        self._socket: Socket | None = socket
        self._remote = socket.remote
        self._came = bytearray()
        self._news = asyncio.Event()
        self._error: SwarmError | None = None
        socket.reader = self

    @property
    def remote(self) -> Address:
        """The other end."""
        return self._remote

    async def receive(self, n: int) -> bytes:
        """Exactly `n` bytes."""
        while len(self._came) < n:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        data = bytes(self._came[:n])
        del self._came[:n]
        return data

    async def send(self, data: bytes) -> None:
        """Write all of it."""
        if self._error is not None:
            raise self._error
        self._own().write(data)

    async def become_control(self, user: ControlMachine) -> None:
        """From now on push to `user`."""
        if self._error is not None:
            raise self._error
        wire = SimControlPipe(self._release(), user)
        user.opened(wire)
        if self._came:
            user.received(bytes(self._came))

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """From now on drive `machine`."""
        pipe = SimBulkPipe(self._release(), machine)
        if self._came:
            pipe.data(bytes(self._came))
        if self._error is not None:
            pipe.over(self._error)
        return pipe

    def close(self) -> None:
        """End it, if it has not become something else."""
        if self._socket is not None:
            self._release().close()

    def data(self, data: bytes) -> None:
        """From the socket: bytes came."""
        self._came += data
        self._news.set()

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._error = error
        self._news.set()

    def _own(self) -> Socket:
        assert self._socket is not None, "the stream is closed or has become something else"
        return self._socket

    def _release(self) -> Socket:
        socket, self._socket = self._own(), None
        return socket


class SimControlPipe:
    """A connection that pushes: implements `Wire`."""

    def __init__(self, socket: Socket, user: ControlMachine) -> None:
        self._socket = socket
        self._user = user
        self._crowded = False
        socket.reader = self

    def send(self, data: bytes) -> None:
        """Write now; what the uplink has not taken waits in memory."""
        self._socket.write(data)
        wait_s = self._socket.backlog_s(CROWDED_BYTES)
        if wait_s > 0 and not self._crowded:
            self._crowded = True
            self._socket.loop.call_later(wait_s, self._drained)
            self._user.pause_writing()

    def close(self) -> None:
        """Send what waits, then end."""
        self._socket.close(LinkLost("closed"))

    abort = close

    def data(self, data: bytes) -> None:
        """From the socket: bytes came."""
        self._user.received(data)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._user.lost(error)

    def _drained(self) -> None:
        wait_s = self._socket.backlog_s(0)
        if wait_s > 0 and not self._socket.ended:
            self._socket.loop.call_later(wait_s, self._drained)
        else:
            self._crowded = False
            self._user.resume_writing()


class SimBulkPipe:
    """A connection that drives a bulk machine from the loop: implements `BulkPipe`."""

    def __init__(self, socket: Socket, machine: BulkMachine) -> None:
        self._socket = socket
        self._machine = machine
        self._room = machine.next_in()
        self._awake = False
        socket.reader = self

    def wake(self) -> None:
        """There is something to send."""
        if not self._awake:
            self._awake = True
            self._socket.loop.call_soon(self._send)

    def close(self) -> None:
        """End it."""
        self._socket.close(LinkLost("closed"))

    def data(self, data: bytes) -> None:
        """From the socket: fill the machine's rooms."""
        rest = memoryview(data)
        try:
            while rest and not self._socket.ended:
                n = min(len(rest), len(self._room))
                self._room[:n] = rest[:n]
                self._room, rest = self._room[n:], rest[n:]
                if not self._room:
                    self._tell(self._machine.filled())
                    self._room = self._machine.next_in()
        except SwarmError as error:
            self._socket.close(error)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._machine.lost(error)
        self._socket.loop.call_soon(self._machine.released)

    def _send(self) -> None:
        """Send until nothing is left or the kernel would take no more."""
        socket = self._socket
        while not socket.ended:
            wait_s = socket.backlog_s(KERNEL_BYTES)
            if wait_s > 0:
                socket.loop.call_later(wait_s, self._send)
                return
            out = self._machine.next_out(socket.loop.time())
            if out is None:
                break
            socket.write(bytes(out))
            self._tell(self._machine.sent())
        self._awake = False

    def _tell(self, event: Callable[[], None] | None) -> None:
        if event is not None:
            self._socket.loop.call_soon(event)
