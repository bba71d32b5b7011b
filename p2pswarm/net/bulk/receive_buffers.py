"""ReceiveBuffers: the memory that was granted to a peer's transfers, and what has come.

Errors:  BadChunk for a breach; Busy if too many buffers are granted.
"""

from bisect import bisect_left
from collections.abc import Callable
from contextlib import AbstractContextManager

from p2pswarm.base.errors import BadChunk, Busy

CHUNK_BYTES_MAX = 1024 * 1024  # payload of one bulk record: larger is not faster
CHUNK_BYTES_MIN = 16 * 1024  # of all but a transfer's last chunk: a peer cannot cut finer
BUFFERS_MAX = 4096  # granted at once on one link: tensors of many microbatches under way


class Coverage:
    """The claimed parts of a transfer, as sorted ranges that neither overlap nor touch."""

    __slots__ = ("_ends", "_size", "_starts")

    def __init__(self, size: int) -> None:
        self._size = size
        self._starts: list[int] = []
        self._ends: list[int] = []

    def claim(self, start: int, length: int) -> None:
        """Claim the bytes [start, start + length); BadChunk if they are claimed or not allowed."""
        end = start + length
        if end > self._size or not 0 < length <= CHUNK_BYTES_MAX:
            raise BadChunk(f"bytes {start}..{end} of a transfer of {self._size}")
        if length < CHUNK_BYTES_MIN and end != self._size:
            raise BadChunk(f"a chunk of {length} bytes before the end")
        at = bisect_left(self._starts, start)
        if (at and self._ends[at - 1] > start) or (
            at < len(self._starts) and self._starts[at] < end
        ):
            raise BadChunk(f"bytes {start}..{end} came twice")
        after = at < len(self._starts) and self._starts[at] == end
        if at and self._ends[at - 1] == start:
            self._ends[at - 1] = self._ends.pop(at) if after else end
            if after:
                del self._starts[at]
        elif after:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._ends.insert(at, end)

    def unclaim(self, start: int, length: int) -> None:
        """Take back a claim whose bytes did not come."""
        end = start + length
        at = bisect_left(self._starts, start + 1) - 1
        first, last = self._starts.pop(at), self._ends.pop(at)
        for left, right in ((end, last), (first, start)):
            if left < right:
                self._starts.insert(at, left)
                self._ends.insert(at, right)


class _ReceiveBuffer:
    __slots__ = ("claimed", "filled", "left_bytes", "memory")

    def __init__(self, memory: memoryview, filled: Callable[[], None]) -> None:
        self.memory = memory
        self.filled = filled
        self.left_bytes = len(memory)
        self.claimed = Coverage(len(memory))


class ReceiveBuffers:
    """The buffers of one link. With `lock`, several bulk connections may use them at once.

    The chunks of a transfer come in any order on any bulk connection, each byte once. A late chunk
    for memory that was taken back is dropped. It is a breach of the protocol to send what was not
    granted, or bytes outside the transfer, or bytes twice.
    """

    def __init__(self, lock: AbstractContextManager[object]) -> None:
        self._lock = lock
        self._buffers: dict[int, _ReceiveBuffer] = {}
        self._next = 1  # 0 says "inline" in a grant

    @property
    def granted(self) -> bool:
        """Return whether memory was ever granted."""
        return self._next > 1

    def add(self, memory: memoryview, filled: Callable[[], None]) -> int:
        """Grant `memory`, a flat writable view; returns its number; Busy if there are too many."""
        with self._lock:
            if len(self._buffers) >= BUFFERS_MAX:
                raise Busy(f"{BUFFERS_MAX} transfers are under way on this link")
            transfer = self._next
            self._next += 1
            self._buffers[transfer] = _ReceiveBuffer(memory, filled)
            return transfer

    def cancel(self, transfer: int) -> None:
        """Take the memory back, if it is still granted."""
        with self._lock:
            self._buffers.pop(transfer, None)

    def claim(self, transfer: int, start: int, length: int) -> memoryview | None:
        """The memory for a chunk, or None if it was taken back; BadChunk for a breach."""
        with self._lock:
            buffer = self._buffers.get(transfer)
            if buffer is not None:
                buffer.claimed.claim(start, length)
                return buffer.memory[start : start + length]
            if not 0 < transfer < self._next or length > CHUNK_BYTES_MAX:
                raise BadChunk(f"transfer {transfer} was not granted")
            return None

    def unclaim(self, transfer: int, start: int, length: int) -> None:
        """Note that a claimed chunk will not come: its connection has ended."""
        with self._lock:
            buffer = self._buffers.get(transfer)
            if buffer is not None:
                buffer.claimed.unclaim(start, length)

    def on_payload(self, transfer: int, length: int) -> Callable[[], None] | None:
        """Note that a chunk is in place; returns its transfer's `filled` if that is full now."""
        with self._lock:
            buffer = self._buffers.get(transfer)
            if buffer is None:
                return None
            buffer.left_bytes -= length
            if buffer.left_bytes:
                return None
            del self._buffers[transfer]
            return buffer.filled
