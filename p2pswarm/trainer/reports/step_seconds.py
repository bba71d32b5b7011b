"""Reports of a step's seconds, and of steps that take far longer than others."""

from dataclasses import dataclass
from enum import Enum

from p2pswarm.progress.events import Report
from p2pswarm.run.messages.waits import ChainLink, StageSeconds


@dataclass(frozen=True, slots=True)
class StepTimed(Report):
    """Where the seconds of a step went."""

    step: int
    """Counted from 0, as in `StepDone`."""
    duration_s: float
    """From the commit before it to its own."""
    stages: tuple[StageSeconds, ...]
    """All of them, in order."""
    chain: tuple[ChainLink, ...]
    """What its end waited for, one after another; the seconds add up to `duration_s`."""


class StallCause(Enum):
    """What a run waits for; the names are those of scripts."""

    UNSERVED = "unserved"
    """A stage has no server."""
    SILENT = "silent"
    """A server says nothing: it is stopped, or cut off."""
    LINK = "link"
    """Nothing, or too little, gets from one server to another."""
    COMPUTING = "computing"
    """A server computes one microbatch for far longer than usual."""
    QUEUE = "queue"
    """A server computes as usual, and has more to do than others."""
    AVERAGING = "averaging"
    """A server holds up the averaging of its stage."""
    COMMIT = "commit"
    """A server has not applied a commit, or has not told the state that it has."""
    SUM = "sum"
    """A server is lost, and may come back with its gradient sum."""
    VOTES = "votes"
    """The record of the step lacks votes."""
    NETWORK = "network"
    """Nothing comes from any server: the trainer's own network."""
    STOPPED = "stopped"
    """The trainer itself stood still."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Stalling(Report):
    """A step takes far longer than others; who waits for whom."""

    step: int
    for_s: float
    """How long the step has taken so far; of a trainer that was stopped, for how long it was."""
    usual_s: float | None
    """How long steps take; None: not measured yet."""
    cause: StallCause
    peers: tuple[bytes, ...]
    """Whom the run waits for; of a link both ends, the one that sends first."""
    stages: tuple[int, ...]
    """Their stages."""
    why: str
    """Who waits for whom, in words that follow "step 12 takes 6 s: "."""


@dataclass(frozen=True, slots=True)
class StallOver(Report):
    """A step that had stalled is done, or the trainer goes on."""

    step: int
    took_s: float
