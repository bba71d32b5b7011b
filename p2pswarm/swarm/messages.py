"""What the members of a run say to each other: every message of the training protocol.

The trainer and each stage server keep one long exchange, opened with `Join`: notes flow up
(`Handed`, `Counted`, `Undelivered`, `Ready`, `Load`), views flow down, and its end is the
member's end. What must be acknowledged is a call (`Fence`, `Reduce`, `Commit`). Tensors go
between servers only (`Push`, `Shard`, `FetchState`). docs/training.md tells the story.

Units:   `_s` seconds; steps, versions, attempts count from 0; version v = weights after v commits.
Shapes:  none here; tensors are announced by `TensorMeta`.
Errors:  BadMessage on arrival when a field breaks its limit.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.tensors.meta import TensorMeta
from p2pswarm.wire.codec import Message, Range, Size, message

STAGES_MAX = 256  # a 100-layer model cut at every block stays well below
MEMBERS_MAX = 4096  # a view of 4,096 records of ~130 B is cut into parts of this message limit
VIEW_PART_MAX = 256  # member records in one message: 256 x ~130 B stay under 60 KiB
MICROBATCHES_MAX = 65_536  # a step's ledger is a bitmap: 8 KiB at this size
REASON_CHARS = 200

Stage = Annotated[int, Range(0, STAGES_MAX - 1)]
Step = Annotated[int, Range(0, 2**48)]
Microbatch = Annotated[int, Range(0, 2**62)]
Attempt = Annotated[int, Range(0, 2**31)]
Incarnation = Annotated[int, Range(0, 2**62)]
Peer = Annotated[bytes, Size(32, 32)]
RunId = Annotated[bytes, Size(16, 16)]
Digest = Annotated[bytes, Size(0, 32)]
Reason = Annotated[str, Size(REASON_CHARS)]
Seconds = Annotated[float, Range(0.0, 1e9)]
Bitmap = Annotated[bytes, Size(0, MICROBATCHES_MAX // 8)]


class Work(IntEnum):
    """What a push asks for."""

    FORWARD = 0
    BACKWARD = 1
    EVALUATE = 2
    """Forward to the end for the loss; nothing is kept or counted."""


@message(50)
@dataclass(frozen=True, slots=True)
class Describe(Message):
    """Asks a trainer what it trains."""


@message(51)
@dataclass(frozen=True, slots=True)
class Manifest(Message):
    """A run, signed by its trainer; the run's id is a hash of `config`."""

    config: Annotated[bytes, Size(0, 16_384)]
    """`RunConfig` as canonical JSON."""
    trainer_key: Annotated[bytes, Size(32, 32)]
    address: Annotated[str, Size(300)]
    """Where the trainer listens."""
    signature: Annotated[bytes, Size(64, 64)]


@message(52)
@dataclass(frozen=True, slots=True)
class Join(Message):
    """Opens a member's exchange with the trainer."""

    run: RunId
    address: Annotated[str, Size(300)]
    """Where other members dial this server."""
    stage: Stage | None
    """The stage whose weights it holds or wants; None: wherever it helps most."""
    version: Step | None
    """The version of the weights it still holds, None if it has none."""
    digest: Digest
    """Of those weights."""


@message(53)
@dataclass(frozen=True, slots=True)
class Assigned(Message):
    """The trainer's answer: where to serve, and from which step on reduced gradients come."""

    stage: Stage
    incarnation: Incarnation
    since: Step
    """The first step whose reduction and commit reach it: fetch this version or a later one."""
    keep: bool
    """The weights it holds are those of version `since`: nothing to fetch."""


@message(54)
@dataclass(frozen=True, slots=True)
class MemberRecord(Message):
    """One member, as the trainer sees it."""

    peer: Peer
    address: Annotated[str, Size(300)]
    stage: Stage
    incarnation: Incarnation
    ready: bool
    """It may be given microbatches and holds the current weights."""


@message(55)
@dataclass(frozen=True, slots=True)
class View(Message):
    """A part of the run's membership; a part numbered 0 starts a new view."""

    number: Annotated[int, Range(0, 2**48)]
    part: Annotated[int, Range(0, MEMBERS_MAX)]
    parts: Annotated[int, Range(1, MEMBERS_MAX)]
    members: Annotated[tuple[MemberRecord, ...], Size(VIEW_PART_MAX)]


@message(56)
@dataclass(frozen=True, slots=True)
class Handed(Message):
    """The next server took a microbatch from this one."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    peer: Peer
    incarnation: Incarnation


@message(57)
@dataclass(frozen=True, slots=True)
class Counted(Message):
    """A microbatch is in this server's gradient sum, or its backward has passed through."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    counted: bool
    """False where another member of the stage had counted it already."""
    loss: float | None
    """Mean nats per token; only from the last stage."""


@message(58)
@dataclass(frozen=True, slots=True)
class Undelivered(Message):
    """This server could not hand a microbatch on, or cannot work on it."""

    step: Step
    microbatch: Microbatch
    attempt: Attempt
    reason: Reason


@message(59)
@dataclass(frozen=True, slots=True)
class Evaluated(Message):
    """The loss of a held-out batch, from the last stage."""

    step: Step
    microbatch: Microbatch
    loss: float


