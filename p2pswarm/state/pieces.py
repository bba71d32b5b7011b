"""A snapshot cut into pieces: which to ask for next, and which are here.

Units:   bytes.
Errors:  ValueError when a piece is reported that was not asked for.
"""

from dataclasses import dataclass

PIECE_BYTES = 8 << 20  # 0.3 s at 200 Mbit/s: so much is lost with a donor, at most


@dataclass(frozen=True, slots=True)
class StatePiece:
    """Bytes offset..offset+nbytes-1."""

    offset: int
    nbytes: int


class PieceTracker:
    """The pieces of one snapshot, in order."""

    def __init__(self, nbytes: int, piece_bytes: int = PIECE_BYTES) -> None:
        if nbytes < 1 or piece_bytes < 1:
            raise ValueError(f"{nbytes} bytes in pieces of {piece_bytes}")
        self._missing = {
            offset: StatePiece(offset, min(piece_bytes, nbytes - offset))
            for offset in range(0, nbytes, piece_bytes)
        }
        self._asked: dict[int, StatePiece] = {}

    @property
    def complete(self) -> bool:
        """Every piece is here."""
        return not self._missing and not self._asked

    @property
    def under_way(self) -> int:
        """Pieces that were asked for and are not here."""
        return len(self._asked)

    def ask(self) -> StatePiece | None:
        """The next piece to ask for; None if all are here or asked for."""
        for offset, piece in self._missing.items():
            self._asked[offset] = self._missing.pop(offset)
            return piece
        return None

    def came(self, piece: StatePiece) -> None:
        """A piece that was asked for is here."""
        if self._asked.pop(piece.offset, None) is None:
            raise ValueError(f"{piece} was not asked for")

    def give_up(self) -> None:
        """The donor is gone: what was asked of it is missing again."""
        self._missing = dict(sorted({**self._missing, **self._asked}.items()))
        self._asked = {}
