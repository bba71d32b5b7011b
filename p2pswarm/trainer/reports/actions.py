"""What the coordinator asks for and what it tells: values, so that a test compares lists.

Actions are for the trainer to carry out; reports are for people and logs. Each action that asks
somebody something comes back to the coordinator as the event named in its docstring.
"""

from dataclasses import dataclass, field

from p2pswarm.run.chain.record import StageCommit
from p2pswarm.run.messages.membership import Assigned, Load, MemberRecord
from p2pswarm.run.messages.step import Commit, Fence, Reduce
from p2pswarm.run.messages.types import Work
from p2pswarm.run.view import Incarnation


@dataclass(frozen=True, slots=True)
class MemberChange:
    """A member has joined, is ready, has another card, or is gone."""

    record: MemberRecord
    gone: bool = False
    carded: bool = False
    """Its card is another, and nothing else has changed."""


@dataclass(frozen=True, slots=True)
class Assign:
    """Answer a `Join`."""

    incarnation: Incarnation
    message: Assigned


@dataclass(frozen=True, slots=True)
class Publish:
    """Tell the members what has changed among them."""

    changes: tuple[MemberChange, ...]


@dataclass(frozen=True, slots=True)
class Decline:
    """Answer a `Join` for which there is no place."""

    peer: bytes
    reason: str


@dataclass(frozen=True, slots=True)
class Launch:
    """Push a microbatch to a server of stage 0; back as `handed`, `undelivered`, `counted`."""

    step: int
    microbatch: int
    attempt: int
    work: Work
    counting: tuple[int, ...]
    keepers: tuple[bytes, ...] = ()
    """By stage, the peer that has counted it and need not compute it again; empty: nobody."""


@dataclass(frozen=True, slots=True)
class CancelLaunch:
    """End the push of an attempt that is given up: the next attempt must find it over."""

    microbatch: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SendFence:
    """Call a member; back as `fenced`, or `lost` if it does not answer."""

    incarnation: Incarnation
    message: Fence
    limit_s: float
    """When the member counts as gone."""


@dataclass(frozen=True, slots=True)
class SendReduce:
    """Call a member; back as `reduced` or `reduce_failed`."""

    incarnation: Incarnation
    message: Reduce
    limit_s: float
    """When the coordinator gives the reduction up."""


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Call a member; back as `committed` or `commit_failed`."""

    incarnation: Incarnation
    message: Commit


@dataclass(frozen=True, slots=True)
class Decide:
    """Have the voters accept the record of a step; back as `decided`, or as `closed`."""

    step: int
    generation: int
    scale: float
    learning_rate: float
    loss: float | None
    """Mean nats per token; None if nobody told it."""
    gradient_norm: float
    stages: tuple[StageCommit, ...]


@dataclass(frozen=True, slots=True)
class Evict:
    """End a member's stream: its incarnation is over."""

    incarnation: Incarnation
    reason: str


@dataclass(frozen=True, slots=True)
class Probe:
    """Dial a server that was lost, and ask whether it is there; back as `probed`, or not at all."""

    member: MemberRecord


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """Report: a server was given a stage."""

    incarnation: Incarnation
    stage: int
    address: str


@dataclass(frozen=True, slots=True)
class MemberReady:
    """Report: a server may be given microbatches."""

    incarnation: Incarnation
    stage: int


@dataclass(frozen=True, slots=True)
class MemberLost:
    """Report: an incarnation ended.

    What it had summed is done again, or waited for: `SumKept` or `SumVoided` follows.
    """

    incarnation: Incarnation
    stage: int
    reason: str
    voided: int
    """Microbatches of the current step that were in its sum."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Report: attempts were given up, and are safe to launch again."""

    step: int
    microbatches: tuple[int, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """Report: a microbatch is not finite on any path: it counts as zeros in every stage."""

    step: int
    microbatch: int
    reason: str
    held_out: bool
    """It is one of the held-out batches: their mean loss is then not known."""


@dataclass(frozen=True, slots=True)
class NotFiniteThere:
    """Report: a microbatch was not finite on one path and is on another; who is suspected."""

    step: int
    microbatch: int
    suspects: tuple[tuple[Incarnation, int], ...]
    """Who was in the attempts that failed and not in the one that did not, with the stage."""
    reason: str


@dataclass(frozen=True, slots=True)
class WrongResult:
    """Report: a spot check has found a server that computes wrong; its step is done again."""

    incarnation: Incarnation
    stage: int
    microbatch: int
    reason: str
    pause_s: float | None
    """How long it gets no work; None if its stage has no other server."""


@dataclass(frozen=True, slots=True)
class ResultsTied:
    """Report: servers of a stage disagree about a microbatch, and nobody can tell who is right."""

    microbatch: int
    stage: int
    servers: tuple[Incarnation, ...]


@dataclass(frozen=True, slots=True)
class StepDone:
    """Report: a step is committed."""

    step: int
    loss: float
    """Mean nats per token over the step's microbatches, with the weights before the commit.

    Only over those whose loss was told; NaN if none was.
    """
    gradient_norm: float
    learning_rate: float
    microbatches: int
    quarantined: tuple[int, ...] = ()
    """Those of them that were set aside."""


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """Report: the held-out loss of the weights of `version`, mean nats per token."""

    version: int
    loss: float


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run is over; `failed` if it could not go on."""

    reason: str
    failed: bool
    version: int | None = field(default=None, compare=False)
    """Of the weights, where this trainer did not lead and was told it."""


@dataclass(frozen=True, slots=True)
class StagesUnserved:
    """Report: these stages lack servers; the run waits for them, or has them again if empty."""

    stages: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WeightsSought:
    """Report: no server holds a stage's weights any more; this one held them last."""

    stage: int
    version: int
    last: Incarnation
    address: str


@dataclass(frozen=True, slots=True)
class SeekCopy:
    """Say where the newest copy of weights is that no server has brought back."""

    stages: tuple[int, ...]
    version: int
    rewind_s: float | None
    """When the run goes back; None: never."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """Find a checkpoint and have it decided that the run goes back to it, if it still may then."""


@dataclass(frozen=True, slots=True)
class DigestsTied:
    """Report: as many members of a stage report one digest as another; the first peer's stands."""

    stage: int
    version: int


@dataclass(frozen=True, slots=True)
class BeganWrong:
    """Report: the first step was decided with a state that is not the one the run begins with."""

    stage: int


@dataclass(frozen=True, slots=True)
class AveragingSlow:
    """Report: an averaging was given up after `took_s`; the next may take `limit_s`."""

    step: int
    took_s: float
    limit_s: float


@dataclass(frozen=True, slots=True)
class ServerFails:
    """Report: a server has failed several times in a row; it gets a pause if it can be spared."""

    incarnation: Incarnation
    stage: int
    failures: int
    reason: str
    pause_s: float | None
    """None if its stage has no other server."""


@dataclass(frozen=True, slots=True)
class RoadBroken:
    """Report: microbatches do not get from one server to another, nor their gradients back."""

    lower: Incarnation | None
    """None: the trainer below stage 0, or a server that is not known."""
    upper: Incarnation
    stage: int
    """Of the upper one."""
    failures: int
    reason: str


@dataclass(frozen=True, slots=True)
class RunBegun:
    """Report: the first step begins."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report: a member told how busy it is."""

    incarnation: Incarnation
    stage: int
    load: Load


@dataclass(frozen=True, slots=True)
class VersionsRefused:
    """Report: servers cannot read the run, because they speak another version of runs."""

    servers: int
    """Different peers so far."""
    versions: tuple[int, ...]
    """What they speak, the commonest first; rare ones are left out."""
    ours: int
