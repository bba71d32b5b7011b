"""What a download asks for, and what it says about pieces and donors.

Units:   seconds on the caller's clock; version v = state after v commits.
Errors:  none.
Source:  docs/state.md.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadLimits:
    """How much a download may ask for, keep and wait."""

    donors: int = 3
    """Asked at a time: three fill most links, and a fourth would slow its own training too."""
    ahead: int = 2
    """Pieces asked of one donor at a time: one is on its way while it copies the next."""
    kept: int = 16
    """Commits whose part is kept for a piece that is coming: 32 MiB of float32 for each."""
    versions: int = 8
    """A donor may be so much further than the newcomer, whose reductions come late; one that is
    further yet, or says so, is asked again later."""
    piece_s: float = 120.0
    """A donor that gives nothing for so long has failed: 6 MiB at 0.4 Mbit/s. The time is doubled
    when one fails so, because the newcomer's own link may be slow, and gradients go first."""
    piece_max_s: float = 3600.0


@dataclass(frozen=True, slots=True)
class PieceWanted:
    """Ask a donor for a piece, of a version that is not below `at_least`."""

    donor: bytes
    piece: int
    at_least: int


@dataclass(frozen=True, slots=True)
class HashesWanted:
    """Ask a donor for the hashes of all pieces of a version."""

    donor: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Put a piece in its place, and then apply its kept parts of these steps."""

    piece: int
    steps: range


@dataclass(frozen=True, slots=True)
class StepParts:
    """What to do with the reduced gradient of a committed step, piece by piece."""

    apply: tuple[int, ...]
    keep: tuple[int, ...]
    """Keep its part for these pieces, and of each at most `DownloadLimits.kept` parts."""


@dataclass(frozen=True, slots=True)
class DonorBlame:
    """A donor gave what it should not; it is not asked again."""

    donor: bytes
    reason: str
