"""The long stream between a member and the trainer: joining, views, load, leaving."""

from dataclasses import dataclass, replace
from typing import Annotated

from p2pswarm.base.ids import Contact
from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.balance import NOT_MEASURED, Capacity
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.run.messages.field_limits import (
    GROUP_MAX,
    NAME_CHARS_MAX,
    NO_PATHS,
    VIEW_PART_MAX,
    Bitmap,
    CardBytes,
    Digest,
    Era,
    Generation,
    Height,
    IncarnationNumber,
    PathCounts,
    Peer,
    Reason,
    RunId,
    Seconds,
    Stage,
    Step,
    Term,
    ViewNumber,
)
from p2pswarm.run.messages.step import NearbySteps
from p2pswarm.run.messages.trainers import Whereabouts

LOADS_PER_S = 100.0  # of all members together: what people look at, and what plans are made of
LOSSES_MAX = 4096  # 9 bytes each: they fit into a message beside a bitmap of 8 KiB


def load_every_s(members: int) -> float:
    """Return how often each member tells its load: each second, less often in a large run."""
    return max(1.0, members / LOADS_PER_S)


THREADS_MAX = 65_536  # far beyond any machine


REDUCTIONS_MAX = 4  # of a step, one a term: each takes as much memory as the stage's gradient


@message(78)
@dataclass(frozen=True, slots=True)
class HeldReduction(Message):
    """A reduced gradient whose commit has not come yet."""

    step: Step
    generation: Generation
    digest: Digest


@message(75)
@dataclass(frozen=True, slots=True)
class HeldSum(Message):
    """The gradient sum that a server still has from its last session."""

    incarnation: IncarnationNumber
    """In which it was counted; that one is over."""
    step: Step
    counted: Bitmap
    """What is in it: bit i (little-endian) is microbatch i of the step."""
    losses: Annotated[tuple[float | None, ...], Size(0, LOSSES_MAX)] = ()
    """Of these microbatches, in order, from the last stage; None where it is not known."""
    ahead: Annotated[Bitmap, Trailing()] = b""
    """With a delay: what is in its sum of the step after that."""
    ahead_losses: Annotated[tuple[float | None, ...], Size(0, LOSSES_MAX), Trailing()] = ()

    def of_step(self, step: int) -> "HeldSum":
        """What it holds of one step."""
        if step == self.step:
            return replace(self, ahead=b"", ahead_losses=())
        if step != self.step + 1:
            return HeldSum(self.incarnation, step, b"")
        return HeldSum(self.incarnation, step, self.ahead, self.ahead_losses)


@message(52)
@dataclass(frozen=True, slots=True)
class Join(Message):
    """Opens a member's stream with the trainer."""

    run: RunId
    address: Annotated[str, Size(300)]
    """Where other members dial this server."""
    stage: Stage | None
    """The stage whose weights it holds or wants; None: wherever it helps most."""
    version: Step | None
    """The version of the weights it still holds, None if it has none.

    While the digest of weights that it has just made is being computed, it is the version before.
    """
    digest: Digest
    """The digest of those weights; empty if it has none."""
    held: Annotated[tuple[HeldReduction, ...], Size(0, REDUCTIONS_MAX)]
    """The reduction that it has applied to them, or those that it could if a commit came."""
    era: Era = 0
    """Of those weights: how often the run had gone back when they were made."""
    pinned: bool = False
    """Its user told it which stage to serve: it takes no other."""
    records: Height = 0
    """How many decided records its voter knows: a trainer that knows fewer asks it for them."""
    sum: HeldSum | None = None
    """Its sum of the step that it computed last, if that is whole and was not averaged away."""
    card: CardBytes = b""
    """Its own: where else it is dialled."""
    price: Annotated[MachinePrice | None, Trailing()] = None
    """Of its machine, as its owner has told it; None: the owner has told nothing."""


@message(53)
@dataclass(frozen=True, slots=True)
class Assigned(Message):
    """The trainer's answer: where to serve, and from which step on reduced gradients come."""

    stage: Stage
    incarnation: IncarnationNumber
    since: Step
    """The first step whose reduction and commit reach it: fetch this version or a later one."""
    keep: bool
    """The weights it holds are those of version `since`: nothing to fetch."""
    state: Digest = b""
    """Of the stage's state of version `since`, by which what is fetched is proved; empty if not
    known yet."""
    era: Era = 0
    """How often the run has gone back to a checkpoint."""
    loads: bool = False
    """The state of version `since` is in a checkpoint: `LoadState` says where."""
    keep_sum: bool = False
    """The sum of step `since` that it holds counts for this incarnation: it is not emptied."""
    codecs: NearbySteps = ()
    """Of step `since` and of the next one; empty if they are the manifest's."""


@message(97)
@dataclass(frozen=True, slots=True)
class StandsBy(Message):
    """Who coordinates the run, as far as a trainer knows: the answer to `WhoLeads`.

    Also the answer to `Join` and `Enlist` of a trainer that does not coordinate; it then ends the
    stream. Peer and address are empty if it does not know.
    """

    peer: Annotated[bytes, Size(0, 32)]
    address: Annotated[str, Size(300)]
    term: Term = 0
    """The highest term that the sender has heard of a leader of; 0 if of none."""
    card: CardBytes = b""
    """The coordinator's: where else it is dialled."""

    @property
    def contact(self) -> Contact | None:
        """Where the coordinator is; None if it is not known, or the address cannot be read."""
        return Whereabouts(self.peer, self.address).contact


