"""What people are told of a run that waits for lost weights, and goes back to a checkpoint.

Units:   seconds; versions count commits.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NewestCopy:
    """Report: where the newest copy of the weights is that a stage has lost."""

    stages: tuple[int, ...]
    version: int
    """That the run has come to."""
    saved: int | None
    """The version of the newest checkpoint; None if there is none."""
    place: str
    """Where that lies, or its target."""
    age_s: float | None
    """Since when it is there; None if it was written under another trainer."""
    rewind_s: float | None
    """When the run goes back to it by itself; None: never."""


@dataclass(frozen=True, slots=True)
class WentBack:
    """Report: the run goes on from an earlier version; the steps since are done anew."""

    version: int
    before: int
    """The version that it had come to."""


@dataclass(frozen=True, slots=True)
class CannotGoBack:
    """Report: there is nothing to go back to just now; that is tried again."""

    reason: str


RewindReport = NewestCopy | WentBack | CannotGoBack
