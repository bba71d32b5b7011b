"""The digest of a stage's state from its bytes in the order of a file.

It is the digest that the replicas of a stage agree on (`tensors/state_tree.py`). A piece is a part
of each tensor, and a file has all weights first. So the hash of every piece is under way until the
last part comes; each takes a few hundred bytes.

Units:   bytes; pieces in elements.
"""

import hashlib
from collections import deque

from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.tensors.state_tree import PIECE_VALUES, piece_spans, root_of


class StateHasher:
    """Takes the bytes of a state in order, gaps included."""

    def __init__(self, layout: FlatLayout, piece_values: int = PIECE_VALUES) -> None:
        spans = piece_spans(layout.length, piece_values, layout.row_blocks())
        self._pieces = [hashlib.sha256() for _ in spans]
        sizes = [
            (piece, (stop - start) * item_bytes)
            for item_bytes in layout.item_bytes
            for piece, (start, stop) in enumerate(spans)
        ]
        self._parts = deque((piece, nbytes) for piece, nbytes in sizes if nbytes)
        """What is still to come: which piece, and how much of it."""

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes; at most as many as the state has."""
        view = memoryview(data).cast("B")
        while view.nbytes:
            assert self._parts, "the layout's size"
            piece, nbytes = self._parts.popleft()
            part, view = view[:nbytes], view[nbytes:]
            self._pieces[piece].update(part)
            if part.nbytes < nbytes:
                self._parts.appendleft((piece, nbytes - part.nbytes))

    def digest(self) -> bytes:
        """The digest of the whole state."""
        return root_of(piece.digest() for piece in self._pieces)
