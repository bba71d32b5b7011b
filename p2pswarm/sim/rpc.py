"""SEAM 2 simulated: calls and streams between thousands of nodes in one process.

There is neither crypto nor mux, so 10,000 nodes can look each other up in seconds.
`sim/process.py` has the events of a call and `sim/stream_end.py` those of a stream; here are the
parts that wait.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from p2pswarm.base.errors import BadHandshake, DialFailed, LinkLost, NotServing
from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.guard.connection_limits import HandlerLimits
from p2pswarm.net.rpc.base import Arrival
from p2pswarm.net.rpc.framing import Kind, error_for_caller, pack_opening
from p2pswarm.net.rpc.handler_pool import HandlerRequest
from p2pswarm.net.rpc.stream import RpcStream, held, within
from p2pswarm.net.wire.message import Message, decode, encode
from p2pswarm.sim.network_conditions import Host, Place, WorldConfig
from p2pswarm.sim.process import Population, SimCall, SimPeer, SimProcess
from p2pswarm.sim.stream_end import SimReceiveBuffers, SimStreamEnd

CHUNK_BYTES = 1024 * 1024  # bulk bytes that leave at a time; other transfers come between
CHUNK_LEAST_BYTES = 8 * 1024  # in memory: more chunks cost time, and share a link no better


class SimArrival:
    """Bytes that were granted a buffer and are on their way: implements `Arrival`."""

    def __init__(self, peer: PeerId, place: memoryview, buffers: SimReceiveBuffers) -> None:
        self._buffers = buffers
        self._full = asyncio.Event()
        self.transfer = buffers.set_aside(peer, place, self._full.set).transfer

    async def wait(self) -> None:
        """Return when every byte is in place; the stream cancels this if none can come."""
        await self._full.wait()

    def cancel(self) -> None:
        """Give the buffer back."""
        self._buffers.drop(self.transfer)


class SimStreamTransport(SimStreamEnd):
    """One end of a stream that also carries tensors: implements `StreamTransport`.

    Frames are encoded as in a real stream, in order and within the credit. Bulk bytes take time on
    the links, and are copied into their buffer.
    """

    def expect(self, buffer: memoryview) -> Arrival:
        """Set a buffer aside."""
        return SimArrival(self.peer, buffer, self.buffers)

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send bytes as fast as the uplink takes them."""
        flat = data.cast("B")
        scale = self.here.world.config.bulk_scale
        chunk_bytes = max(CHUNK_LEAST_BYTES, round(CHUNK_BYTES / scale))
        async with self.bulk_turns.transfer(priority) as turn:
            for offset in range(0, len(flat), chunk_bytes):
                if not self.post_bulk(transfer, offset, bytes(flat[offset : offset + chunk_bytes])):
                    raise LinkLost("the stream ended under a transfer")
                await asyncio.sleep(self.uplink_wait_s)
                await turn.chunk_sent()


def connect_streams(
    near: SimProcess, far: SimProcess, buffers: tuple[SimReceiveBuffers, SimReceiveBuffers]
) -> SimStreamTransport:
    """A transport between two processes, as the near one sees it."""
    here = SimStreamTransport(near, far, buffers[0])
    there = SimStreamTransport(far, near, buffers[1])
    here.join(there)
    there.join(here)
    return here


DIAL_S = 5.0  # until a dial without an answer fails, as in net/config.py


class SimRpc(SimPeer):
    """One simulated process: implements `Rpc`."""

    def __init__(self, world: "SimWorld", host: Host, limits: HandlerLimits) -> None:
        super().__init__(world, host, limits)
        self.buffers = SimReceiveBuffers()

    async def call(self, to: Contact, request: Message, timeout_s: float) -> Message:
        """Ask once; see `Rpc`."""
        loop = asyncio.get_running_loop()
        reply: asyncio.Future[Message] = loop.create_future()
        call = SimCall(self, reply, timeout_s)
        late = loop.call_later(timeout_s, call.expire)
        try:
            call.begin(to, request)
            return await reply
        finally:
            late.cancel()
            call.end()

    async def connect(self, to: Contact) -> "SimRpc":
        """The process at a contact, once a link to it is up."""
        host, meant = self.population.find(to)
        link = self.population.link(self, host) if host is not None and meant else None
        if link is not None:  # nobody knows yet if it is dead
            far = next(end for end in link.ends if end is not self)
            assert isinstance(far, SimRpc), "streams run between processes with handlers"
            return far
        process: SimRpc | None = self.population.at(host) if host is not None else None
        if host is None or not self._reaches(host, process):
            await asyncio.sleep(DIAL_S)
            raise DialFailed(f"{to.address} does not answer")
        await asyncio.sleep(2 * self.way_s(host) if not (meant and process) else self.dial_s(host))
        if process is None or not process.running:
            raise DialFailed(f"nobody listens at {to.address}")
        if not meant:
            raise BadHandshake(f"{to.address} is not {to.peer}")
        return process

    def _reaches(self, host: Host, process: "SimRpc | None") -> bool:
        """Return whether a handshake can end: both paths are whole, and nobody is stopped."""
        world = self.world
        both = world.connected(self.host, host) and world.connected(host, self.host)
        return both and not (process is not None and process.suspension.stopped)

    @asynccontextmanager
    async def open_stream(
        self, to: Contact, opening: Message, timeout_s: float | None
    ) -> AsyncIterator[RpcStream]:
        """Open a stream; see `Rpc`."""
        body = encode(opening)
        pack_opening(Kind.STREAM, timeout_s, body)  # what opens a stream fits one frame
        async with within(timeout_s, f"stream with {to.address}"):
            server = await self.connect(to)
            here = connect_streams(self, server, (self.buffers, server.buffers))
            stream = here.stream = RpcStream(here)
            here.post(len(body), server.on_stream, here.far, decode(body), timeout_s)
            try:
                async with held(stream):
                    yield stream
            finally:
                here.leave()

    def on_stream(
        self, here: SimStreamTransport, opening: Message, timeout_s: float | None
    ) -> None:
        """A peer opened a stream."""
        if here.gone:
            return  # the link was lost meanwhile
        stream = RpcStream(here)
        try:
            self._attend(stream, here, opening, timeout_s)
        except Exception as error:  # noqa: BLE001  the caller gets it; logged if it is a bug
            stream.finish(error_for_caller(error, opening))

    def _attend(
        self, stream: RpcStream, here: SimStreamTransport, opening: Message, timeout_s: float | None
    ) -> None:
        handler = self.stream_handlers.get(type(opening))
        if handler is None:
            raise NotServing(f"no streams of {type(opening).__name__} here")
        order = HandlerRequest(here.peer, opening, timeout_s, here.leave)
        self.pools[Kind.STREAM].start(stream, order, handler(stream, opening))
        here.stream = stream


class SimWorld(Population[SimRpc]):
    """The network of one simulated run, and the processes on its hosts."""

    def __init__(self, seed: int, config: WorldConfig | None = None) -> None:
        super().__init__(seed, config, asyncio.get_running_loop)

    def rpc(
        self,
        peer: PeerId,
        at: Place | None = None,
        config: HandlerLimits | None = None,
        address: Address | None = None,
    ) -> SimRpc:
        """Start a process of `peer` on its host; `at` places a new one."""
        return self.start(SimRpc(self, self.enter(peer, at, address), config or HandlerLimits()))
