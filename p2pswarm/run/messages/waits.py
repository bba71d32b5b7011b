"""Where a step's seconds go, and who waits for whom: questions to servers and to the trainer."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Annotated

from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.field_limits import (
    MEMBERS_MAX,
    STAGES_MAX,
    Microbatch,
    Peer,
    RunId,
    Seconds,
    Stage,
    Step,
)
from p2pswarm.run.messages.status import PeerName

WAITS_TOLD_MAX = 16  # peers in each list of an answer: who waits for more is named by the first
JOURNEY_MAX = 2 * STAGES_MAX + 8  # each stage both ways, and what is before and after
NAMES_TOLD_MAX = 128  # 64 stages both ways; who has more reads ids
CAUSE_CHARS = 500  # the line about a stall: two servers, a link, and their own words
Count = Annotated[int, Range(0, 2**31)]
SomePeer = Annotated[bytes, Size(0, 32)]
"""A peer, or nobody."""


@dataclass(frozen=True, slots=True)
class StepSeconds(Message):
    """A server's time from the order to commit one step to that of the next, in six parts.

    Each moment is in one part, the first of these that fits, so their sum is that time.
    """

    forward_s: Seconds = 0.0
    """It computed forward passes; in the last stage all that is done with a microbatch."""
    backward_s: Seconds = 0.0
    """It computed backward passes."""
    commit_s: Seconds = 0.0
    """It had an order to commit, and not applied it yet."""
    averaging_s: Seconds = 0.0
    """It averaged: from the order to the answer."""
    transfer_s: Seconds = 0.0
    """Tensors that it has made were on their way to another server."""
    waiting_s: Seconds = 0.0
    """It had nothing to do."""

    @property
    def sum_s(self) -> float:
        """The whole time."""
        computed_s = self.forward_s + self.backward_s
        return computed_s + self.commit_s + self.averaging_s + self.transfer_s + self.waiting_s


@message(150)
@dataclass(frozen=True, slots=True)
class AskWaits(Message):
    """A question for a server, by who may ask `AskBalance`. The reply is `ServerWaits`."""

    run: RunId


@dataclass(frozen=True, slots=True)
class PeerWait(Message):
    """What a server waits for of one peer."""

    peer: Peer
    microbatches: Count
    for_s: Seconds
    """The oldest of them."""


PeerWaits = Annotated[tuple[PeerWait, ...], Size(WAITS_TOLD_MAX)]
"""Those that are waited for longest."""


@dataclass(frozen=True, slots=True)
class ComputingNow(Message):
    """The microbatch that a server computes."""

    microbatch: Microbatch
    work: Annotated[int, Range(0, 2)]
    for_s: Seconds
    usual_s: Seconds | None
    """How long one takes; None: not measured yet."""


class PieceKind(IntEnum):
    """What a member of an averaging lacks; each kind is made of the one before."""

    PARTS = 0
    """Parts of the sums of others."""
    REDUCED = 1
    """Pieces that others reduce."""
    SHARES = 2
    """Words of others that they have all pieces."""


@dataclass(frozen=True, slots=True)
class AveragingNow(Message):
    """The averaging that a server takes part in."""

    step: Step
    for_s: Seconds
    missing: Annotated[tuple[Peer, ...], Size(WAITS_TOLD_MAX)]
    """Some of those of whom something has not come yet; none: it waits for its own processor."""
    lack: Count
    """How many they are."""
    lacks: Annotated[int, Range(0, len(PieceKind) - 1)]
    """A `PieceKind`: what these owe. Who lacks a later kind has all of the former ones."""


@message(151)
@dataclass(frozen=True, slots=True)
class ServerWaits(Message):
    """What a server has to do, and whom it waits for, as it sees that itself."""

    stage: Stage | None
    """None: it has no part in the run just now."""
    version: Step | None
    """Of its weights; None while they are not here."""
    state: Annotated[str, Size(100)]
    """In words that follow "it"."""
    queued: Count = 0
    """Microbatches that are here and wait for their turn."""
    coming: Count = 0
    """Those whose memory is set aside, and whose bytes are not here."""
    computing: ComputingNow | None = None
    came_ago_s: Seconds | None = None
    """Since the last microbatch or gradient was here; None: none was."""
    gives: PeerWaits = ()
    """To whom it gives results: they have not said yet that they computed them."""
    gradients: PeerWaits = ()
    """From whom it waits for gradients."""
    averaging: AveragingNow | None = None
    broken: Annotated[tuple[Peer, ...], Size(WAITS_TOLD_MAX)] = ()
    """Peers from which nothing comes."""
    unheard_s: Seconds = 0.0
    """For how long nothing has come from the trainer."""


@message(152)
@dataclass(frozen=True, slots=True)
class AskWhy(Message):
    """A question for the run's trainer, by who may ask `AskBalance`. The reply is `RunWhy`."""

    run: RunId


@dataclass(frozen=True, slots=True)
class StageSeconds(Message):
    """The seconds of one stage in a step: the mean of its servers."""

    servers: Annotated[int, Range(0, MEMBERS_MAX)]
    """Those that the mean is of."""
    seconds: StepSeconds
    slowest: SomePeer
    """The one that waited least."""
    doubtful: Annotated[int, Range(0, MEMBERS_MAX)] = 0
    """Servers whose claims do not fit the step, and are left out."""


class JourneyPart(IntEnum):
    """A part of the slowest chain of a step."""

    FILLING = 0
    """Until its last microbatch was launched: with other microbatches."""
    LAUNCH = 1
    """From there until a server of the first stage had it."""
    FORWARD = 2
    """The microbatch was at a server, on its way to the last stage, or on the road to the next."""
    BACKWARD = 3
    """The same, on its way back."""
    CLOSING = 4
    """All was counted, and the step could not end yet: a word, a promise or a server lacked."""
    AVERAGING = 5
    """Until the last server said that it had averaged."""
    DECIDING = 6
    """Until the voters had accepted the record."""


@dataclass(frozen=True, slots=True)
class ChainLink(Message):
    """One part of the slowest chain."""

    part: Annotated[int, Range(0, len(JourneyPart) - 1)]
    stage: Stage | None
    peer: SomePeer
    """The server, where one is named."""
    seconds: Seconds


@message(153)
@dataclass(frozen=True, slots=True)
class RunWhy(Message):
    """Where the seconds of the last step went, and what the run waits for."""

    step: Step
    """The number of steps that were done with it; 0: none was measured yet."""
    seconds: Seconds
    """That step's time."""
    usual_s: Seconds | None
    """That of most; None: not measured yet."""
    under_way_s: Seconds
    """How long the present step has taken so far."""
    stages: Annotated[tuple[StageSeconds, ...], Size(STAGES_MAX)]
    """All stages, in order."""
    chain: Annotated[tuple[ChainLink, ...], Size(JOURNEY_MAX)]
    """The slowest chain, from the step's beginning to its end."""
    stalled: Annotated[str, Size(CAUSE_CHARS)]
    """Who waits for whom; empty while the run goes on."""
    names: Annotated[tuple[PeerName, ...], Size(NAMES_TOLD_MAX), Trailing()] = ()
    """Of the machines of the chain and of the stages, as far as their owners said them."""
