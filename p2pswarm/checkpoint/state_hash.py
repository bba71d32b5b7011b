"""The digest of a stage's state from its bytes in the order of a file.

It is the digest that the replicas of a stage agree on (`tensors/state_tree.py`). A piece is a part
of each tensor, and a file has all weights first. So the hash of every piece is under way until the
last part comes; each takes a few hundred bytes.

Units:   bytes; pieces in elements.
"""

import hashlib

from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.tensors.state_tree import PIECE_VALUES, piece_spans, root_of


class StateHasher:
    """Takes the bytes of a state in order, gaps included."""

    def __init__(self, layout: FlatLayout, piece_values: int = PIECE_VALUES) -> None:
        self._tensor_bytes = layout.length * layout.item_bytes
        spans = piece_spans(layout.length, piece_values, layout.row_blocks())
        self._stops = [stop * layout.item_bytes for _, stop in spans]
        self._pieces = [hashlib.sha256() for _ in spans]
        self._number = 0
        self._bytes = layout.buffers * self._tensor_bytes
        self._taken = 0

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes; at most as many as the state has."""
        view = memoryview(data).cast("B")
        assert self._taken + view.nbytes <= self._bytes, "the layout's size"
        while view.nbytes:
            part = view[: self._stops[self._number] - self._taken % self._tensor_bytes]
            self._pieces[self._number].update(part)
            self._taken += part.nbytes
            view = view[part.nbytes :]
            if self._taken % self._tensor_bytes in (0, self._stops[self._number]):
                self._number = (self._number + 1) % len(self._pieces)

    def digest(self) -> bytes:
        """The digest of the whole state."""
        return root_of(piece.digest() for piece in self._pieces)
