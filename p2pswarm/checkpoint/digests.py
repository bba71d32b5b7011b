"""The SHA-256 of a file and of each of its pieces, made while the bytes pass.

A reader can check any piece alone. A file has at most `PIECES_MAX` of them, so that the list fits
a message; a large file has larger pieces.

Units:   bytes.
"""

import hashlib
from dataclasses import dataclass

PIECE_BYTES = 8 << 20  # as much as a reader holds in memory, if the file is not huge
PIECES_MAX = 1024  # 32 KiB of digests: they fit one message, and a line of the manifest
PIECE_BYTES_MAX = 1 << 30  # a file of 1 TiB
DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class FileDigest:
    """What identifies the bytes of a file."""

    size: int
    sha256: bytes
    piece_bytes: int
    pieces: tuple[bytes, ...]
    """The SHA-256 of each piece; the last may be shorter."""

    def matches(self, number: int, piece: bytes) -> bool:
        """Whether `piece` is the file's piece of this number."""
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