@message(60)
@dataclass(frozen=True, slots=True)
class Ready(Message):
    """This member holds the weights of `version` and has seen every commit it was sent."""

    version: Step
    digest: Digest


@message(61)
@dataclass(frozen=True, slots=True)
class Load(Message):
    """How busy a server is; for routing nothing, for people everything."""

    queued: Annotated[int, Range(0, 2**31)]
    queue_s: Seconds
    """Mean wait in the queue over the last period."""
    compute_s: Seconds
    """Mean compute per microbatch, forward and backward."""
    rate_per_s: Annotated[float, Range(0.0, 1e9)]
    """Microbatches counted per second over the last period."""
    recomputed: Annotated[int, Range(0, 2**48)]
    """Backward passes whose graph had to be made again for want of memory."""


@message(63)
@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """The server leaves on purpose; its sum of this step is void."""


@message(64)
@dataclass(frozen=True, slots=True)
class Finished(Message):
    """The trainer ends the run, well or not."""

    reason: Reason


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
    incarnation: Incarnation
    work: Annotated[tuple[FencedWork, ...], Size(1024)]


@message(67)
@dataclass(frozen=True, slots=True)
class Fenced(Message):
    """Nothing of the fenced attempts will be counted here any more; these are counted already."""

    counted: Annotated[tuple[Microbatch, ...], Size(1024)]


@message(68)
@dataclass(frozen=True, slots=True)
class Reduce(Message):
    """Average the sums of a stage; `generation` rises when a member was lost on the way."""

    run: RunId
    step: Step
    generation: Attempt
    incarnation: Incarnation
    counted: Bitmap
    """The receiver's own ledger as the trainer knows it: bit i = microbatch step * B + i."""
    group: Annotated[tuple[Peer, ...], Size(64)]
    """The members that add their sums, in the order of the shards they own."""
    observers: Annotated[tuple[Peer, ...], Size(64)]
    """Newcomers that receive the result only."""


@message(69)
@dataclass(frozen=True, slots=True)
class Reduced(Message):
    """The reduced gradient is here; the same bytes on every member."""

    digest: Digest
    squared_norm: float | None
    """None if it is not finite."""


@message(70)
@dataclass(frozen=True, slots=True)
class Commit(Message):
    """The step is decided: apply the reduced gradient of this generation, once."""

    run: RunId
    step: Step
    generation: Attempt
    incarnation: Incarnation
    scale: Annotated[float, Range(0.0, 1.0)]
    """Clipping by the global norm, the same on every stage; 0 skips the update."""
    learning_rate: Annotated[float, Range(0.0, 1e3)]


@message(71)
@dataclass(frozen=True, slots=True)
class Committed(Message):
    """Applied: the weights are of version step + 1."""

    version: Step
    digest: Digest
    """Empty from a newcomer that still waits for its weights."""


@message(72)
@dataclass(frozen=True, slots=True)
class Push(Message):
    """Opens the exchange that hands a microbatch to the next server, or its gradient back.

    Then: `Grant` from the receiver (or a refusal), the tensors' bytes, and a `Receipt`.
    """

    run: RunId
    step: Step
    microbatch: Microbatch
    attempt: Attempt
    work: Annotated[int, Range(0, 2)]
    stage: Stage
    """The receiver's stage."""
    incarnation: Incarnation
    """The receiver's, as the sender knows it: a push meant for a former life is refused."""
    counting: Annotated[tuple[Stage, ...], Size(STAGES_MAX)]
    """The stages that are to count this attempt."""
    tensors: Annotated[tuple[TensorMeta, ...], Size(2)]
    """FORWARD, EVALUATE: tokens, then the activation unless stage 0. BACKWARD: the gradient."""


@message(73)
@dataclass(frozen=True, slots=True)
class Receipt(Message):
    """The receiver has computed the pushed microbatch; the sender's router settles by it."""

    queue_s: Seconds
    compute_s: Seconds


@message(74)
@dataclass(frozen=True, slots=True)
class Shard(Message):
    """Opens the exchange that carries one piece of a shard: `Grant`, bytes, end."""

    run: RunId
    step: Step
    generation: Attempt
    gathered: bool
    """False: a part of the sender's sum, for the shard's owner. True: the reduced shard."""
    index: Annotated[int, Range(0, 2**20)]
    """The piece: the shards of all members are cut into pieces, numbered through."""
    tensor: TensorMeta


@message(75)
@dataclass(frozen=True, slots=True)
class FetchState(Message):
    """Opens the exchange that downloads weights: `StateOffer`, then `FetchPiece` after piece."""

    run: RunId
    stage: Stage
    at_least: Step
    """The donor waits until it has this version."""


@message(76)
@dataclass(frozen=True, slots=True)
class StateOffer(Message):
    """The donor holds a snapshot still for this exchange."""

    version: Step
    digest: Digest
    nbytes: Annotated[int, Range(0, 2**50)]


@message(77)
@dataclass(frozen=True, slots=True)
class FetchPiece(Message):
    """Asks for bytes of the snapshot, into room the sender of this set aside."""

    offset: Annotated[int, Range(0, 2**50)]
    nbytes: Annotated[int, Range(0, 2**30)]
    transfer: Annotated[int, Range(0, 2**62)]
