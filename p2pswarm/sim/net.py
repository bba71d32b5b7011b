"""SEAM 1 simulated: streams between hosts, under the real handshake, records and mux.

`sim/tcp.py` carries the bytes. A connection is raw first, and then becomes one of the pipes of
`sim/pipes.py`.

Units:   virtual seconds, bytes.
Errors:  as `net/os/base.py`.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

from p2pswarm.base.errors import DialFailed, NobodyThere, SwarmError, Unusable
from p2pswarm.base.ids import Address, PeerId
from p2pswarm.net.os.addresses import address_groups
from p2pswarm.net.os.base import BulkMachine, BulkPipe, ControlMachine
from p2pswarm.sim.pipes import SimBulkPipe, SimControlPipe
from p2pswarm.sim.tcp import Socket
from p2pswarm.sim.world import Host, World, WorldConfig

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
        asyncio.get_running_loop().call_later(way_s, listener.came, SimConnection(there))
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

    def came(self, connection: "SimConnection") -> None:
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
