"""Streams of the simulated network: the stream of `rpc/stream` over a transport of virtual time.

Frames are encoded as in a real stream, in order and within the credit. Bulk bytes take time on the
links, and are copied into their buffer.

Units:   virtual seconds, bytes.
Errors:  as `net/rpc/base.py`.
"""

import asyncio

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.base import Arrival
from p2pswarm.sim.process import SimProcess
from p2pswarm.sim.receive_buffers import SimReceiveBuffers
from p2pswarm.sim.stream_end import SimStreamEnd

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
    """One end of a stream that also carries tensors: implements `StreamTransport`."""

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
    here, there = (
        SimStreamTransport(near, far, buffers[0]),
        SimStreamTransport(far, near, buffers[1]),
    )
    here.join(there)
    there.join(here)
    return here
