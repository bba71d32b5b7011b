"""One bulk connection: chunks of tensors, each a record of header and one of payload.

    chunk = record(transfer u64 | start u64 | length u32) | record(payload)

A payload is encrypted from the tensor into a scratch buffer. The receiver decrypts
it from a scratch buffer into the memory that it granted. So only the cipher and the
kernel copy bytes. Chunks are small enough that both scratch buffers stay in the
processor's cache.

Errors:  BadRecord for bytes that are not authentic: it costs the path. BadChunk for a breach of the
         peer's: it ends the link.
Source:  docs/wire.md; docs/figures.md for the chunk's size.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from p2pswarm.base.errors import BadRecord, SwarmError
from p2pswarm.net.bulk.receive_buffers import CHUNK_BYTES_MAX, ReceiveBuffers
from p2pswarm.net.bulk.send_queue import Chunk, SendQueue
from p2pswarm.net.crypto.handshake import Keys
from p2pswarm.net.crypto.records import (
    OVERHEAD_BYTES,
    PREFIX_BYTES,
    Opener,
    Sealer,
    ciphertext_bytes,
)
from p2pswarm.net.crypto.suite import TAG_BYTES

CHUNK_S = 0.02  # a fifth of a round trip across an ocean
CHUNK_BYTES_LEAST = 64 * 1024  # smaller records cost too much: AEAD does 2.3 GB/s in 16 KiB pieces
MEMORY_S = 1.0  # of sending; the kernel's buffer takes the first megabytes at once


class ChunkSizer:
    """Measures the rate of one channel; call `note` after each chunk.

    On a fast path large chunks cost less. On a slow path an urgent tensor would wait long for a
    large chunk of another. So a chunk has as many bytes as leave in `CHUNK_S`.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._bytes = 0.0
        self._s = 0.0

    def on_chunk(self, length: int, took_s: float) -> None:
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


_HEADER = struct.Struct(">QQI")
HEADER_BYTES = _HEADER.size + OVERHEAD_BYTES
HEAD_BYTES = HEADER_BYTES + PREFIX_BYTES  # the payload's prefix is read with the header
SCRATCH_BYTES_MAX = HEADER_BYTES + CHUNK_BYTES_MAX + OVERHEAD_BYTES
_NOTHING = memoryview(b"")
LABEL = b"bulk"  # each direction of each connection has a key of its own


@dataclass(frozen=True, slots=True)
class ChannelCallbacks:
    """The functions that a channel calls at its end, in the event loop."""

    on_loss: Callable[[SwarmError], None]
    """Called when the channel cannot be used any more."""
    on_release: Callable[[], None]
    """Called when its socket is closed."""
    on_stray_chunk: Callable[[int], None]
    """Called with the number of a transfer of which a chunk came that nobody wants."""


@dataclass(frozen=True, slots=True)
class _IncomingChunk:
    """The chunk whose payload is awaited."""

    transfer: int
    start: int
    length: int
    target: memoryview | None
    """The memory of the payload; None if it was taken back."""
    prefix: bytes


