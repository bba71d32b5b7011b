"""One end of a simulated stream: order, credit, buffers, and the end of the other."""

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from p2pswarm.base.errors import LinkLost
from p2pswarm.base.ids import PeerId
from p2pswarm.net.rpc.framing import reset_error
from p2pswarm.net.rpc.stream import RpcStream
from p2pswarm.sim.bulk_turns import BulkTurns
from p2pswarm.sim.link import WORLD, SimLink
from p2pswarm.sim.process import SimProcess


class SimReceiveBuffers:
    """Buffers by the number of their transfer."""

    def __init__(self) -> None:
        self._open: dict[int, SimReceiveBuffer] = {}
        self._next = 1

    def set_aside(
        self, peer: PeerId, place: memoryview, filled: Callable[[], None]
    ) -> "SimReceiveBuffer":
        """A numbered buffer for bytes from `peer`; `filled` is called when all are in place."""
        buffer = SimReceiveBuffer(self._next, peer, place.cast("B"), filled)
        self._next += 1
        if not buffer.add(0, b""):
            self._open[buffer.transfer] = buffer
        return buffer

    def on_arrival(self, peer: PeerId, transfer: int, offset: int, chunk: bytes) -> bool:
        """Put bytes in place; False if they do not fit. Late bytes are ignored, and fit."""
        buffer = self._open.get(transfer)
        if buffer is None:
            return 0 < transfer < self._next
        if buffer.peer != peer or not buffer.fits(offset, chunk):
            return False
        if buffer.add(offset, chunk):
            self.drop(transfer)
        return True

    def drop(self, transfer: int) -> None:
        """Give a buffer back; bytes that still come for it are ignored."""
        self._open.pop(transfer, None)


class SimReceiveBuffer:
    """The memory of one transfer."""

    def __init__(
        self, transfer: int, peer: PeerId, place: memoryview, filled: Callable[[], None]
    ) -> None:
        self.transfer = transfer
        self.peer = peer
        self._place = place
        self._left_bytes = len(place)
        self._filled = filled

    def fits(self, offset: int, chunk: bytes) -> bool:
        """Return whether bytes lie within the buffer."""
        return offset + len(chunk) <= len(self._place)

    def add(self, offset: int, chunk: bytes) -> bool:
        """Put bytes in place; True if all are there now."""
        self._place[offset : offset + len(chunk)] = chunk
        self._left_bytes -= len(chunk)
        if self._left_bytes > 0:
            return False
        self._filled()
        return True


WINDOW_BYTES = 256 * 1024  # unread messages of one stream, as in net/link/mux.py
FRAME_COST_BYTES = 64  # what a frame costs besides its data: header, tag, Python objects


