"""Weights and optimizer state of a stage at one version, as a donor hands them out.

Units:   bytes.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Weights and optimizer state of one version."""

    version: int
    digest: bytes
    """Of the weights."""
    data: memoryview
