"""SEAM 1 simulated: streams between hosts, under the real handshake, records and mux.

Units:   virtual seconds, bytes.
Errors:  as `net/os/base.py`; a reader gets LinkLost when either side ends.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from p2pswarm.base.errors import DialFailed, LinkLost, NobodyThere, SwarmError, Unusable
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.os.addresses import address_groups
from p2pswarm.net.os.base import CROWDED_BYTES, BulkMachine, BulkPipe, ControlMachine
from p2pswarm.sim.link import SimClock
from p2pswarm.sim.loop import CLOCK_STEP_S
from p2pswarm.sim.network_conditions import Host, World, WorldConfig

USER_TIMEOUT_S = 20.0  # data unacknowledged for so long ends it, as in net/os/sockets.py
RETRY_S = 1.0  # between two tries on a path that is cut


class Reader(Protocol):
    """What reads a connection at one end."""

    def data(self, data: bytes) -> None:
        """Bytes came."""
        ...

    def over(self, error: SwarmError) -> None:
        """The connection ended; called once, last."""
        ...


class Socket:
    """One end of a connection, as the kernel sees it.

    Bytes arrive in order, delayed by the latency and by the bytes before them. A path that is cut
    is tried again until `USER_TIMEOUT_S`; then the connection ends.
    """

    def __init__(
        self,
        world: World,
        clock: SimClock,
        alive: "dict[Socket, None]",
        host: Host,
        remote: Address,
    ) -> None:
        """`alive`: all sockets of the world that have not ended."""
        self.host = host
        self.remote = remote
        self.clock = clock
        self.far: Socket
        self.reader: Reader
        self.ended = False
        """Whether nothing more is sent or received at this end."""
        self._told = False
        self._world = world
        self._alive = alive
        self._on_way: deque[bytes | None] = deque()
        """The items that are under way, in order; None is the end."""
        self._held: deque[bytes | None] = deque()
        """The items that wait because the path is cut."""
        self._held_since_s = 0.0
        self._last_s = 0.0
        alive[self] = None

    def write(self, data: bytes) -> None:
        """Send; the simulated kernel buffers without limit."""
        if not self.ended:
            self._post(data)

    def close(self, reason: SwarmError | None = None) -> None:
        """End: the other side learns it after all that was written; our reader gets `reason`."""
        if not self.ended:
            self._post(None)
            self.die()
        if reason is not None and not self._told:
            self._told = True
            self.clock.call_soon(self.reader.over, reason)

    def die(self) -> None:
        """End without telling our reader or the other side."""
        self.ended = True
        self._alive.pop(self, None)

    def backlog_s(self, allowed_bytes: int) -> float:
        """Seconds until no more than `allowed_bytes` wait for the uplink."""
        rate = min(self.host.up_bytes_per_s, self._world.path_bytes_per_s(self.host, self.far.host))
        now_s = self.clock.time()
        wait_s = self._world.queued_s(self.host, self.far.host, now_s) - allowed_bytes / rate
        return wait_s if wait_s > CLOCK_STEP_S else 0.0  # a smaller wait would not move the clock

    def _post(self, item: bytes | None) -> None:
        if self._held:
            self._held.append(item)
            return
        now_s = self.clock.time()
        came_s = self._world.arrival_s(self.host, self.far.host, len(item or b""), now_s)
        if came_s is None:
            self._held.append(item)
            self._held_since_s = now_s
            self.clock.call_later(RETRY_S, self._retry)
            return
        self._last_s = max(self._last_s, came_s)
        self._on_way.append(item)
        self.clock.call_at(self._last_s, self.far.on_arrival, self._on_way)

    def _retry(self) -> None:
        held, self._held = self._held, deque()
        if self.clock.time() - self._held_since_s >= USER_TIMEOUT_S:
            self._end(LinkLost(f"{self.remote}: Connection timed out"))
            return
        since_s = self._held_since_s
        for item in held:
            self._post(item)
        if self._held:
            self._held_since_s = since_s

    def on_arrival(self, on_way: "deque[bytes | None]") -> None:
        """The next item from the other end."""
        item = on_way.popleft()
        if self.ended or not self.host.alive:
            return
        if item is None:
            self._end(LinkLost(f"{self.remote}: closed by the peer"))
        else:
            self.reader.data(item)

    def _end(self, error: SwarmError) -> None:
        if not self._told:
            self._told = True
            self.die()
            self.reader.over(error)


KERNEL_BYTES = 256 * 1024  # unsent bytes that a kernel takes, as NOTSENT_LOWAT in net/os/sockets.py


class SimControlPipe:
    """A connection that pushes: implements `ControlPipe`."""

    def __init__(self, socket: Socket, user: ControlMachine) -> None:
        self._socket = socket
        self._user = user
        self._crowded = False
        self._unsent: deque[tuple[float, int]] = deque()
        """When each write will have left, and its bytes: those of bulk pipes do not count here."""
        self._unsent_bytes = 0
        socket.reader = self

    def send(self, data: bytes) -> None:
        """Write now; what the uplink has not taken waits in memory."""
        self._socket.write(data)
        self._unsent.append((self._socket.host.up_free_s, len(data)))
        self._unsent_bytes += len(data)
        if self._waiting_bytes() > CROWDED_BYTES and not self._crowded:
            self._crowded = True
            self._socket.clock.call_at(self._unsent[-1][0], self._drained)
            self._user.pause_writing()

    def close(self) -> None:
        """Send what waits, then end."""
        self._socket.close(LinkLost("closed"))

    abort = close

    def data(self, data: bytes) -> None:
        """From the socket: bytes came."""
        self._user.on_data(data)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._user.on_loss(error)

    def _drained(self) -> None:
        if self._waiting_bytes() > CROWDED_BYTES and not self._socket.ended:
            self._socket.clock.call_at(self._unsent[-1][0], self._drained)
        else:
            self._crowded = False
            self._user.resume_writing()

    def _waiting_bytes(self) -> int:
        now_s = self._socket.clock.time()
        while self._unsent and self._unsent[0][0] <= now_s:
            self._unsent_bytes -= self._unsent.popleft()[1]
        return self._unsent_bytes


class SimBulkPipe:
    """A connection that drives a bulk machine from the loop: implements `BulkPipe`.

    Real ones have threads.
    """

    def __init__(self, socket: Socket, machine: BulkMachine) -> None:
        self._socket = socket
        self._machine = machine
        self._buffer = machine.next_in()
        self._awake = False
        socket.reader = self

    def wake(self) -> None:
        """There is something to send."""
        if not self._awake:
            self._awake = True
            self._socket.clock.call_soon(self._send)

    def acknowledged_bytes(self) -> int | None:
        """Unknown: the simulated kernel does not say."""
        return None

    def close(self) -> None:
        """End it."""
        self._socket.close(LinkLost("closed"))

    def data(self, data: bytes) -> None:
        """From the socket: fill the machine's buffers."""
        rest = memoryview(data)
        try:
            while rest and not self._socket.ended:
                n = min(len(rest), len(self._buffer))
                self._buffer[:n] = rest[:n]
                self._buffer, rest = self._buffer[n:], rest[n:]
                if not self._buffer:
                    self._tell(self._machine.on_fill())
                    self._buffer = self._machine.next_in()
        except SwarmError as error:
            self._socket.close(error)

    def over(self, error: SwarmError) -> None:
        """From the socket: it ended."""
        self._machine.on_loss(error)
        self._socket.clock.call_soon(self._machine.on_release)

    def _send(self) -> None:
        """Send until nothing is left, or until the kernel would take no more."""
        socket = self._socket
        while not socket.ended:
            wait_s = socket.backlog_s(KERNEL_BYTES)
            if wait_s > 0:
                socket.clock.call_later(wait_s, self._send)
                return
            out = self._machine.next_out(socket.clock.time())
            if out is None:
                break
            socket.write(bytes(out))
            self._tell(self._machine.on_write())
        self._awake = False

    def _tell(self, event: Callable[[], None] | None) -> None:
        if event is not None:
            self._socket.clock.call_soon(event)


