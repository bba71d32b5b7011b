"""Actions that the coordinator asks of its trainer: values, so that a test compares lists."""

from dataclasses import dataclass

from p2pswarm.progress.events import Report
from p2pswarm.run.chain.record import StageCommit
from p2pswarm.run.member_view import Incarnation
from p2pswarm.run.messages.field_limits import Work
from p2pswarm.run.messages.membership import Assigned, MemberRecord
from p2pswarm.run.messages.step import Commit, Fence, Reduce


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
    """Push a microbatch to a server of stage 0."""

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
class CountTargets:
    """Count the targets that our text has in microbatches of a step, and in held-out batches."""

    step: int
    microbatches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KeepReferences:
    """Keep the references of a batch of answers."""

    batch: int
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class SendFence:
    """Have a member count nothing more of some attempts."""

    incarnation: Incarnation
    message: Fence
    limit_s: float
    """Time after which the member counts as gone."""


@dataclass(frozen=True, slots=True)
class SendReduce:
    """Have a member average its sum with the others of its stage."""

    incarnation: Incarnation
    message: Reduce
    limit_s: float
    """Time after which the coordinator gives the reduction up."""


@dataclass(frozen=True, slots=True)
class SendCommit:
    """Have a member apply a step."""

    incarnation: Incarnation
    message: Commit


@dataclass(frozen=True, slots=True)
class Decide:
    """Have the voters accept the record of a step."""

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
    """Dial a server that was lost, and ask whether it is there."""

    member: MemberRecord


@dataclass(frozen=True, slots=True)
class SeekCopy:
    """Say where the newest copy of weights is that no server has brought back."""

    stages: tuple[int, ...]
    version: int
    rewind_s: float | None
    """Time until the run goes back; None: it does not."""


@dataclass(frozen=True, slots=True)
class GoBack:
    """Find a checkpoint and have it decided that the run goes back to it, if it still may then."""


@dataclass(frozen=True, slots=True)
class AnswerLeave:
    """Tell a member whether it may leave."""

    incarnation: Incarnation
    may: bool


Action = (
    Assign
    | Decline
    | Publish
    | AnswerLeave
    | Launch
    | CancelLaunch
    | CountTargets
    | KeepReferences
    | SendFence
    | SendReduce
    | SendCommit
    | Decide
    | SeekCopy
    | GoBack
    | Evict
    | Probe
    | Report
)
"""All that the coordinator returns: actions for its trainer, and reports for people and logs."""
