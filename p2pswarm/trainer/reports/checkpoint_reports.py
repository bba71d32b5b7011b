"""What people are told of a run's checkpoints.

Units:   bytes of the state; versions count commits.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """Report: a checkpoint is whole, with its manifest."""

    version: int
    place: str
    seconds: float
    """From the request to the end."""


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """Report: a checkpoint was not finished; training goes on."""

    version: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointProgress:
    """Report: how far a checkpoint is that somebody waits for."""

    version: int
    written: int
    size: int
    """Of the state of all stages from which a word has come."""
    stages_saved: int
    stages: int


CheckpointReport = CheckpointSaved | CheckpointFailed | CheckpointProgress