SYN_S = 127.0  # Linux gives a dial up after this: six retries
SYN_AGAIN_S = 1.0  # before the first of them; twice as long before each further one
BACKLOG = 256  # connections that wait to be accepted
EPHEMERAL_PORT = 32768


class SimInternet:
    """The hosts, the addresses they listen at, and every connection between them."""

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        self.world = World(seed, config or WorldConfig())
        self.listeners: dict[Address, SimListener] = {}
        self.sockets: dict[Socket, None] = {}
        self._next_port = EPHEMERAL_PORT

    def net(self, peer: PeerId, at: tuple[float, float] | None = None) -> "SimNet":
        """The network as the host of `peer` sees it; the host is placed the first time."""
        host = self.world.hosts.get(peer.raw) or self.world.place(peer, at)
        host.alive = True
        return SimNet(self, host)

    def kill(self, peer: PeerId, *, silent: bool = True) -> None:
        """End what runs on a host: as a power cut does if `silent`, else as SIGKILL does."""
        host = self.world.hosts[peer.raw]
        for address, listener in list(self.listeners.items()):
            if address.host == host.address.host:
                listener.close()
        for socket in [socket for socket in self.sockets if socket.host is host]:
            if not silent:
                socket.close()
            socket.die()
        host.alive = not silent

    def socket(self, host: Host, remote: Address) -> Socket:
        """One end of a new connection."""
        return Socket(self.world, asyncio.get_running_loop(), self.sockets, host, remote)

    def free_port(self) -> int:
        """A port for the next connection."""
        self._next_port += 1
        return EPHEMERAL_PORT + self._next_port % EPHEMERAL_PORT


