"""SendQueue: the transfers that wait to be sent in bulk, cut into chunks, most urgent first."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from heapq import heappop, heappush

from p2pswarm.net.bulk.receive_buffers import CHUNK_BYTES_MIN
from p2pswarm.net.bulk.upload_share import BACKGROUND, UploadShare, Wake

_NOTHING = memoryview(b"")

Done = Callable[[], None]
ChunkPosition = tuple[int, int]
"""(number of the bulk connection, number of the chunk on it)"""


@dataclass(slots=True, eq=False)
class OutgoingTransfer:
    """One transfer on its way out."""

    transfer: int
    data: memoryview
    unsent_bytes: int
    priority: int
    chunk_bytes: int
    done: Done  # called when the peer wants no more of `data`
    next: int = 0
    again: list[tuple[int, int]] = field(default_factory=list)  # (start, end) of lost chunks
    under_way: dict[ChunkPosition, tuple[int, int]] = field(default_factory=dict)
    taken: int = 0  # chunks that a connection reads from `data` just now
    over: bool = False


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an outgoing transfer."""

    transfer_out: OutgoingTransfer
    start: int
    data: memoryview


class SendQueue:
    """The outgoing transfers of one link. With `lock`, several bulk connections may use it.

    Every bulk connection of a link takes its next chunk here when it is free. So all connections
    share a transfer, and an urgent transfer waits only for the chunks that are already under way.
    What is not urgent also yields to the other links (`upload_share.py`).

    A transfer is over when the peer says so. Until then each chunk is known by the connection that
    took it. When a connection breaks, the peer tells how many chunks came on it; the others are
    sent again, on any connection.
    """

    def __init__(
        self,
        lock: AbstractContextManager[object],
        chunk_bytes: int,
        upload: UploadShare,
        wake: Wake,
    ) -> None:
        """`wake`: makes the link's connections call `take` again; any thread may call it."""
        self._lock = lock
        self._chunk_bytes = chunk_bytes
        self._upload = upload
        self._wake = wake
        self._waiting: list[tuple[int, int, OutgoingTransfer]] = []
        self._live: dict[int, OutgoingTransfer] = {}
        self._count = 0

    def add(
        self, transfer: int, data: memoryview, priority: int, channels: int, done: Done
    ) -> OutgoingTransfer:
        """Queue a view for so many channels; `done` is called when the peer wants no more of it."""
        even = -(-len(data) // channels)
        chunk_bytes = min(self._chunk_bytes, max(even, CHUNK_BYTES_MIN))
        transfer_out = OutgoingTransfer(transfer, data, len(data), priority, chunk_bytes, done)
        if priority < BACKGROUND:
            self._upload.begin(transfer_out)
        with self._lock:
            self._live[transfer] = transfer_out
            self._enqueue(transfer_out)
        return transfer_out

    def cancel(self, transfer_out: OutgoingTransfer) -> None:
        """Send no more of a transfer; a chunk that is being sent still goes out."""
        with self._lock:
            transfer_out.over = True
            self._forget(transfer_out)
        self._sent(transfer_out)

    def on_done(self, transfer: int) -> None:
        """The peer has all of a transfer, or wants no more of it; ignored if it is not known."""
        with self._lock:
            transfer_out = self._live.get(transfer)
            if transfer_out is None:
                return
            transfer_out.over = True
            if transfer_out.taken:  # a connection still reads from its memory: `on_write` ends it
                return
            self._forget(transfer_out)
        self._sent(transfer_out)
        transfer_out.done()

    def on_channel_end(self, number: int, chunks: int) -> bool:
        """Send again what a connection that is over took after so many chunks; whether any."""
        lost = False
        with self._lock:
            for transfer_out in self._live.values():
                under_way = transfer_out.under_way
                positions = [position for position in under_way if position[0] == number]
                missing = [under_way[each] for each in positions if each[1] >= chunks]
                for position in positions:
                    del under_way[position]
                if missing and not transfer_out.over:
                    lost = True
                    transfer_out.again += missing
                    transfer_out.unsent_bytes += sum(end - start for start, end in missing)
                    self._enqueue(transfer_out)
        return lost

    def take(self, most: int, now_s: float, position: ChunkPosition = (0, 0)) -> Chunk | None:
        """The next chunk, for `position`, or None; then call `on_write` or `on_chunk_loss`."""
        woken: list[Wake] = []
        try:
            with self._lock:
                return self._next(most, now_s, woken, position)
        finally:
            for wake in woken:
                wake()

    def _next(
        self, most: int, now_s: float, woken: list[Wake], position: ChunkPosition
    ) -> Chunk | None:
        """As `take`; adds the links to wake to `woken`."""
        waiting = self._waiting
        while waiting:
            priority, _, transfer_out = waiting[0]
            start, end = _next_span(transfer_out, most)
            if start >= end:
                heappop(waiting)
            elif priority < BACKGROUND:
                woken += self._upload.on_urgent_chunk(end - start, now_s)
                break
            elif self._upload.may_send(end - start, now_s, self._wake):
                break
            else:
                return None
        else:
            return None
        if transfer_out.again:
            transfer_out.again.pop()
        else:
            transfer_out.next = end
        transfer_out.under_way[position] = (start, end)
        transfer_out.taken += 1
        return Chunk(transfer_out, start, transfer_out.data[start:end])

    def on_write(self, chunk: Chunk) -> Done | None:
        """Note that the kernel has a chunk; returns `done` if the peer wants no more by now."""
        transfer_out = chunk.transfer_out
        with self._lock:
            transfer_out.taken -= 1
            transfer_out.unsent_bytes -= len(chunk.data)
            finished = (
                transfer_out.over
                and not transfer_out.taken
                and self._live.get(transfer_out.transfer) is transfer_out
            )
            if finished:
                self._forget(transfer_out)
            elif transfer_out.unsent_bytes:
                return None
        self._sent(transfer_out)
        return transfer_out.done if finished else None

    def on_chunk_loss(self, chunk: Chunk) -> None:
        """Note that the connection of a chunk broke before the kernel had it."""
        if (done := self.on_write(chunk)) is not None:
            done()

    def _enqueue(self, transfer_out: OutgoingTransfer) -> None:
        self._count += 1
        heappush(self._waiting, (transfer_out.priority, self._count, transfer_out))

    def _forget(self, transfer_out: OutgoingTransfer) -> None:
        """Let go of a transfer's memory: the caller may use it again."""
        transfer_out.data = _NOTHING
        transfer_out.again.clear()
        transfer_out.under_way.clear()
        if self._live.get(transfer_out.transfer) is transfer_out:
            del self._live[transfer_out.transfer]

    def _sent(self, transfer_out: OutgoingTransfer) -> None:
        """It is urgent no more: the kernel has all of it, or it is over."""
        for wake in self._upload.end(transfer_out):
            wake()


def _next_span(transfer_out: OutgoingTransfer, most: int) -> tuple[int, int]:
    """The next bytes to send, from `start` to `end`; a chunk that was lost stays as it was."""
    if transfer_out.again:
        return transfer_out.again[-1]
    start = transfer_out.next
    return start, min(start + min(transfer_out.chunk_bytes, most), len(transfer_out.data))
