"""A snapshot: weights and optimizer state of a stage at one version, in one piece of memory."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and optimizer state of one version."""

    version: int
    digest: bytes
    """The digest of weights and optimizer state (`tensors/state_tree.py`)."""
    data: memoryview
    """Weights and optimizer state, as `models/compute/` lays them out."""