class BulkChannel:
    """The rules of one bulk pipe: implements `BulkMachine` of `net/os/base.py`.

    Receiving and sending may run in two threads. They share only the receive buffers and the
    send queue of the link, which have locks of their own.
    """

    def __init__(
        self,
        keys: Keys,
        buffers: ReceiveBuffers,
        send_queue: SendQueue,
        callbacks: ChannelCallbacks,
        now_s: float,
        number: int = 0,
    ) -> None:
        """`now_s`: when the keys were made, on the clock of `next_out`. `number`: of its join."""
        self._number = number
        self._buffers = buffers
        self._send_queue = send_queue
        self._opener = Opener(keys.receive_key, keys.suite, LABEL)
        self._sealer = Sealer(keys.send_key, keys.suite, LABEL, now_s)
        self._scratch_in = self._scratch_out = _NOTHING  # they grow to what the chunks need
        self._head = memoryview(bytearray(HEAD_BYTES))
        self._incoming: _IncomingChunk | None = None
        self._outgoing: Chunk | None = None
        self._sizer = ChunkSizer(CHUNK_BYTES_MAX)
        self._begun_s = 0.0
        self._unpaced_bytes = 0
        self._callbacks = callbacks
        self.on_loss = callbacks.on_loss
        self.retired = False
        """Set when it takes no new chunk, because it is about to be closed."""
        self.chunks_out = 0
        """The number of chunks that it has taken to send."""
        self.chunks_in = 0
        self.received_bytes = 0
        self.sent_bytes = 0

    def expects_bytes(self) -> bool:
        """Return whether memory was ever granted to the peer."""
        return self._buffers.granted

    def next_in(self) -> memoryview:
        """The memory for the next bytes."""
        incoming = self._incoming
        return self._head if incoming is None else self._scratch_in[: incoming.length + TAG_BYTES]

    def on_fill(self) -> Callable[[], None] | None:
        """Open the header or the payload that has come."""
        incoming = self._incoming
        if incoming is None:
            self._open_head()
            return None
        ciphertext = self._scratch_in[: incoming.length + TAG_BYTES]
        if incoming.target is None:
            self._opener.open(ciphertext, incoming.prefix)  # dropped: its nonce is counted
            self._incoming = None
            self.chunks_in += 1
            return partial(self._callbacks.on_stray_chunk, incoming.transfer)
        self._opener.open_into(ciphertext, incoming.prefix, incoming.target)
        self._incoming = None  # only now: of a chunk that is not authentic the claim is given back
        self.chunks_in += 1
        self.received_bytes += incoming.length
        return self._buffers.on_payload(incoming.transfer, incoming.length)

    def next_out(self, now_s: float) -> memoryview | None:
        """The next chunk, sealed."""
        if self._unpaced_bytes:  # this call follows `on_write` at once, so no idle time is counted
            self._sizer.on_chunk(self._unpaced_bytes, now_s - self._begun_s)
            self._unpaced_bytes = 0
        at = (self._number, self.chunks_out)
        chunk = None
        if not self.retired:
            chunk = self._send_queue.take(self._sizer.chunk_bytes, now_s, at)
        if chunk is None:
            return None
        self.chunks_out += 1
        self._outgoing, self._begun_s = chunk, now_s
        length = len(chunk.data)
        out = self._scratch_out = _grown(self._scratch_out, HEADER_BYTES + length + OVERHEAD_BYTES)
        header = _HEADER.pack(chunk.transfer_out.transfer, chunk.start, length)
        self._sealer.seal_into(header, out, now_s)
        self._sealer.seal_into(chunk.data, out[HEADER_BYTES:], now_s)
        return out[: HEADER_BYTES + length + OVERHEAD_BYTES]

    def on_write(self) -> Callable[[], None] | None:
        """The kernel has the chunk."""
        chunk, self._outgoing = self._outgoing, None
        assert chunk is not None
        self._unpaced_bytes = len(chunk.data)
        self.sent_bytes += len(chunk.data)
        return self._send_queue.on_write(chunk)

    def on_release(self) -> None:
        """Free the buffers now, without waiting for the garbage collector."""
        self._scratch_in = self._scratch_out = _NOTHING
        incoming, self._incoming = self._incoming, None
        if incoming is not None and incoming.target is not None:
            self._buffers.unclaim(incoming.transfer, incoming.start, incoming.length)
        if self._outgoing is not None:
            self._send_queue.on_chunk_loss(self._outgoing)
        self._callbacks.on_release()

    def _open_head(self) -> None:
        head = self._head
        if ciphertext_bytes(head[:PREFIX_BYTES]) != _HEADER.size + TAG_BYTES:
            raise BadRecord("a chunk without its header")  # the length is not proven yet
        header = self._opener.open(head[PREFIX_BYTES:HEADER_BYTES], head[:PREFIX_BYTES])
        transfer, start, length = _HEADER.unpack(header)
        prefix = bytes(head[HEADER_BYTES:])
        if ciphertext_bytes(prefix) != length + TAG_BYTES:
            raise BadRecord(f"a chunk of {length} bytes in a record of another length")
        target = self._buffers.claim(transfer, start, length)
        self._scratch_in = _grown(self._scratch_in, length + TAG_BYTES)
        self._incoming = _IncomingChunk(transfer, start, length, target, prefix)


def _grown(scratch: memoryview, need: int) -> memoryview:
    """A buffer of at least `need` bytes: this one, or a new and larger one."""
    if len(scratch) >= need:
        return scratch
    return memoryview(bytearray(min(2 * need, SCRATCH_BYTES_MAX)))
