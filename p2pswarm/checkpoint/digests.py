"""Digests of a checkpoint's files and of the state that they hold."""

import hashlib
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from p2pswarm.tensors.flat_layout import FlatLayout
from p2pswarm.tensors.state_tree import PIECE_VALUES, base_leaves, piece_spans, root_of

PIECE_BYTES = 8 << 20  # as much as a reader holds in memory, if the file is not huge
PIECES_MAX = 1024  # 32 KiB of digests: they fit one message, and a line of the manifest
PIECE_BYTES_MAX = 1 << 30  # a file of 1 TiB
DIGEST_BYTES = 32
ZEROS = bytes(1 << 20)


def zeros(nbytes: int) -> Iterator[bytes]:
    """So many bytes of zeros, in parts: a gap may be as large as a state."""
    for left in range(nbytes, 0, -len(ZEROS)):
        yield ZEROS[:left]


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The SHA-256 of a file and of each of its pieces: a reader can check any piece alone."""

    size: int
    sha256: bytes
    piece_bytes: int
    pieces: tuple[bytes, ...]
    """The SHA-256 of each piece; the last may be shorter."""

    def matches(self, number: int, piece: bytes) -> bool:
        """Return whether `piece` is the file's piece of this number."""
        return hashlib.sha256(piece).digest() == self.pieces[number]


class FileHasher:
    """Makes the digest of a file from its bytes in order."""

    def __init__(self, piece_bytes: int) -> None:
        self._piece_bytes = piece_bytes
        self._size = 0
        self._whole = hashlib.sha256()
        self._piece = hashlib.sha256()
        self._pieces: list[bytes] = []

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes."""
        view = memoryview(data).cast("B")
        self._whole.update(view)
        while view.nbytes:
            part = view[: self._piece_bytes - self._size % self._piece_bytes]
            self._piece.update(part)
            self._size += part.nbytes
            view = view[part.nbytes :]
            if self._size % self._piece_bytes == 0:
                self._end_piece()

    def finish(self) -> FileDigest:
        """The digest of all bytes so far."""
        if self._size % self._piece_bytes:
            self._end_piece()
        pieces = tuple(self._pieces)
        return FileDigest(self._size, self._whole.digest(), self._piece_bytes, pieces)

    def _end_piece(self) -> None:
        self._pieces.append(self._piece.digest())
        self._piece = hashlib.sha256()


def piece_bytes_for(size: int, piece_bytes: int = PIECE_BYTES) -> int:
    """The size of a file's pieces: `piece_bytes`, doubled until there are few enough."""
    while piece_bytes * PIECES_MAX < size:
        piece_bytes *= 2
    return piece_bytes


class StateHasher:
    """Makes the digest of a stage's state from its bytes in the order of a file, gaps included.

    It is the digest that the replicas of a stage agree on (`tensors/state_tree.py`). A piece is a
    part of each tensor, and a file has all weights first. So the hash of every piece is under way
    until the last part comes; each takes a few hundred bytes.
    """

    def __init__(
        self,
        layout: FlatLayout,
        base: Sequence[bytes] = (),
        piece_values: int = PIECE_VALUES,
    ) -> None:
        """`base`: the roots of the frozen weights under the state."""
        self._base = base
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
        hashes = (piece.digest() for piece in self._pieces)
        return root_of([*hashes, *base_leaves(self._base)])