class SimNet:
    """One host's network: implements `Net`."""

    def __init__(self, internet: SimInternet, host: Host) -> None:
        self._internet = internet
        self._host = host

    async def listen(self, at: Address) -> "SimListener":
        """Listen on this host, whatever host `at` names."""
        address = Address(self._host.address.host, at.port or self._internet.free_port())
        if address in self._internet.listeners:
            raise Unusable(f"cannot listen on {address}: Address already in use")
        listener = SimListener(self._internet, address)
        self._internet.listeners[address] = listener
        return listener

    async def dial(self, to: Address, from_port: int = 0) -> "SimConnection":
        """Connect: one round trip."""
        internet, world = self._internet, self._internet.world
        target = world.at(to)
        if target is None or not world.connected(self._host, target):
            await asyncio.sleep(SYN_S)
            raise DialFailed(f"{to}: no answer")
        way_s = world.one_way_s(self._host, target)
        await asyncio.sleep(2 * way_s)
        listener = internet.listeners.get(to)
        wait_s = SYN_AGAIN_S
        while listener is not None and listener.drops(self._host.address.host):
            if wait_s >= SYN_S / 2:
                raise DialFailed(f"{to}: no answer")
            await asyncio.sleep(wait_s)
            wait_s *= 2
            listener = internet.listeners.get(to)
        if listener is None or listener.full:
            raise NobodyThere(f"{to}: Connection refused")
        here = internet.socket(self._host, to)
        caller = Address(self._host.address.host, from_port or internet.free_port())
        there = internet.socket(target, caller)
        here.far, there.far = there, here
        asyncio.get_running_loop().call_later(way_s, listener.on_connection, SimConnection(there))
        return SimConnection(here)

    def lock(self) -> AbstractContextManager[object]:
        """A lock that does nothing: everything runs in one thread here."""
        return contextlib.nullcontext()


class SimListener:
    """An address where connections arrive: implements `Listener`."""

    def __init__(self, internet: SimInternet, address: Address) -> None:
        self.address = address
        """The address that was bound."""
        self._internet = internet
        self._waiting: asyncio.Queue[SimConnection] = asyncio.Queue(BACKLOG)
        self._levels: Mapping[str, int] = {}
        self._dropped = 0
        self.in_a_row = 0
        """How many connections were accepted since none was waiting."""

    @property
    def full(self) -> bool:
        """Whether a further connection is refused."""
        return self._waiting.full()

    def on_connection(self, connection: "SimConnection") -> None:
        """A connection is up."""
        if self._internet.listeners.get(self.address) is not self or self.full:
            connection.close()
        else:
            self._waiting.put_nowait(connection)

    def thin(self, levels: Mapping[str, int]) -> None:
        """See `Listener`."""
        self._levels = levels

    def drops(self, host: str) -> bool:
        """Whether the first packet of a dial from a host is dropped."""
        if not self._levels:
            return False
        of = [self._levels[name] for name in address_groups(host) if name in self._levels]
        self._dropped += bool(of)
        return bool(of) and self._dropped % 4 ** of[-1] != 0

    async def accept(self) -> "SimConnection":
        """The next connection. Cancel this before `close`."""
        self.in_a_row = 0 if self._waiting.empty() else self.in_a_row + 1
        return await self._waiting.get()

    def close(self) -> None:
        """Stop listening."""
        if self._internet.listeners.get(self.address) is self:
            del self._internet.listeners[self.address]


class SimConnection:
    """A connection whose purpose is not yet known: implements `Connection`."""

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
        pipe = SimControlPipe(self._release(), user)
        user.on_open(pipe)
        if self._came:
            user.on_data(bytes(self._came))

    def become_bulk(self, machine: BulkMachine) -> BulkPipe:
        """From now on drive `machine`."""
        pipe = SimBulkPipe(self._release(), machine)
        if self._came:
            pipe.data(bytes(self._came))
        if self._error is not None:
            pipe.over(self._error)
        return pipe

    def close(self) -> None:
        """End it, if it has not become a pipe."""
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
        assert self._socket is not None, "the connection is closed or has become a pipe"
        return self._socket

    def _release(self) -> Socket:
        socket, self._socket = self._own(), None
        return socket
