"""What the machines of the chain ask their shell to do, in the order in which they ask.

A shell that cannot carry out a `Persist` drops what follows it, and tells the voter.
"""

from dataclasses import dataclass

from p2pswarm.net.wire.message import Message
from p2pswarm.run.chain.record import CommitRecord, VoterId


@dataclass(frozen=True, slots=True)
class Persist:
    """Append this message to the file and wait until it is on the disk, before the next action."""

    entry: Message


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer the call that is being served."""

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Ask:
    """Call a peer, and tell the machine its answer. A call that fails needs no report.

    The peer may be this node itself: then the call is served here.
    """

    to: bytes
    message: Message


@dataclass(frozen=True, slots=True)
class Fetch:
    """Fetch decided records from a peer, from `height` on; they are the learner's."""

    to: bytes
    height: int


@dataclass(frozen=True, slots=True)
class RecordDecided:
    """A record is decided: it will be in every chain. Now, and not before, members may apply it."""

    record: CommitRecord


@dataclass(frozen=True, slots=True)
class Leading:
    """This trainer leads the term: it may propose the record after its head."""

    term: int


@dataclass(frozen=True, slots=True)
class Deposed:
    """This attempt to lead is over for good."""

    promised: int
    """The highest term that it has heard of: the next attempt is in a higher one."""
    why: str


@dataclass(frozen=True, slots=True)
class VotesMissing:
    """For a while no majority has answered: these voters are silent, and some of them are needed.

    Nothing can be decided before. It is said for people, who may start those nodes again.
    """

    voters: tuple[VoterId, ...]


@dataclass(frozen=True, slots=True)
class VotesChanged:
    """The leader may look who should vote: a second has passed, or a vote was found or lost."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A server's voter follows the leader of a greater term than before."""

    leader: bytes
    term: int


@dataclass(frozen=True, slots=True)
class StoreFailed:
    """Told by the shell, not by a machine: an entry is not kept, so this node votes no more."""

    reason: str


LeaderAction = Ask | Fetch | RecordDecided | Leading | Deposed | VotesMissing | VotesChanged
Action = Persist | Reply | Followed | LeaderAction
