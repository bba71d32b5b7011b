"""What people are told of who coordinates the run, who stands by, and whose votes are missing.

Units:   terms and versions are counts.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Leads:
    """Report: this trainer coordinates the run from now on, and `version` is current."""

    term: int
    version: int


@dataclass(frozen=True, slots=True)
class SteppedDown:
    """Report: another trainer coordinates the run, or will."""

    reason: str


@dataclass(frozen=True, slots=True)
class TrainerEnlisted:
    """Report: another trainer stands by."""

    peer: bytes
    address: str


@dataclass(frozen=True, slots=True)
class VotesLacking:
    """Report: nothing can be decided, because these voters are silent and hold the majority."""

    voters: tuple[tuple[bytes, str], ...]
    """Peer and address; "" if that is not known."""


LeadershipReport = Leads | SteppedDown | TrainerEnlisted | VotesLacking