class SimStreamEnd:
    """One end of a stream: what it sends arrives at the other end in order, or never."""

    def __init__(self, here: SimProcess, there: SimProcess, buffers: SimReceiveBuffers) -> None:
        self.stream: RpcStream | None = None
        """The stream that is told what happens; None once our side has finished."""
        self.far: SimStreamEnd
        self.here = here
        self.there = there
        self.buffers = buffers
        self._on_way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._last_s = 0.0
        self._unread_bytes = 0
        self._owed_bytes = 0
        self._halves = 2  # directions that have not ended
        self._link: SimLink = here.population.link_between(here, there)
        self.gone = False
        """True if the stream has ended here."""

    @property
    def peer(self) -> PeerId:
        """The peer at the other end."""
        return self.there.host.peer

    def join(self, far: "SimStreamEnd") -> None:
        """Meet the other end."""
        self.far = far
        self._link.join(self, self.here, self.lose)

    def leave(self) -> None:
        """Our side has finished; what still comes is ignored."""
        self.stream = None

    def post(self, size_bytes: int, event: Callable[..., None], *args: Any) -> None:
        """Call `event` at the other end when `size_bytes` have arrived, in order."""
        send = partial(self._post, size_bytes, event, *args)
        if not self.gone and self.here.sends(self.there.host, args, send):
            send()

    def _post(self, size_bytes: int, event: Callable[..., None], *args: Any) -> None:
        """As `post`, by the kernel: also what was given to it before the stream ended here."""
        if self._link.ended or not self.here.running:
            return
        if not self._link.passes(self.here):
            self._link.hold(self.here, lambda: self._post(size_bytes, event, *args))
            return
        clock = self.here.clock
        world, here, there = self.here.world, self.here.host, self.there.host
        came_s = world.arrival_s(here, there, size_bytes, clock.time())
        assert came_s is not None, "the path is whole"
        self._last_s = max(self._last_s, came_s)
        self._on_way.append((event, args))
        clock.call_at(self._last_s, self._arrive, context=WORLD)

    def _arrive(self) -> None:
        event, args = self._on_way.popleft()
        self.there.receive(self.here.host, event, *args)

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one frame."""
        del stream
        self._unread_bytes += len(data) + FRAME_COST_BYTES
        self.post(len(data) + FRAME_COST_BYTES, self.far.on_frame, data, ended)
        if ended:
            self._end_half()

    def on_frame(self, data: bytes, ended: bool) -> None:  # noqa: FBT001  an event's argument
        """A frame from the other end."""
        if self.stream is None or self.gone:
            self.consume(0, len(data))
        else:
            self.stream.on_frame(data, ended=ended)
        if ended:
            self._end_half()

    def writable(self, stream: int) -> bool:
        """Return whether the stream has credit."""
        del stream
        return self._unread_bytes < WINDOW_BYTES

    def consume(self, stream: int, n: int) -> None:
        """A frame was taken: the other end may send as much again."""
        del stream
        self._owed_bytes += n + FRAME_COST_BYTES
        if self._owed_bytes >= WINDOW_BYTES // 2:
            self.post(FRAME_COST_BYTES, self.far.on_credit, self._owed_bytes)
            self._owed_bytes = 0

    def on_credit(self, size_bytes: int) -> None:
        """Credit from the other end."""
        self._unread_bytes -= size_bytes
        if self.stream is not None:
            self.stream.on_credit()

    def reset(self, stream: int, code: int) -> None:
        """Give the stream up."""
        del stream
        self.post(FRAME_COST_BYTES, self.far.on_reset, code)
        self._over()

    def on_reset(self, code: int) -> None:
        """The other end gave the stream up."""
        if self.stream is not None and not self.gone:
            self.stream.fail(reset_error(code))
        self._over()

    def post_bulk(self, transfer: int, offset: int, chunk: bytes) -> bool:
        """Send bulk bytes, which may overtake messages; False if the stream has ended."""
        if self.gone or not self.here.running:
            return False
        event = self.far.on_bulk
        if not self._link.passes(self.here):
            self._link.hold(self.here, lambda: self.post_bulk(transfer, offset, chunk))
            return True
        clock = self.here.clock
        size_bytes = round(len(chunk) * self.here.world.config.bulk_scale)
        world, here, there = self.here.world, self.here.host, self.there.host
        came_s = world.arrival_s(here, there, size_bytes, clock.time())
        assert came_s is not None, "the path is whole"
        clock.call_at(came_s, self.there.take, event, transfer, offset, chunk, context=WORLD)
        return True

    @property
    def bulk_turns(self) -> BulkTurns:
        """The transfers that go from here to the other end."""
        return self._link.bulk_turns(self.here)

    @property
    def uplink_wait_s(self) -> float:
        """Seconds until our uplink, and the path to the other end, have sent what they have."""
        here, there = self.here, self.there
        return here.world.queued_s(here.host, there.host, here.clock.time())

    def on_bulk(self, transfer: int, offset: int, chunk: bytes) -> None:
        """Bulk bytes from the other end."""
        if not self.gone and not self.buffers.on_arrival(self.peer, transfer, offset, chunk):
            self.close()

    def close(self) -> None:
        """The other end broke the protocol: the link ends."""
        self._link.end_after(0.0)

    def lose(self) -> None:
        """The link has ended."""
        if self.stream is not None and not self.gone:
            self.stream.fail(LinkLost(f"the link to {self.peer.short} is lost"))
        self._over()

    def _end_half(self) -> None:
        self._halves -= 1
        if not self._halves:
            self._over()

    def _over(self) -> None:
        self.gone = True
        self._link.leave(self)