@message(54)
@dataclass(frozen=True, slots=True)
class MemberRecord(Message):
    """One member, as the trainer sees it."""

    peer: Peer
    address: Annotated[str, Size(300)]
    stage: Stage
    incarnation: IncarnationNumber
    ready: bool
    """It may be given microbatches and holds the current weights."""
    card: CardBytes = b""
    """Where else it is dialled; the newest that the trainer knows."""


@message(55)
@dataclass(frozen=True, slots=True)
class View(Message):
    """What has changed among the members that the receiver deals with; see docs/training.md.

    They are those of its own stage, and the ready ones of the stages before and after it.
    """

    number: ViewNumber
    """The view that the receiver has afterwards."""
    since: ViewNumber
    """The view that it had before; 0: forget that, here is all."""
    more: bool
    """Another part of the same view follows."""
    gone: Annotated[tuple[IncarnationNumber, ...], Size(VIEW_PART_MAX)]
    """Incarnations that are over."""
    joined: Annotated[tuple[MemberRecord, ...], Size(VIEW_PART_MAX)]
    """Members that the receiver does not know yet, or whose cards are others than it knows."""
    ready: Annotated[tuple[IncarnationNumber, ...], Size(VIEW_PART_MAX)]
    """Members that it knows, and that are ready now."""


@message(60)
@dataclass(frozen=True, slots=True)
class Ready(Message):
    """This member holds the weights of `version` and has seen every commit it was sent."""

    version: Step
    digest: Digest


@message(61)
@dataclass(frozen=True, slots=True)
class Load(Message):
    """How busy a server is, and what it could do. Routing does not use it; rebalancing does."""

    queued: Annotated[int, Range(0, 2**31)]
    queue_s: Seconds
    """Mean wait in the queue over the last period."""
    compute_s: Seconds
    """Mean compute per microbatch, forward and backward."""
    rate_per_s: Annotated[float, Range(0.0, 1e9)]
    """Microbatches counted per second over the last period."""
    recomputed: Annotated[int, Range(0, 2**48)]
    """Backward passes of whose forward only the input was kept, because memory was short."""
    unheard_s: Seconds = 0.0
    """For how long nothing has come from the trainer."""
    weights_share: Annotated[float, Range(0.0, 1.0)] = 1.0
    """The share of its stage's weights that is here; a newcomer fetches the others."""
    links: PathCounts = NO_PATHS
    """To the trainer and to the members that it knows."""
    capacity: Capacity = NOT_MEASURED


@message(141)
@dataclass(frozen=True, slots=True)
class MemberFacts(Message):
    """What a server tells of its machine, once after `Assigned`: for people, no rule asks it."""

    name: Annotated[str, Size(NAME_CHARS_MAX)]
    """What its owner calls it."""
    processor: Annotated[str, Size(NAME_CHARS_MAX)]
    """What computes, such as the name of a GPU."""
    threads: Annotated[int, Range(0, THREADS_MAX)]
    region: Annotated[str, Size(NAME_CHARS_MAX)]
    software: Annotated[str, Size(NAME_CHARS_MAX)]
    """The version of its program."""


@message(106)
@dataclass(frozen=True, slots=True)
class WillLeave(Message):
    """The server was asked to leave; answered by `MayLeave`, and again when that changes."""

    grace_s: Seconds
    """The most time that it can stay."""


@message(107)
@dataclass(frozen=True, slots=True)
class MayLeave(Message):
    """True if another server, which stays, has the weights of the receiver's stage."""

    may: bool


@message(127)
@dataclass(frozen=True, slots=True)
class MoveTo(Message):
    """The receiver is to serve another stage: its session ends, and it joins again at once."""

    stage: Stage
    """That is kept for it."""
    reason: Reason
    """What that brings and costs, in words that follow "it moves to stage 2: "."""


@message(114)
@dataclass(frozen=True, slots=True)
class PrepareStage(Message):
    """The receiver is to hold another stage's state beside its own, or no longer.

    From then on it is an observer of that stage: `Reduce` and `Commit` that say so in `observed`
    are for it. It goes on to serve its own stage until `MoveTo` names the other one.
    """

    stage: Stage | None
    """None: it is to stop, and to free the memory."""
    since: Step = 0
    """The first step whose reduction and commit reach it: fetch this version or a later one."""
    state: Digest = b""
    """Of that stage's state of version `since`; empty if not known yet."""
    state_bytes: Annotated[int, Range(0, 2**62)] = 0
    """Of that state; 0 if nobody has told."""


@message(115)
@dataclass(frozen=True, slots=True)
class CannotPrepare(Message):
    """The sender does not hold another stage beside its own; it serves its own on."""

    stage: Stage
    lacks_bytes: Annotated[int, Range(0, 2**62)]
    """The memory that it lacks for both; 0 if that is not the reason."""
    reason: Reason


@message(63)
@dataclass(frozen=True, slots=True)
class Leaving(Message):
    """The server leaves on purpose; its sum of this step is void."""


@message(95)
@dataclass(frozen=True, slots=True)
class StillThere(Message):
    """A unary call, and its answer: the event loop of the other side runs, and is reached."""


@message(113)
@dataclass(frozen=True, slots=True)
class Apart(Message):
    """A member tells the trainer from which others of its stage nothing comes at present.

    It says all of them each time that this changes; none are as good as never having said it.
    """

    peers: Annotated[tuple[Peer, ...], Size(GROUP_MAX)]
