"""Several trainers of a run: which of them leads, where they are, and who stands by."""

from dataclasses import dataclass
from typing import Annotated

from p2pswarm.base.ids import Address, Contact, PeerId
from p2pswarm.net.wire.message import Message, Range, Size, Trailing, message
from p2pswarm.run.messages.cost import MachinePrice
from p2pswarm.run.messages.field_limits import (
    TRAINERS_MAX,
    VOTERS_MAX,
    CardBytes,
    Height,
    IncarnationNumber,
    Peer,
    RunId,
    Stage,
    Step,
    Term,
)

ALIVE_S = 0.5  # coordinator and members say something as often to each other
REFERENCES_MAX = 4_096  # 9 bytes each: they stay under 60 KiB
PROBES_MAX = 128  # with the longest addresses they stay under 60 KiB
KNOCKS_MAX = 32  # servers at a standby's door; a few of each stage that is missed are enough
QUARANTINES_MAX = 128  # that a trainer remembers; each cost a step
QUARANTINE_MAX_S = 86_400.0
QUARANTINE_TIMES_MAX = 16  # twice as long each time: it is a day long before
SILENCE_S = 3.0  # six signs of life; then it is looked past. A standby stands after 4 s


@dataclass(frozen=True, slots=True)
class Whereabouts(Message):
    """A peer and where it is dialled."""

    peer: Peer
    address: Annotated[str, Size(300)]
    card: CardBytes = b""
    """Where else it is dialled; empty where another message has told that."""

    @classmethod
    def of(cls, contact: Contact) -> "Whereabouts":
        """The whereabouts of a peer whose id is known."""
        assert contact.peer is not None, "a contact without a peer has no name"
        return cls(contact.peer.raw, str(contact.address))

    @property
    def contact(self) -> Contact | None:
        """Return where to dial it; None if the address cannot be read."""
        try:
            return Contact(PeerId(self.peer), Address.parse(self.address))
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class QuarantinedPeer(Message):
    """A server that has computed with another state than its stage had."""

    peer: Peer
    times: Annotated[int, Range(1, QUARANTINE_TIMES_MAX)]
    """How often; the next time it is out for twice as long."""
    left_s: Annotated[float, Range(0.0, QUARANTINE_MAX_S)]
    """For so long it gets no work while others serve its stage."""


@message(92)
@dataclass(frozen=True, slots=True)
class Trainers(Message):
    """The coordinator says who may lead after it, and who votes.

    A member is told after `Assigned`, and when it changes; a standby on the stream of its `Enlist`.
    """

    run: RunId
    term: Term
    """The one that the sender leads."""
    trainers: Annotated[tuple[Whereabouts, ...], Size(TRAINERS_MAX)]
    """In the order of their rank, the sender too."""
    voters: Annotated[tuple[Whereabouts, ...], Size(2 * VOTERS_MAX)]
    """Those of the head and those that may be the next; trainers too, if they vote."""
    quarantined: Annotated[tuple[QuarantinedPeer, ...], Size(QUARANTINES_MAX), Trailing()] = ()
    """Standbys alone are told: one may lead next."""


@message(93)
@dataclass(frozen=True, slots=True)
class Enlist(Message):
    """Opens a standby's stream with the coordinator, which names it in the next record.

    Answered by `Trainers`, again whenever that changes, `Alive` or `Spent` in between, and
    `Finished` at the end of the run. A trainer that does not coordinate answers `StandsBy` and
    ends the stream.
    """

    run: RunId
    address: Annotated[str, Size(300)]
    """Where others dial this trainer."""
    price: Annotated[MachinePrice | None, Trailing()] = None
    """Of its machine; None: its owner has told nothing."""


@message(94)
@dataclass(frozen=True, slots=True)
class Alive(Message):
    """The sender lives: said by the coordinator to a member or a standby, and by a member to it.

    It is said when nothing else was said for half a second.
    """


@message(79)
@dataclass(frozen=True, slots=True)
class WhoLeads(Message):
    """A call to any trainer: who coordinates the run? Answered by `StandsBy`.

    A trainer that coordinates the run names itself.
    """

    run: RunId
    unheard_in: IncarnationNumber | None = None
    """The sender's, in which it hears nothing from its coordinator; None: it only asks."""
    address: Annotated[str, Size(300)] = ""
    """Where the sender is dialled, as in `Join`: its vote may be needed. Empty: it has none."""
    records: Height = 0
    """How many decided records its voter knows, as in `Join`."""


@message(105)
@dataclass(frozen=True, slots=True)
class AskReachable(Message):
    """The coordinator misses servers of a stage: whom of these does a standby reach?

    A call to a trainer that stands by; answered by `ReachableStages`.
    """

    run: RunId
    term: Term
    """The one that the sender leads."""
    peers: Annotated[tuple[Whereabouts, ...], Size(PROBES_MAX)]
    """Servers of every stage, as far as there is room, and voters; cards as far as they fit."""


@message(138)
@dataclass(frozen=True, slots=True)
class FetchReferences(Message):
    """A trainer that is to stand by asks another for references; answered by `ReferencePart`.

    It takes its place once it has all: whoever leads makes rows of them (docs/preferences.md).
    """

    run: RunId
    first: Annotated[int, Range(0, 2**48)]
    """The answer that it lacks; as many follow as there is room for."""


@message(139)
@dataclass(frozen=True, slots=True)
class ReferencePart(Message):
    """The log probabilities of answers before any training; empty after the last one."""

    scores: Annotated[tuple[float, ...], Size(REFERENCES_MAX)]


@dataclass(frozen=True, slots=True)
class CoordinatorProbe(Message):
    """A server that has asked a standby for a stage a moment ago."""

    stage: Stage
    version: Step
    """Of the weights that it holds."""
    where: Whereabouts


@message(108)
@dataclass(frozen=True, slots=True)
class ReachableStages(Message):
    """Those of the peers that have answered the standby just now, and who knocks at its door."""

    peers: Annotated[tuple[Peer, ...], Size(PROBES_MAX)]
    knocks: Annotated[tuple[CoordinatorProbe, ...], Size(KNOCKS_MAX)]


@dataclass(frozen=True, slots=True)
class Unheard(Message):
    """One incarnation of a member that hears nothing from its coordinator."""

    peer: Peer
    incarnation: IncarnationNumber


@message(109)
@dataclass(frozen=True, slots=True)
class NotHeard(Message):
    """A standby tells the coordinator that these members ask who leads: they hear nothing of it.

    A call, repeated each second for as long as they ask; answered by itself.
    """

    run: RunId
    members: Annotated[tuple[Unheard, ...], Size(KNOCKS_MAX)]
