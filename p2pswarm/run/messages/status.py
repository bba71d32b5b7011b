"""How a run stands: what `p2pswarm status` asks a trainer."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.field_limits import (
    MEMBERS_MAX,
    NAME_CHARS_MAX,
    NO_PATHS,
    STAGES_MAX,
    Microbatch,
    PathCounts,
    Peer,
    Reason,
    RunId,
    Seconds,
    Stage,
    Step,
)

BANS_TOLD_MAX = 16  # of a trainer's bans, in one answer
Servers = Annotated[int, Range(0, MEMBERS_MAX)]


@message(100)
@dataclass(frozen=True, slots=True)
class AskStatus(Message):
    """A question for the run's trainer; anybody may ask it. The reply is a `RunStatus`."""

    run: RunId


@message(101)
@dataclass(frozen=True, slots=True)
class StageStatus(Message):
    """The servers of one stage."""

    ready: Servers
    joining: Servers
    """They have a stage, and do not compute yet."""
    links: PathCounts = NO_PATHS
    """Of all of them, to the trainer and to each other."""


@dataclass(frozen=True, slots=True)
class BanStatus(Message):
    """A peer that the trainer does without for a while."""

    peer: Peer
    reason: Annotated[str, Size(100)]
    """What it did, in words that follow "it"."""
    left_s: Seconds


@dataclass(frozen=True, slots=True)
class PeerName(Message):
    """What the owner of a peer calls its machine."""

    peer: Peer
    name: Annotated[str, Size(NAME_CHARS_MAX)]


@message(102)
@dataclass(frozen=True, slots=True)
class RunStatus(Message):
    """How the run stands, as its trainer sees it."""

    done: Step
    """Steps that are committed."""
    loss: float | None
    """Of the last step, nats per token; None before it."""
    held_out: float | None
    """The newest loss on held-out text, nats per token; None before it."""
    tokens_per_s: Annotated[float, Range(0.0, 1e12)]
    committed_ago_s: Seconds | None
    """Since the last commit; None before it."""
    asked: Microbatch
    """Microbatches of all steps that have begun."""
    counted: Microbatch
    """Microbatches of committed steps."""
    replayed: Microbatch
    """Attempts beyond the first of a microbatch."""
    waiting: Annotated[tuple[Stage, ...], Size(STAGES_MAX)]
    """The stages for whose servers the run waits."""
    stages: Annotated[tuple[StageStatus, ...], Size(STAGES_MAX)]
    """All stages, in order."""
    ended: Reason
    """Why the run is over; empty while it goes on."""
    saved: Step | None = None
    """The step of the newest checkpoint; None without one."""
    saved_ago_s: Seconds | None = None
    """Since it was whole."""
    bans: Annotated[tuple[BanStatus, ...], Size(BANS_TOLD_MAX)] = ()
    """Whom the trainer has banned, those for longest first."""
    names: Annotated[tuple[PeerName, ...], Size(BANS_TOLD_MAX), Trailing()] = ()
    """Of those, as far as they are known."""
