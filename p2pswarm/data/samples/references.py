"""References of a run of dpo: the log probability of each answer before any training, in a file.

They are computed once, a batch after another, and the file grows with each. So a trainer that is
started again goes on where it was, and every later run of the same text, model and template has
them at once. The file begins with the digest of these; of a torn end what is whole counts.

Units:   nats.
Errors:  Unusable for a file of another text, model or template, and for one that cannot be written.
"""

import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from p2pswarm.base.errors import Unusable

HEADER = struct.Struct("<8s32sQ")  # tag, key, answers
PART = struct.Struct("<QQ")  # the first answer, and how many; then their numbers, and a CRC-32
CHECK = struct.Struct("<I")
TAG = b"p2prefs1"  # rises when what is written changes
NUMBER_BYTES = 8


class References:
    """The numbers that are known, and their file."""

    def __init__(self, path: Path, key: bytes, pairs: int, answers: int) -> None:
        """`key`: 32 bytes that tell what they are of; `pairs`: how many are trained on."""
        self.path, self.key = path, key
        self._header = HEADER.pack(TAG, key, answers)
        self._scores = np.full(answers, np.nan)
        self._written_bytes = 0
        """Of the file, what is whole."""
        both = self._scores.reshape(-1, 2)
        self.train: NDArray[np.float64] = both[:pairs]
        """(pairs, 2); NaN where one is not known yet."""
        self.held_out: NDArray[np.float64] = both[pairs:]
        self._lacking = answers
        self._read()

    def __len__(self) -> int:
        """All answers, those to train on first."""
        return len(self._scores)

    @property
    def known(self) -> int:
        """Of how many answers they are known."""
        return len(self) - self._lacking

    @property
    def complete(self) -> bool:
        """True if all are known."""
        return not self._lacking

    def due(self, rows: int) -> tuple[int, ...]:
        """The batches of so many answers in which one is not known."""
        lacking = np.flatnonzero(np.isnan(self._scores)) // rows
        return tuple(np.unique(lacking).tolist())

    def keep(self, first: int, scores: Sequence[float]) -> None:
        """Numbers of answers that follow each other; those after the last one are no news."""
        new = np.array(scores[: max(0, len(self) - first)], dtype="<f8")
        if np.array_equal(new, self._scores[first : first + len(new)]):
            return  # none, or none that is news
        self._take(first, new)
        part = PART.pack(first, len(new)) + new.tobytes()
        data = part + CHECK.pack(zlib.crc32(part))
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("r+b" if self._written_bytes else "wb") as file:
                file.seek(self._written_bytes)
                file.truncate()
                if not self._written_bytes:
                    data = self._header + data
                file.write(data)
        except OSError as error:
            raise Unusable(f"{self.path}: cannot be written: {error.strerror}") from error
        self._written_bytes += len(data)

    def part(self, first: int, most: int) -> tuple[float, ...]:
        """Numbers from one on, for another trainer."""
        return tuple(self._scores[first : first + most].tolist())

    @property
    def as_bytes(self) -> bytes:
        """A whole file, for another place."""
        part = PART.pack(0, len(self)) + self._scores.astype("<f8").tobytes()
        return self._header + part + CHECK.pack(zlib.crc32(part))

    def _read(self) -> None:
        """Take what the file has; one that was torn in its header has nothing."""
        try:
            with self.path.open("rb") as file:
                header = file.read(HEADER.size)
                data = header + file.read() if header == self._header else b""
        except FileNotFoundError:
            return
        except OSError as error:
            raise Unusable(f"{self.path}: cannot be read: {error.strerror}") from error
        if not self._header.startswith(header):
            raise Unusable(
                f"{self.path}: references of another text, model or template: remove it to have "
                "this run's computed, or name their file in train.references"
            )
        if not data:
            return
        place = HEADER.size
        while (end := self._read_part(data, place)) is not None:
            place = end
        self._written_bytes = place

    def _read_part(self, data: bytes, place: int) -> int | None:
        """Take the part at a place; returns its end, None if it is not whole."""
        if place + PART.size > len(data):
            return None
        first, count = map(int, PART.unpack_from(data, place))
        numbers, end = place + PART.size, place + PART.size + NUMBER_BYTES * count
        if first + count > len(self) or end + CHECK.size > len(data):
            return None
        (check,) = CHECK.unpack_from(data, end)
        if zlib.crc32(data[place:end]) != check:
            return None
        self._take(first, np.frombuffer(data[numbers:end], dtype="<f8"))
        return end + CHECK.size

    def _take(self, first: int, new: NDArray[np.float64]) -> None:
        there = self._scores[first : first + len(new)]
        self._lacking -= int(np.count_nonzero(np.isnan(there)))
        there[:] = np.where(np.isfinite(new), new, np.nan)
        self._lacking += int(np.count_nonzero(np.isnan(there)))
