"""The state of one stage, downloaded into plain memory while it stands still.

Who only wants the weights (a trainer at the end of its run) hears no commits: all pieces have to be
of one version, whose digest is known before.

Units:   bytes.
Errors:  none.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from p2pswarm.flow.signal import Signal
from p2pswarm.ids import Contact
from p2pswarm.state.piece_actions import DownloadLimits
from p2pswarm.state.piece_download import PieceDownload
from p2pswarm.state.snapshot import Snapshot
from p2pswarm.tensors.flat_layout import Span

STILL = DownloadLimits(versions=0)


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of a stage's state."""

    spans: Sequence[Span]
    """Of its pieces."""
    value_bytes: int
    tensors: int = 3
    """Weights, first and second moments."""

    @property
    def values(self) -> int:
        """Elements of each tensor."""
        return self.spans[-1][1]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return self.tensors * self.values * self.value_bytes


class HostState:
    """Implements `StateInDownload` on memory of its own."""

    def __init__(self, size: StateSize, version: int, digest: bytes, moved: Signal) -> None:
        """`digest`: what the stage agrees on for that version; `moved`: donors have changed."""
        self._tensors, self._tensor_bytes = size.tensors, size.values * size.value_bytes
        item = size.value_bytes
        self._spans = [(start * item, stop * item) for start, stop in size.spans]
        self._data = memoryview(bytearray(self._tensors * self._tensor_bytes))
        self._version, self._digest = version, digest
        self.rules = PieceDownload(len(self._spans), version, STILL)
        self.rules.agreed(version, digest)
        self.moved = moved
        """Fired when the rules were told something."""

    @property
    def enough(self) -> bool:
        """Whether all is here and proved."""
        return self.rules.complete

    def usable(self, donor: Contact) -> bool:
        """Whether a donor has given nothing damaged."""
        return donor.peer is None or not self.rules.is_bad(donor.peer.raw)

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        start, stop = self._spans[piece]
        return self._tensors * (stop - start)

    async def came(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place."""
        hashed = hashlib.sha256(data).digest()
        now_s = asyncio.get_running_loop().time()
        if self.rules.piece_came(donor, piece, version, hashed, now_s) is None:
            return
        start, stop = self._spans[piece]
        for tensor in range(self._tensors):
            at, part = tensor * self._tensor_bytes, tensor * (stop - start)
            self._data[at + start : at + stop] = data[part : part + stop - start]

    def snapshot(self) -> Snapshot:
        """The whole state."""
        return Snapshot(self._version, self._digest, self._data)
