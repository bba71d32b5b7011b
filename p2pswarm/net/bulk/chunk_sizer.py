"""ChunkSizer: how large the next chunk of a channel should be, by the channel's speed.

On a fast path large chunks cost less. On a slow path an urgent tensor would wait long
for a large chunk of another. So a chunk has as many bytes as leave in `CHUNK_S`.

Units:   bytes, seconds spent sending.
Errors:  none.
Source:  docs/figures.md, "Network on one machine".
"""

CHUNK_S = 0.02  # a fifth of a round trip across an ocean
CHUNK_BYTES_LEAST = 64 * 1024  # smaller records cost too much: AEAD does 2.3 GB/s in 16 KiB pieces
MEMORY_S = 1.0  # of sending; the kernel's buffer takes the first megabytes at once


class ChunkSizer:
    """Measures the rate of one channel; call `note` after each chunk."""

    __slots__ = ("_bytes", "_most", "_s")

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0.0
        self._s = 0.0

    def note(self, length: int, took_s: float) -> None:
        """A chunk of `length` bytes was sent in `took_s`."""
        self._bytes += length
        self._s += took_s
        if self._s > MEMORY_S:
            self._bytes /= 2
            self._s /= 2

    @property
    def chunk_bytes(self) -> int:
        """The largest chunk that should be sent now."""
        if self._bytes * CHUNK_S >= self._s * self._most:  # also true before the first chunk
            return self._most
        whole = int(self._bytes / self._s * CHUNK_S)
        return max(whole - whole % CHUNK_BYTES_LEAST, CHUNK_BYTES_LEAST)
