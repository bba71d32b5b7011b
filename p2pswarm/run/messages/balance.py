"""Who has moved between the stages of a run, and why: what `p2pswarm explain` asks a trainer."""

import dataclasses
import operator
from dataclasses import dataclass
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.plan.capacity import Measured
from p2pswarm.run.messages.field_limits import STAGES_MAX, Peer, Reason, RunId, Seconds, Stage
from p2pswarm.run.messages.status import PeerName, Servers

Bytes = Annotated[int, Range(0, 2**62)]
MeanBytes = Annotated[float, Range(0.0, 1e15)]
BYTES_PER_S_MAX = 1e15  # beyond any link
BytesPerS = Annotated[float, Range(0.0, BYTES_PER_S_MAX)]
CodecName = Annotated[str, Size(16)]
MOVES_TOLD_MAX = 32  # the last ones, in one answer
CAPACITIES_TOLD_MAX = 256  # servers in one answer: about 150 bytes each, of the 60 KiB of a message
MOVES_MEASURED_MAX = 10**9  # beyond what a run can make
REASONS_MAX = 16  # why servers cannot move: there are four kinds
RATE_MAX, GAIN_MAX = 1e9, 1e6  # far beyond any run: what is more is told as this
Rate = Annotated[float, Range(0.0, RATE_MAX)]


@dataclass(frozen=True, slots=True)
class Capacity(Message):
    """What a server has measured of itself: the fields of `plan.capacity.Measured`, in order.

    A number that is not known yet is missing.
    """

    forward_s: Seconds | None = None
    backward_s: Seconds | None = None
    error_s: Seconds | None = None
    queue_s: Seconds | None = None
    in_bytes: MeanBytes | None = None
    out_bytes: MeanBytes | None = None
    link_bytes_per_s: BytesPerS | None = None
    free_bytes: Bytes | None = None
    state_bytes: Bytes | None = None
    up_bytes_per_s: BytesPerS | None = None
    down_bytes_per_s: BytesPerS | None = None

    @classmethod
    def of(cls, measured: Measured) -> "Capacity":
        """Return what a server tells of what it has measured."""
        return cls(*_VALUES(measured))

    @property
    def measured(self) -> Measured:
        """Return what the sender has measured."""
        return Measured(**dict(zip(_NAMES, _VALUES(self), strict=True)))


_NAMES = tuple(field.name for field in dataclasses.fields(Capacity))
_VALUES = operator.attrgetter(*_NAMES)  # `asdict` takes ten times as long

NOT_MEASURED = Capacity()


@message(125)
@dataclass(frozen=True, slots=True)
class AskBalance(Message):
    """A question for the run's trainer; anybody may ask it. The reply is a `BalanceStatus`."""

    run: RunId


@dataclass(frozen=True, slots=True)
class StageRate(Message):
    """What one stage can do."""

    rate_per_s: Rate
    """Of its servers together, with those that are on their way to it."""
    queue_s: Seconds | None
    """Mean wait of a microbatch; None if nobody has measured it."""
    ready: Servers
    unmeasured: Servers
    """Servers of which nothing is known yet: each counts as a usual one."""


@dataclass(frozen=True, slots=True)
class PastMove(Message):
    """A server that was sent to another stage."""

    ago_s: Seconds
    peer: Peer
    source: Stage
    target: Stage
    gain: Annotated[float, Range(-1.0, GAIN_MAX)]
    """For everybody, by the plan that it was a part of, as a share."""
    away_s: Seconds
    """How long it was to compute nothing."""
    planned: Servers
    """Moves of that plan."""


@dataclass(frozen=True, slots=True)
class ServerPreparing(Message):
    """A server that fetches the weights of another stage, and serves its own meanwhile."""

    since_s: Seconds
    """How long it has been at it."""
    peer: Peer
    source: Stage
    target: Stage
    gain: Annotated[float, Range(-1.0, GAIN_MAX)]
    """As of a move."""


@dataclass(frozen=True, slots=True)
class StaysPut(Message):
    """Why servers cannot be moved."""

    servers: Servers
    reason: Annotated[str, Size(100)]
    """In words that follow "it"."""


@dataclass(frozen=True, slots=True)
class MovesTake(Message):
    """What a move is expected to take, beside the download."""

    prepared_s: Seconds
    """Who has fetched the weights is away for so long."""
    waits_s: Seconds
    """Until then it waits for a commit."""
    unprepared_s: Seconds
    """Who leaves first is away for so much longer than its download."""
    prepared: Annotated[int, Range(0, MOVES_MEASURED_MAX)]
    """Moves that were measured."""
    unprepared: Annotated[int, Range(0, MOVES_MEASURED_MAX)]


@dataclass(frozen=True, slots=True)
class BoundaryRate(Message):
    """A boundary between two stages: its codecs, and what its links carry."""

    stage: Stage
    """Below it."""
    activation: CodecName
    gradient: CodecName
    up_bytes_per_s: BytesPerS | None
    """Of its links together; None: not measured."""
    down_bytes_per_s: BytesPerS | None
    up_s: Seconds
    """Of a microbatch with these codecs; 0 where nothing is measured."""
    down_s: Seconds
    compute_s: Seconds | None
    """Of a microbatch in the slowest stage, all its servers together."""
    why: Reason
    """The reason for these codecs."""


@message(126)
@dataclass(frozen=True, slots=True)
class BalanceStatus(Message):
    """The last decisions, and why nobody else moves."""

    rule: Annotated[str, Size(20)]
    """`run.balance.rule`."""
    asked_ago_s: Seconds | None
    """Since the rule was asked; None before that."""
    floor: Servers
    """Ready servers that each stage keeps."""
    stages: Annotated[tuple[StageRate, ...], Size(STAGES_MAX)]
    """All stages, in order; none before the rule was asked."""
    moves: Annotated[tuple[PastMove, ...], Size(MOVES_TOLD_MAX)]
    """The newest first."""
    preparing: Annotated[tuple[ServerPreparing, ...], Size(MOVES_TOLD_MAX)]
    """Those who are to move, the newest first."""
    why: Reason
    """Why nobody moves now, or not more."""
    stay: Annotated[tuple[StaysPut, ...], Size(REASONS_MAX)]
    take: MovesTake
    """What the next move is expected to take."""
    boundaries: Annotated[tuple[BoundaryRate, ...], Size(STAGES_MAX)] = ()
    """In order, where codecs are measured for; of the last step."""
    names: Annotated[tuple[PeerName, ...], Size(2 * MOVES_TOLD_MAX), Trailing()] = ()
    """Of those in `moves` and `preparing`, as far as they are known."""


@message(135)
@dataclass(frozen=True, slots=True)
class AskCapacities(Message):
    """A question for the run's trainer; anybody may ask it. The reply is `RunCapacities`."""

    run: RunId
    first: Servers = 0
    """So many servers are known already: the answer goes on after them."""


@dataclass(frozen=True, slots=True)
class ServerCapacity(Message):
    """What one server has measured of itself."""

    peer: Peer
    stage: Stage
    ready: bool
    rtt_s: Seconds | None
    """Of the trainer's link to it; None if there is none, or no ping has come back."""
    capacity: Capacity


@message(136)
@dataclass(frozen=True, slots=True)
class RunCapacities(Message):
    """The servers of a run as they were after the newest step that was looked at."""

    servers: Annotated[tuple[ServerCapacity, ...], Size(CAPACITIES_TOLD_MAX)]
    """In the order of their ids, from `first` on."""
    total: Servers
    """Of all of them."""
