"""Files that a run reads for as long as it lasts, and that must stay as they are.

Units:   bytes; places count through all files, in their order.
Errors:  Unusable for a file that cannot be read, and for one whose length has changed.
"""

import hashlib
import itertools
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from p2pswarm.base.errors import Unusable
from p2pswarm.data.samples.corpus import stable_hash

BLOCK_BYTES = 1 << 16
DIGEST_BLOCKS = 4096  # 256 MiB of a larger text are hashed: 10 GB would take ten seconds


class ImmutableFiles:
    """Files in an order, with the lengths that they had when the run began."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = tuple(paths)
        try:
            self.sizes = [path.stat().st_size for path in paths]
        except OSError as error:
            raise Unusable(f"{error.filename}: cannot be read: {error.strerror}") from error
        self.begins = [0, *itertools.accumulate(self.sizes)]
        """Where each begins; the last number is the length of all."""

    def digest(
        self, what: str, *, block_bytes: int = BLOCK_BYTES, blocks_max: int = DIGEST_BLOCKS
    ) -> bytes:
        """SHA-256 of the files: of all of a small text, of blocks that lie anywhere of a large one.

        `what`: how they are read.
        """
        digest = hashlib.sha256(f"{what} {self.begins}".encode())
        blocks = [0, *itertools.accumulate(-(-size // block_bytes) for size in self.sizes)]
        chosen: Iterable[int] = range(blocks[-1])
        if blocks[-1] > blocks_max:
            hashes = (stable_hash(f"block:{number}") for number in range(blocks_max))
            chosen = sorted({found % blocks[-1] for found in hashes})
        for block in chosen:
            number = bisect_right(blocks, block) - 1
            with self.opened(number) as file:
                file.seek((block - blocks[number]) * block_bytes)
                digest.update(file.read(block_bytes))
        return digest.digest()

    def checked(self, number: int) -> Path:
        """The path of a file that has the length that it had."""
        path = self.paths[number]
        try:
            size_bytes = path.stat().st_size
        except OSError as error:
            raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
        if size_bytes != self.sizes[number]:
            raise Unusable(
                f"{path}: changed while the run reads it: put it back as it was, or begin "
                "another run"
            )
        return path

    @contextmanager
    def opened(self, number: int) -> Iterator[BinaryIO]:
        """A file, for as long as it is read."""
        path = self.checked(number)
        try:
            with path.open("rb") as file:
                yield file
        except OSError as error:
            raise Unusable(f"{path}: cannot be read: {error.strerror}") from error
