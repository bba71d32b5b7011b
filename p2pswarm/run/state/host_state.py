"""The state of one stage, downloaded into plain memory while it stands still."""

import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from p2pswarm.base.ids import Contact
from p2pswarm.base.signal import Signal
from p2pswarm.run.state.base import Snapshot
from p2pswarm.run.state.piece_download import DownloadLimits, PieceDownload
from p2pswarm.tensors.flat_layout import FlatLayout, Span
from p2pswarm.tensors.state_tree import piece_spans

STILL = DownloadLimits(versions=0)


@dataclass(frozen=True, slots=True)
class StateSize:
    """The size of a stage's state."""

    spans: Sequence[Span]
    """Of its pieces."""
    item_bytes: Sequence[int]
    """Of an element of each tensor: weights, first and second moments, perhaps an average."""

    @classmethod
    def of(cls, layout: FlatLayout) -> Self:
        """The size of a stage whose parameters lie like this."""
        return cls(piece_spans(layout.length, whole=layout.row_blocks()), layout.item_bytes)

    @property
    def values(self) -> int:
        """Elements of each tensor."""
        return self.spans[-1][1]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return self.values * sum(self.item_bytes)


class HostState:
    """Implements `StateInDownload` on memory of its own.

    Who only wants the weights (a trainer at the end of its run) hears no commits: all pieces have
    to be of one version, whose digest is known before.
    """

    def __init__(
        self, size: StateSize, version: int, digest: bytes, moved: Signal, *, has_base: bool = False
    ) -> None:
        """`digest`: what the stage agrees on for that version; `moved`: donors have changed.

        `has_base`: the run freezes weights, which need not be here.
        """
        self._size = size
        self._data = memoryview(bytearray(size.nbytes))
        self._version, self._digest = version, digest
        base = None if has_base else ()
        self.rules = PieceDownload(len(size.spans), version, STILL, base)
        self.rules.agreed(version, digest)
        self.moved = moved
        """Fired when the rules were told something."""

    def usable(self, donor: Contact) -> bool:
        """Return whether a donor has given nothing damaged."""
        return donor.peer is None or not self.rules.is_bad(donor.peer.raw)

    def piece_bytes(self, piece: int) -> int:
        """The size of a piece."""
        start, stop = self._size.spans[piece]
        return (stop - start) * sum(self._size.item_bytes)

    async def on_piece(self, donor: bytes, piece: int, version: int, data: memoryview) -> None:
        """Put a piece that a donor has given in its place."""
        hashed = hashlib.sha256(data).digest()
        now_s = asyncio.get_running_loop().time()
        if self.rules.piece_came(donor, piece, version, hashed, now_s) is None:
            return
        start, stop = self._size.spans[piece]
        at = part = 0
        for item in self._size.item_bytes:
            nbytes = (stop - start) * item
            self._data[at + start * item : at + stop * item] = data[part : part + nbytes]
            at += self._size.values * item
            part += nbytes

    def snapshot(self) -> Snapshot:
        """The whole state."""
        return Snapshot(self._version, self._digest, self._data, self.rules.base or ())
