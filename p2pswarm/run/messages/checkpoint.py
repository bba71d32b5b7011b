"""Checkpoints while a run goes on: who is to save, how far it is, what is saved, where to load."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, message
from p2pswarm.run.messages.field_limits import Digest, Reason, RunId, Stage, Step
from p2pswarm.run.messages.run import RunOrigin

PIECES_MAX = 1024  # of a file: their digests fit one message
SHA256_BYTES = 32

TARGET_CHARS = 1000  # a path or URL; file systems allow some 4,000
FOLDER_CHARS = 100  # of a checkpoint's name: the longest has 86

Sha256 = Annotated[bytes, Size(SHA256_BYTES, SHA256_BYTES)]
Block = Annotated[int, Range(0, 2**20)]
Target = Annotated[str, Size(TARGET_CHARS)]
FileBytes = Annotated[int, Range(0, 2**50)]


@message(98)
@dataclass(frozen=True, slots=True)
class SaveState(Message):
    """The trainer asks a member to write the state of its stage, of one version, to the target."""

    run: RunId
    step: Step
    """Commits so far: the version of the weights."""
    head: Digest
    """The hash of the chain's newest record; empty if the run keeps no chain."""
    target: Target
    """A path or URL; a relative path is each machine's own."""


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


@message(110)
@dataclass(frozen=True, slots=True)
class Saving(Message):
    """A note to the trainer: how far the sender's file is, or why there will be none."""

    run: RunId
    step: Step
    written: FileBytes
    """Of the state so far."""
    size: FileBytes
    """Of the whole state."""
    failed: Reason
    """Why nothing is saved; empty while the file is being written."""
    refused: bool = False
    """The sender's owner does not let it write there."""


@message(111)
@dataclass(frozen=True, slots=True)
class LoadState(Message):
    """The trainer tells a new member where the state lies that it begins with, after `Assigned`."""

    run: RunId
    target: Target
    """A path or URL; a relative path is each machine's own."""
    folder: Annotated[str, Size(FOLDER_CHARS)]
    """The checkpoint in it; empty if the target itself is the checkpoint."""
    source: RunOrigin
    """Which checkpoint that must be."""
