"""Reads a stage's file by pieces; each is checked before anybody sees it.

The copies of a file have the same bytes. So a piece that is damaged in one copy, or that cannot be
read, is taken from another.

Units:   bytes.
Errors:  BadCheckpoint when no copy has a piece.
"""

from collections.abc import Iterator, Sequence

from p2pswarm.base.errors import BadCheckpoint
from p2pswarm.checkpoint.digests import FileDigest
from p2pswarm.checkpoint.stage_file import (
    LENGTH_BYTES,
    TensorInFile,
    header_length,
    tensors_in,
)
from p2pswarm.checkpoint.store import CheckpointStore


class PieceReader:
    """Reads the bytes that a `FileDigest` describes."""

    def __init__(self, store: CheckpointStore, paths: Sequence[str], digest: FileDigest) -> None:
        """`paths` are copies of one file; the first is preferred."""
        self._store = store
        self._paths = paths
        self._digest = digest
        self._held: tuple[int, bytes] = (-1, b"")
        """The last piece: the next tensor often begins in it."""

    def read(self, offset: int, nbytes: int) -> Iterator[memoryview]:
        """Bytes of the file, in parts."""
        size = self._digest.piece_bytes
        while nbytes:
            number, begin = divmod(offset, size)
            part = memoryview(self._piece(number))[begin : begin + nbytes]
            yield part
            offset += part.nbytes
            nbytes -= part.nbytes

    def release(self) -> None:
        """Forget the last piece: nothing more is read for now."""
        self._held = (-1, b"")

    def header(self) -> bytes:
        """All bytes before the first tensor."""
        size = self._digest.size
        first = b"".join(self.read(0, min(LENGTH_BYTES, size)))
        return b"".join(self.read(0, header_length(first, size)))

    def tensors(self) -> dict[str, TensorInFile]:
        """The tensors of the file."""
        return tensors_in(self.header(), self._digest.size)

    def _piece(self, number: int) -> bytes:
        held, piece = self._held
        if held == number:
            return piece
        self.release()  # its memory is free before the next piece comes
        refusals = []
        for path in self._paths:
            try:
                offset = number * self._digest.piece_bytes
                piece = self._store.read(path, offset, self._digest.piece_bytes)
            except OSError as error:
                refusals.append(f"{path}: {error.strerror or error}")
                continue
            if self._digest.matches(number, piece):
                self._held = (number, piece)
                return piece
            refusals.append(f"{path} is damaged in piece {number} of {len(self._digest.pieces)}")
        raise BadCheckpoint("; ".join(refusals) or "a stage without a file")
