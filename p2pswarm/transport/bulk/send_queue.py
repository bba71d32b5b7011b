"""SendQueue: the transfers that wait to be sent in bulk, cut into chunks, most urgent first.

Every bulk connection of a link takes its next chunk here when it is free. So all
connections share a transfer, and an urgent transfer waits only for the chunks that
are already under way.

Units:   bytes.
Errors:  none that a peer can cause.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from heapq import heappop, heappush

from p2pswarm.transport.bulk.receive_buffers import CHUNK_BYTES_MIN

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

    def __init__(self, lock: AbstractContextManager[object], chunk_bytes: int) -> None:
        self._lock = lock
        self._chunk_bytes = chunk_bytes
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
        with self._lock:
            self._count += 1
            heappush(self._waiting, (priority, self._count, transfer_out))
        return transfer_out

    def cancel(self, transfer_out: OutgoingTransfer) -> None:
        """Send no more of a transfer; a chunk that is being sent still goes out."""
        with self._lock:
            transfer_out.data = _NOTHING

    def take(self, most: int) -> Chunk | None:
        """The next chunk to send, of at most `most` bytes, or None; call `sent` after it."""
        with self._lock:
            waiting = self._waiting
            while waiting:
                transfer_out = waiting[0][2]
                start = transfer_out.next
                if start < len(transfer_out.data):
                    transfer_out.next = end = min(
                        start + min(transfer_out.chunk_bytes, most), len(transfer_out.data)
                    )
                    return Chunk(transfer_out, start, transfer_out.data[start:end])
                heappop(waiting)
            return None

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
            return transfer_out.sent
