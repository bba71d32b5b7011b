"""What a server has written of a checkpoint.

Units:   bytes.
Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.swarm.messages.types import RunId, Stage, Step
from p2pswarm.wire.message import Message, Range, Size, message

PIECES_MAX = 1024  # of a file: their digests fit one message
SHA256_BYTES = 32

Sha256 = Annotated[bytes, Size(SHA256_BYTES, SHA256_BYTES)]
Block = Annotated[int, Range(0, 2**20)]


@message(99)
@dataclass(frozen=True, slots=True)
class Saved(Message):
    """A note to the trainer: the sender's file of its stage is whole and has its name."""

    run: RunId
    step: Step
    """Commits so far: the version of the weights."""
    stage: Stage
    first_block: Block
    end_block: Block
    """The block after the stage's last."""
    state_digest: Sha256
    """Of weights and moments, as the stage agreed on it."""
    size: Annotated[int, Range(1, 2**50)]
    sha256: Sha256
    piece_bytes: Annotated[int, Range(1, 2**30)]
    pieces: Annotated[bytes, Size(SHA256_BYTES, PIECES_MAX * SHA256_BYTES)]
    """The SHA-256 of each piece of the file, one after another."""

    def __post_init__(self) -> None:
        if len(self.pieces) != -(-self.size // self.piece_bytes) * SHA256_BYTES:
            raise ValueError(f"{len(self.pieces)} bytes of digests for {self.size} bytes")
