"""The end of a step: fences, the order to reduce, averaging, and the commit.

All are unary calls, but `Shard`, which opens a stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.field_limits import (
    CODES_MAX,
    GROUP_MAX,
    Attempt,
    Bitmap,
    Digest,
    Generation,
    IncarnationNumber,
    Microbatch,
    Peer,
    Reason,
    RunId,
    Stage,
    Step,
    SumScale,
)
from p2pswarm.run.messages.waits import StepSeconds
from p2pswarm.tensors.codecs.meta import TensorMeta

STEPS_TOLD_MAX = 3  # ahead: with a delay a record chooses the codecs of the third step from its own
ENDS_MAX = 2 * GROUP_MAX  # members of two stages
Share = Annotated[int, Range(0, 2**20)]
Rate = Annotated[float, Range(0.0, 1e15)]


Codes = Annotated[bytes, Size(CODES_MAX)]


def _check_shares(shares: Sequence[int], group: Sequence[bytes]) -> None:
    """Raise ValueError for shares that are not one for each member, or are all 0."""
    if shares and (len(shares) != len(group) or not any(shares)):
        raise ValueError(f"shares {shares} for {len(group)} members")


@message(65)
@dataclass(frozen=True, slots=True)
class FencedWork(Message):
    """Attempts up to and including `attempt` of a microbatch are over."""

    microbatch: Microbatch
    attempt: Attempt


@message(66)
@dataclass(frozen=True, slots=True)
class Fence(Message):
    """Drop these attempts: start nothing more for them; answer when that is certain."""

    run: RunId
    step: Step
    incarnation: IncarnationNumber
    work: Annotated[tuple[FencedWork, ...], Size(1024)]


@message(67)
@dataclass(frozen=True, slots=True)
class Fenced(Message):
    """Nothing of the fenced attempts will be counted here any more; these are counted already."""

    counted: Annotated[tuple[Microbatch, ...], Size(1024)]


@message(116)
@dataclass(frozen=True, slots=True)
class TiedGroup(Message):
    """Who averages the tensor that the first and the last stage have in common."""

    group: Annotated[tuple[Peer, ...], Size(1, ENDS_MAX)]
    """The members of both that add their sums: those of the first stage, then those of the last."""
    observers: Annotated[tuple[Peer, ...], Size(ENDS_MAX)]
    """Newcomers of both."""
    shares: Annotated[tuple[Share, ...], Size(ENDS_MAX)] = ()
    """As in `Reduce`."""

    def __post_init__(self) -> None:
        _check_shares(self.shares, self.group)


@message(68)
@dataclass(frozen=True, slots=True)
class Reduce(Message):
    """Average the sums of a stage; `generation` rises when a member was lost on the way."""

    run: RunId
    step: Step
    generation: Generation
    incarnation: IncarnationNumber
    counted: Bitmap
    """The receiver's own ledger as the trainer knows it: bit i = microbatch step * B + i."""
    group: Annotated[tuple[Peer, ...], Size(GROUP_MAX)]
    """The members that add their sums, in the order of the shards they own."""
    observers: Annotated[tuple[Peer, ...], Size(GROUP_MAX)]
    """Newcomers that receive the result only."""
    shares: Annotated[tuple[Share, ...], Size(GROUP_MAX)] = ()
    """The size of each member's shard relative to the others, one for each of `group`, not all 0;
    none means equal ones."""
    observed: Stage | None = None
    """The receiver prepares for this stage, and is an observer of it; None: it has an incarnation
    in the stage that is reduced."""
    prompt: Annotated[int, Range(0, GROUP_MAX)] = 0
    """So many of `observers`, the first, change to this stage with the commit: they are sent what
    is reduced with the members, and not after them."""
    tied: TiedGroup | None = None
    """With whom to average the tied tensor beside all else, at an end of a tied model."""

    @property
    def partners(self) -> tuple[bytes, ...]:
        """All that the receiver averages with, itself among them."""
        return self.tied.group if self.tied is not None else self.group

    def __post_init__(self) -> None:
        _check_shares(self.shares, self.group)
        if self.prompt > len(self.observers):
            raise ValueError(f"{self.prompt} of {len(self.observers)} observers")


@message(74)
@dataclass(frozen=True, slots=True)
class Shard(Message):
    """Opens the stream of one piece of a shard: `Grant`, bytes, and its end when it is in use."""

    run: RunId
    step: Step
    generation: Generation
    gathered: bool
    """False: a part of the sender's sum, for the shard's owner. True: the reduced shard."""
    index: Annotated[int, Range(0, 2**20)]
    """The piece: the shards of all members are cut into pieces, numbered through. The number after
    the last piece is that of the sender's share of the digest's key, inline; or of the shares of
    all in the order of the group, which a large group's collector tells."""
    tensor: TensorMeta
    tied: bool = False
    """True if the piece is of the tensor that two stages have in common."""
    second: Annotated[bool, Trailing()] = False
    """True if the piece is of the second round of an order (docs/codecs.md)."""


@message(117)
@dataclass(frozen=True, slots=True)
class TiedReduced(Message):
    """The part of a member's answer that is about the tied tensor."""

    digest: Digest
    """Of its reduced gradient, the same on both ends of the model."""
    squared_norm: float | None
    state: Digest
    """Of its weights and moments before the step."""


@message(69)
@dataclass(frozen=True, slots=True)
class Reduced(Message):
    """The reduced gradient is here; the same bytes on every member."""

    digest: Digest
    squared_norm: float | None
    """None if it is not finite."""
    bytes_per_s: Rate = 0.0
    """What the member's links carried each way while it averaged; 0 if too little to measure."""
    state: Digest = b""
    """Of the state that the member computed the step with; empty from an observer without it."""
    tied: TiedReduced | None = None
    """At an end of a tied model; `digest` is then of both, and `squared_norm` of all else."""


@message(112)
@dataclass(frozen=True, slots=True)
class CannotAverage(Message):
    """The other answer to `Reduce`: nothing passes between the member and another of its group."""

    peer: Peer
    """The other one."""
    reason: Reason


@dataclass(frozen=True, slots=True)
class NearbyCodecs(Message):
    """The codes of the codecs at the two boundaries of a stage, as a record has them."""

    below: Codes = b""
    above: Codes = b""


NearbySteps = Annotated[tuple[NearbyCodecs, ...], Size(STEPS_TOLD_MAX)]
"""Of consecutive steps."""


@message(70)
@dataclass(frozen=True, slots=True)
class Commit(Message):
    """The step is decided: apply the reduced gradient of this generation, once."""

    run: RunId
    step: Step
    generation: Generation
    incarnation: IncarnationNumber
    scale: SumScale
    """The factor of the sum, the same on every stage; 0 skips the update."""
    learning_rate: Annotated[float, Range(0.0, 1e3)]
    state: Digest = b""
    """Of the state of the receiver's stage that the step was computed with; empty if unknown."""
    observed: Stage | None = None
    """As in `Reduce`; `state` is of that stage."""
    codecs: NearbySteps = ()
    """Of the next steps, for the receiver's stage; empty if they are the manifest's, or told
    already."""


@message(71)
@dataclass(frozen=True, slots=True)
class Committed(Message):
    """The commit is taken: it leads to version step + 1."""

    version: Step
    applied: bool
    """True if the weights are of that version, or a later one; a newcomer may wait for them."""
    seconds: Annotated[StepSeconds | None, Trailing()] = None
    """Where the member's time went from the order to commit the step before to this one's."""
