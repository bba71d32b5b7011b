"""The delivery of pieces: where a peer is, when to try again, and what its links carry."""

from dataclasses import dataclass
from enum import Enum

from p2pswarm.base.errors import Busy, LinkLost, PathError, Refused, SwarmError
from p2pswarm.base.ids import Contact, PeerId

PIECE_S = 3600.0  # as long as an averaging may take: its trainer ends it, and learns when
VIEW_S = 5.0  # the view that names a member may come after the order that names it
LINKS_MAX = 2  # of two peers that dial each other at once one link ends; after that the other stays
BUSY_MAX_S = 1.0  # between two tries at a peer without memory for us
MEASURED_S = 0.001  # a peer whose bytes took less tells of the kernel's buffers, not of a link


class AveragingRoadLost(Refused):
    """An averaging failed because nothing passes between us and another member."""

    def __init__(self, peer: bytes, why: str) -> None:
        super().__init__(_names(peer, why))
        self.peer = peer


class DeliveryState(Enum):
    """How far a piece has come."""

    SEEKING = "no view names its receiver"
    SENDING = "it is offered to its receiver"
    WAITING = "its receiver has no memory for it now"
    SENT = "its receiver has it"
    FAILED = "it will not arrive"


class PieceDelivery:
    """A piece for one peer; over when it was sent, or `failure` tells why not.

    SEEKING -> SENDING -> SENT      a view names the peer, and it takes the piece
    SENDING -> WAITING -> SENDING   it has no memory for us yet, and says when to come again
    SENDING -> SENDING              the link is lost: there may be another, see `LINKS_MAX`
    any -> FAILED                   the time is over, or the peer failed
    """

    def __init__(
        self, peer: bytes, now_s: float, *, piece_s: float = PIECE_S, view_s: float = VIEW_S
    ) -> None:
        self.peer = peer
        self.state = DeliveryState.SEEKING
        self.to: Contact | None = None
        """Where to send it."""
        self.failure: Refused | None = None
        """Why it will not arrive; it names the peer."""
        self._links = 1
        self._piece_s = piece_s
        self._give_up_s = now_s + piece_s
        self._wake_s = now_s + min(view_s, piece_s)

    def next_deadline_s(self) -> float:
        """Return when to call `on_deadline`, unless something happens before."""
        return self._give_up_s if self.state is DeliveryState.SENDING else self._wake_s

    def located(self, to: Contact | None) -> None:
        """Learn where the newest view says that the peer is."""
        if self.state is DeliveryState.SEEKING and to is not None:
            self.to, self.state = to, DeliveryState.SENDING

    def sent(self) -> None:
        """Its receiver has it."""
        self.state = DeliveryState.SENT

    def failed(self, error: SwarmError, now_s: float) -> None:
        """It could not be sent: it is tried again if the peer was busy, or has another link."""
        if isinstance(error, Busy):
            self.state = DeliveryState.WAITING
            retry_s = now_s + min(error.retry_after_s, BUSY_MAX_S)
            self._wake_s = min(retry_s, self._give_up_s)
        elif isinstance(error, LinkLost) and self._links < LINKS_MAX:
            self._links += 1
        elif isinstance(error, PathError):
            self.state = DeliveryState.FAILED
            self.failure = AveragingRoadLost(self.peer, str(error))
        else:
            self._fail(str(error) or type(error).__name__)

    def on_deadline(self, now_s: float) -> None:
        """Try again, or give up."""
        if now_s >= self._give_up_s:
            self._fail(f"no memory granted within {self._piece_s:g} s")
        elif now_s < self._wake_s or self.state is DeliveryState.SENDING:
            return
        elif self.state is DeliveryState.WAITING:
            self.state = DeliveryState.SENDING
        else:
            self._fail("no view names it")

    def _fail(self, why: str) -> None:
        self.state = DeliveryState.FAILED
        self.failure = Refused(_names(self.peer, why))


def _names(peer: bytes, why: str) -> str:
    return f"averaging with {PeerId(peer).short} failed: {why}"


@dataclass(slots=True)
class _Flow:
    under_way: int = 0
    since_s: float = 0.0
    busy_s: float = 0.0
    size_bytes: int = 0


class Bandwidth:
    """The rate of one direction over all peers, measured while a member averages.

    The bytes to each peer are divided by the time in which any were on their way to it, and the
    rates of all peers are added: they share the same uplink at the same time. So one slow receiver
    does not make a fast sender look slow.
    """

    def __init__(self) -> None:
        self._flows: dict[bytes, _Flow] = {}

    def begin(self, peer: bytes, now_s: float) -> None:
        """Bytes to or from `peer` are on their way; say `end` once for each call."""
        flow = self._flows.setdefault(peer, _Flow())
        if not flow.under_way:
            flow.since_s = now_s
        flow.under_way += 1

    def end(self, peer: bytes, size_bytes: int, now_s: float) -> None:
        """They have come, or `size_bytes` of them."""
        flow = self._flows[peer]
        flow.under_way -= 1
        flow.size_bytes += size_bytes
        if not flow.under_way:
            flow.busy_s += now_s - flow.since_s

    @property
    def bytes_per_s(self) -> float:
        """The sum of the peers' rates; 0 if none took long enough to measure."""
        return sum(
            flow.size_bytes / flow.busy_s
            for flow in self._flows.values()
            if flow.busy_s >= MEASURED_S
        )


class LinkBandwidth:
    """What a member's links carry while it averages, perhaps in two averagings at a time."""

    def __init__(self) -> None:
        self.sent, self.received = Bandwidth(), Bandwidth()

    @property
    def bytes_per_s(self) -> float:
        """The rate of the slower direction."""
        return min(self.sent.bytes_per_s, self.received.bytes_per_s)
