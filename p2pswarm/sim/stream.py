"""Streams of the simulated network: the stream of `rpc/stream` over a transport of virtual time.

Frames really are encoded, order and credit are kept; bulk bytes pay for the
links they cross and are copied into their buffer.

Units:   virtual seconds, bytes.
Errors:  as `rpc/base.py`.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from p2pswarm.errors import LinkLost
from p2pswarm.ids import PeerId
from p2pswarm.rpc.base import Arrival
from p2pswarm.rpc.framing import reset_error
from p2pswarm.rpc.stream import RpcStream
from p2pswarm.sim.process import DEAD_AFTER_S, SimProcess

WINDOW_BYTES = 256 * 1024  # unread messages of one stream, as transport/mux.py
FRAME_COST_BYTES = 64  # of a frame besides its data: headers, tags, what Python adds
CHUNK_BYTES = 1024 * 1024  # bulk bytes that leave before others get their turn


class SimReceiveBuffers:
    """The buffers that one process has set aside for bulk bytes."""

    def __init__(self) -> None:
        self._open: dict[int, SimReceiveBuffer] = {}
        self._next = 1

    def set_aside(self, peer: PeerId, place: memoryview) -> "SimReceiveBuffer":
        """A numbered room for bytes from `peer`."""
        room = SimReceiveBuffer(self._next, peer, place, self._open)
        self._next += 1
        return room

    def arrived(self, peer: PeerId, transfer: int, offset: int, chunk: bytes) -> bool:
        """Bytes came; False if they do not fit the room that they name. Late ones do."""
        room = self._open.get(transfer)
        if room is None:
            return 0 < transfer < self._next
        return room.peer == peer and room.fill(offset, chunk)


class SimReceiveBuffer:
    """Bytes that were granted room and are on their way: implements `Arrival`."""

    def __init__(
        self, transfer: int, peer: PeerId, place: memoryview, buffers: "dict[int, SimReceiveBuffer]"
    ) -> None:
        self.transfer = transfer
        self.peer = peer
        self._place = place.cast("B")
        self._left_bytes = len(self._place)
        self._rooms = buffers
        self._full = asyncio.Event()
        if self._left_bytes:
            buffers[transfer] = self
        else:
            self._full.set()

    async def wait(self) -> None:
        """Return when every byte is in place; the stream ends the wait if none can come."""
        await self._full.wait()

    def cancel(self) -> None:
        """Give the room back."""
        self._rooms.pop(self.transfer, None)

    def fill(self, offset: int, chunk: bytes) -> bool:
        """Put bytes in their place, if they have one."""
        if offset + len(chunk) > len(self._place):
            return False
        self._place[offset : offset + len(chunk)] = chunk
        self._left_bytes -= len(chunk)
        if self._left_bytes <= 0:
            self.cancel()
            self._full.set()
        return True


class SimStreamTransport:
    """One end of the stream of one stream: implements `Road`."""

    def __init__(self, home: SimProcess, away: SimProcess, buffers: SimReceiveBuffers) -> None:
        self.stream: RpcStream | None = None
        """Whom to tell what happens here."""
        self.far: SimStreamTransport
        self._home = home
        self._away = away
        self._rooms = buffers
        self._on_way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._last_s = 0.0
        self._unread_bytes = 0
        self._owed_bytes = 0
        self._halves = 2  # that have not ended
        self._dark = False
        """Nothing gets through, and nobody knows yet."""
        self._gone = False

    @property
    def peer(self) -> PeerId:
        """Who is at the other end."""
        return self._away.host.peer

    def join(self, far: "SimStreamTransport") -> None:
        """Meet the other end."""
        self.far = far
        self._home.lost[self] = self._die

    def leave(self) -> None:
        """Our side has finished: what still comes is thrown away."""
        self.stream = None

    def post(self, size_bytes: int, event: Callable[..., None], *args: Any) -> None:
        """Have something happen at the other end, in order."""
        if self._gone or self._dark:
            return
        loop = asyncio.get_running_loop()
        world, home, away = self._home.world, self._home.host, self._away.host
        came_s = world.arrival_s(home, away, size_bytes, loop.time())
        if came_s is None or not self._home.running:
            self._break()
            return
        self._last_s = max(self._last_s, came_s)
        self._on_way.append((event, args))
        loop.call_at(self._last_s, self._arrive)

    def _arrive(self) -> None:
        event, args = self._on_way.popleft()
        if self._away.running:
            event(*args)

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one frame."""
        del stream
        self._unread_bytes += len(data) + FRAME_COST_BYTES
        self.post(len(data) + FRAME_COST_BYTES, self.far.came, data, ended)
        if ended:
            self._end_half()

    def came(self, data: bytes, ended: bool) -> None:  # noqa: FBT001  an event's argument
        """A frame from the other end."""
        if self.stream is None or self._gone:
            self.consumed(0, len(data))
        else:
            self.stream.data(data, ended=ended)
        if ended:
            self._end_half()

    def writable(self, stream: int) -> bool:
        """Whether the stream has credit."""
        del stream
        return self._unread_bytes < WINDOW_BYTES

    def consumed(self, stream: int, n: int) -> None:
        """A frame was taken: the other end may send as much again."""
        del stream
        self._owed_bytes += n + FRAME_COST_BYTES
        if self._owed_bytes >= WINDOW_BYTES // 2:
            self.post(FRAME_COST_BYTES, self.far.gained, self._owed_bytes)
            self._owed_bytes = 0

    def gained(self, size_bytes: int) -> None:
        """Credit from the other end."""
        self._unread_bytes -= size_bytes
        if self.stream is not None:
            self.stream.credit()

    def reset(self, stream: int, code: int) -> None:
        """Give the stream up."""
        del stream
        self.post(FRAME_COST_BYTES, self.far.was_reset, code)
        self._over()

    def was_reset(self, code: int) -> None:
        """The other end gave the stream up."""
        if self.stream is not None and not self._gone:
            self.stream.fail(reset_error(code))
        self._over()

    def expect(self, buffer: memoryview) -> Arrival:
        """Set room aside."""
        return self._rooms.set_aside(self.peer, buffer)

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send bytes as fast as the uplink takes them."""
        del priority  # one chunk waits for another's end, whatever it is for
        loop = asyncio.get_running_loop()
        flat = data.cast("B")
        for offset in range(0, len(flat), CHUNK_BYTES):
            chunk = bytes(flat[offset : offset + CHUNK_BYTES])
            event = self.far.bulk_came
            if (
                self._gone
                or self._dark
                or not self._home.deliver(
                    self._away.host, len(chunk), event, transfer, offset, chunk
                )
            ):
                await asyncio.sleep(DEAD_AFTER_S)
                raise LinkLost("the link went silent under a transfer")
            await asyncio.sleep(max(0.0, self._home.host.up_free_s - loop.time()))

    def bulk_came(self, transfer: int, offset: int, chunk: bytes) -> None:
        """Bulk bytes from the other end."""
        if self._home.running and not self._rooms.arrived(self.peer, transfer, offset, chunk):
            self.close()

    def close(self) -> None:
        """The other end broke the protocol."""
        self.lose()
        self.far.lose_after(0.0)

    def lose_after(self, wait_s: float) -> None:
        """The other end is gone: this one learns it `wait_s` later, or when the news has come."""
        way_s = self._home.way_s(self._away.host)
        asyncio.get_running_loop().call_later(max(wait_s, way_s), self.lose)

    def _die(self, wait_s: float) -> None:
        """Our process ends: what still runs of it learns that now, the other end in time."""
        self.far.lose_after(wait_s)
        self.lose()

    def lose(self) -> None:
        """The link has ended."""
        if self.stream is not None and not self._gone:
            self.stream.fail(LinkLost(f"the link to {self.peer.short} is lost"))
        self._over()

    def _break(self) -> None:
        """Nothing gets through any more: both ends find out in time."""
        self._dark = True
        self.lose_after(DEAD_AFTER_S)
        self.far.lose_after(DEAD_AFTER_S)

    def _end_half(self) -> None:
        self._halves -= 1
        if not self._halves:
            self._over()

    def _over(self) -> None:
        self._gone = True
        self._home.lost.pop(self, None)


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
