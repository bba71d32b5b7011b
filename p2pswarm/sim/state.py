"""The state of a simulated stage: pieces that know their version, of the size that real ones have.

Units:   bytes.
Errors:  AssertionError for a commit that a piece does not follow: the protocol has a bug then.
"""

import functools
from collections.abc import Sequence

from p2pswarm.base.errors import BadMessage
from p2pswarm.models.compute.base import Update
from p2pswarm.models.compute.torch_sums import TorchSums
from p2pswarm.run.averaging.base import Sums
from p2pswarm.run.averaging.shards import Span
from p2pswarm.tensors.codecs.base import Tensor
from p2pswarm.tensors.state_tree import piece_hash, root_of

PIECE_BYTES = 256 * 1024
ENDS = 2  # of a model, which add to the elements that they have in common
HEAD_BYTES = 16  # of a piece: its stage and its version


class CountingState:
    """Implements `StateMemory`: each piece is its stage and version, filled up."""

    tensors = 1

    def __init__(
        self,
        stage: int,
        state_bytes: int,
        microbatches: int | None = None,
        tied: Span | None = None,
    ) -> None:
        """`microbatches`: how many elements of a gradient count one each; None: all do.

        `tied`: the elements to which both ends of the model add.
        """
        self._stage = stage
        self._microbatches = microbatches
        self._tied = tied
        self._bytes = max(HEAD_BYTES, state_bytes)
        self.pieces = -(-self._bytes // PIECE_BYTES)
        self._versions = [0] * self.pieces

    @property
    def version(self) -> int:
        """The version of the whole state; the oldest piece's while it comes."""
        return min(self._versions)

    def become(self, version: int) -> None:
        """All pieces are of one version now."""
        self._versions = [version] * self.pieces

    def hashes(self) -> tuple[bytes, ...]:
        """The hash of each piece."""
        return tuple(
            _hash_of(self._stage, version, self.part_bytes(0, piece))
            for piece, version in enumerate(self._versions)
        )

    def digest(self) -> bytes:
        """The digest of the state: replicas of one version have the same."""
        return root_of(self.hashes())

    def part_bytes(self, tensor: int, piece: int) -> int:
        """The size of a piece."""
        del tensor
        rest = self._bytes - piece * PIECE_BYTES
        return max(HEAD_BYTES, min(PIECE_BYTES, rest))

    def read(self, tensor: int, piece: int) -> memoryview:
        """Copy a piece."""
        nbytes = self.part_bytes(tensor, piece)
        return memoryview(_content(self._stage, self._versions[piece], nbytes))

    def write(self, piece: int, parts: Sequence[memoryview]) -> None:
        """Put a piece in its place."""
        (part,) = parts
        if part.nbytes != self.part_bytes(0, piece):
            raise BadMessage(f"{part.nbytes} bytes are no piece {piece}")
        self._versions[piece] = int.from_bytes(part[HEAD_BYTES // 2 : HEAD_BYTES])

    def gradient(self, reduced: Sums, piece: int) -> Tensor:
        """Return how often each microbatch was counted; the same for every piece.

        In a tied run also how often on each of its two ends.
        """
        del piece
        assert isinstance(reduced, TorchSums)
        counts = reduced.reduced_N[: self._microbatches].clone()
        if self._tied is None:
            return counts
        both = reduced.reduced_N[self._tied.start : self._tied.stop]
        return counts.new_tensor([*counts.tolist(), *(both / ENDS).tolist()])

    def follow(self, piece: int, gradient: Tensor, update: Update) -> None:
        """Apply a commit to one piece."""
        before = update.number - 1
        assert self._versions[piece] == before, f"{update} on a piece of {self._versions[piece]}"
        assert all(count == 1 for count in gradient.tolist()), "counted otherwise than once"
        self._versions[piece] = update.number


def _content(stage: int, version: int, nbytes: int) -> bytes:
    half = HEAD_BYTES // 2
    return (stage.to_bytes(half) + version.to_bytes(half)).ljust(nbytes, b"\0")


@functools.lru_cache(maxsize=1024)
def _hash_of(stage: int, version: int, nbytes: int) -> bytes:
    return piece_hash([memoryview(_content(stage, version, nbytes))])
