"""SendQueue: the transfers that wait to be sent in bulk, cut into chunks, most urgent first.

Every bulk connection of a link takes its next chunk here when it is free. So all
connections share a transfer, and an urgent transfer waits only for the chunks that
are already under way. What is not urgent also yields to the other links (`upload_share.py`).

Units:   bytes.
Errors:  none that a peer can cause.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from heapq import heappop, heappush

from p2pswarm.transport.bulk.receive_buffers import CHUNK_BYTES_MIN
from p2pswarm.transport.bulk.upload_share import BACKGROUND, UploadShare, Wake

_NOTHING = memoryview(b"")


class OutgoingTransfer:
    """One transfer on its way out."""

    __slots__ = ("chunk_bytes", "data", "next", "sent", "transfer", "unsent_bytes")

    def __init__(
        self, transfer: int, data: memoryview, chunk_bytes: int, sent: Callable[[], None]
    ) -> None:
        """`sent`: called when the kernel has all of `data`."""
        self.transfer = transfer
        self.data = data
        self.chunk_bytes = chunk_bytes
        self.sent = sent
        self.next = 0
        self.unsent_bytes = len(data)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of an outgoing transfer."""

    transfer_out: OutgoingTransfer
    start: int
    data: memoryview


class SendQueue:
    """The outgoing transfers of one link. With `lock`, several bulk connections may use it."""

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
        self._count = 0

    def add(
        self,
        transfer: int,
        data: memoryview,
        priority: int,
        channels: int,
        sent: Callable[[], None],
    ) -> OutgoingTransfer:
        """Queue a flat view of bytes; `channels`: how many connections should share it."""
        even = -(-len(data) // channels)
        chunk_bytes = min(self._chunk_bytes, max(even, CHUNK_BYTES_MIN))
        transfer_out = OutgoingTransfer(transfer, data, chunk_bytes, sent)
        if priority < BACKGROUND:
            self._upload.began(transfer_out)
        with self._lock:
            self._count += 1
            heappush(self._waiting, (priority, self._count, transfer_out))
        return transfer_out

    def cancel(self, transfer_out: OutgoingTransfer) -> None:
        """Send no more of a transfer; a chunk that is being sent still goes out."""
        with self._lock:
            transfer_out.data = _NOTHING
        self._over(transfer_out)

    def take(self, most: int, now_s: float) -> Chunk | None:
        """The next chunk to send, of at most `most` bytes, or None; call `sent` after it."""
        woken: list[Wake] = []
        try:
            with self._lock:
                return self._next(most, now_s, woken)
        finally:
            for wake in woken:
                wake()

    def _next(self, most: int, now_s: float, woken: list[Wake]) -> Chunk | None:
        """As `take`; adds the links to wake to `woken`."""
        waiting = self._waiting
        while waiting:
            priority, _, transfer_out = waiting[0]
            start = transfer_out.next
            end = min(start + min(transfer_out.chunk_bytes, most), len(transfer_out.data))
            if start >= end:
                heappop(waiting)
            elif priority < BACKGROUND:
                woken += self._upload.sends_urgent(end - start, now_s)
                break
            elif self._upload.may_send(end - start, now_s, self._wake):
                break
            else:
                return None
        else:
            return None
        transfer_out.next = end
        return Chunk(transfer_out, start, transfer_out.data[start:end])

    def sent(self, chunk: Chunk) -> Callable[[], None] | None:
        """Note that the kernel has a chunk.

        Returns the transfer's `sent` function if that was the last chunk.
        """
        transfer_out = chunk.transfer_out
        with self._lock:
            transfer_out.unsent_bytes -= len(chunk.data)
            if transfer_out.unsent_bytes:
                return None
            transfer_out.data = _NOTHING  # the caller may use its memory again
        self._over(transfer_out)
        return transfer_out.sent

    def _over(self, transfer_out: OutgoingTransfer) -> None:
        for wake in self._upload.over(transfer_out):
            wake()
