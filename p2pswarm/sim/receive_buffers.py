"""The buffers that a simulated process has set aside for bulk bytes.

Units:   bytes.
Errors:  none; `arrived` returns False for bytes that break the protocol.
"""

from collections.abc import Callable

from p2pswarm.base.ids import PeerId


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

    def arrived(self, peer: PeerId, transfer: int, offset: int, chunk: bytes) -> bool:
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
        """Whether bytes lie within the buffer."""
        return offset + len(chunk) <= len(self._place)

    def add(self, offset: int, chunk: bytes) -> bool:
        """Put bytes in place; True if all are there now."""
        self._place[offset : offset + len(chunk)] = chunk
        self._left_bytes -= len(chunk)
        if self._left_bytes > 0:
            return False
        self._filled()
        return True
