"""LinkMachine: the rules of one link to a proven peer, from its first ping to its last byte.

`receive` takes bytes of the control connection, opens the records and passes their
frames to the mux. `events` returns what happened, and `data_to_send` returns sealed
records for the wire. The caller sends messages with the methods of `mux`.

LinkEnded is the last event of a link and comes once. In the state CLOSING the records
that are left still go out; in ENDED nothing does.

Units:   bytes, `now_s` seconds on the caller's monotonic clock.
Errors:  a peer's wrong bytes end the link and raise nothing; LinkLost from `check_up`.
Source:  docs/wire.md; RFC 6298 for the round trip.
"""

import struct
from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.crypto.records import PREFIX_BYTES, Opener, Sealer
from p2pswarm.crypto.suite import TAG_BYTES
from p2pswarm.errors import BadFrame, BadRecord, LinkLost, PeerError, SwarmError
from p2pswarm.flow.estimates import RoundTrip
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.events import (
    BulkWanted,
    EndpointEvent,
    GoneAway,
    LinkEnded,
    LinkEvent,
    LinkUp,
    Ponged,
    StreamEvent,
)
from p2pswarm.transport.frames import RECORD_BYTES_MAX
from p2pswarm.transport.mux import Mux
from p2pswarm.transport.reply_memory import LinkReplies, ReplyMemory
from p2pswarm.transport.session import Session
from p2pswarm.wire.frame_buffer import FrameBuffer

LAST_WORDS_S = 1.0  # a bulk thread may see the end before the loop has read the last records
CLOSE_S = 1.0  # time for the last bytes to leave when we close a link
CIPHERTEXT_MAX = RECORD_BYTES_MAX + TAG_BYTES
LABEL = b"ctrl"  # each direction has a key of its own
GATHERED_MAX = 8  # so many answers to one read are sent together
_PING = struct.Struct(">d")


class LinkState(Enum):
    """The states of a link, in the order in which it ends."""

    UP = auto()
    """Both sides open streams."""
    LEAVING = auto()
    """We open no more streams, and have told the peer."""
    LEFT = auto()
    """The peer opens no more streams."""
    DRAINING = auto()
    """Neither side opens streams: the link closes when the open ones have finished."""
    CLOSING = auto()
    """The link is over, and the last records are on their way."""
    ENDED = auto()
    """The link is over, and its sockets are to be closed now."""


WHEN_WE_LEAVE = {LinkState.UP: LinkState.LEAVING, LinkState.LEFT: LinkState.DRAINING}
WHEN_PEER_LEAVES = {LinkState.UP: LinkState.LEFT, LinkState.LEAVING: LinkState.DRAINING}


@dataclass(frozen=True, slots=True)
class LinkStats:
    """What one link has carried: bytes of control records and of bulk payload."""

    control_sent_bytes: int
    control_received_bytes: int
    bulk_sent_bytes: int
    bulk_received_bytes: int
    bulk_connections: int


class LinkMachine:
    """One side of a link. The deadline changes only in methods whose docstring says so."""

    __slots__ = (
        "_abort_at_s",
        "_bulk_by_s",
        "_bulk_numbers",
        "_bulk_wanted",
        "_config",
        "_ended",
        "_heard",
        "_last_words",
        "_mute",
        "_opener",
        "_ping_at_s",
        "_quiet_since_s",
        "_records",
        "_round_trip",
        "_sealer",
        "_session",
        "_silent_s",
        "error",
        "gathering",
        "mux",
        "news",
        "received_bytes",
        "sent_bytes",
        "state",
    )

    def __init__(
        self,
        session: Session,
        config: TransportConfig,
        now_s: float,
        replies: ReplyMemory | None = None,
    ) -> None:
        """`session`: the finished handshake. Call `start` when the control connection is up.

        `replies`: what all links of the node hold.
        """
        self._session = session
        self._config = config
        self.mux = Mux(dialled=session.dialled, replies=LinkReplies(replies))
        """The streams; call `data_to_send` after each method of it."""
        keys = session.keys
        self._records = FrameBuffer(
            PREFIX_BYTES, CIPHERTEXT_MAX, TAG_BYTES, flag_bits=1, error=BadRecord
        )
        self._opener = Opener(keys.receive_key, keys.suite, LABEL)
        self._sealer = Sealer(keys.send_key, keys.suite, LABEL, now_s)
        self.state = LinkState.UP
        self.error: SwarmError | None = None
        """What ended the link; None while it can be used."""
        self.sent_bytes = self.received_bytes = 0
        self.news: list[EndpointEvent] = []
        """The events that `link_events` will return; only read it here."""
        self._ended: list[StreamEvent] = []
        self._heard = True
        self._silent_s = 0.0
        self._round_trip = RoundTrip()
        self._bulk_wanted = False
        self._bulk_numbers: set[int] = set()
        self.gathering = 0
        """Not 0 while answers are gathered: then call `holds_back` before `data_to_send`."""
        self._mute = False
        self._quiet_since_s: float | None = None
        self._ping_at_s: float | None = None
        self._bulk_by_s: float | None = None
        self._last_words: tuple[float, SwarmError] | None = None
        self._abort_at_s: float | None = None

    def start(self, now_s: float) -> None:
        """Start with LinkUp and a ping; sets the deadline."""
        self.news.append(LinkUp())
        self._ping(now_s)

    @property
    def rtt_s(self) -> float:
        """The smoothed round trip of pings; 0 before the first has come back."""
        return self._round_trip.srtt_s or 0.0

    # streams

    def check_up(self) -> None:
        """Raise LinkLost if the link has ended."""
        if self.error is not None:
            raise LinkLost(f"{self._name} has ended: {self.error}")

    def receive(self, data: bytes, now_s: float) -> None:
        """Take bytes of the control connection, cut anywhere; may change the deadline."""
        if self.error is not None:
            return
        self._heard = True
        self.received_bytes += len(data)
        try:
            for prefix, ciphertext in self._records.receive(data):
                self.mux.receive(self._opener.open(ciphertext, prefix))
            if self.mux.link_happened:
                for event in self.mux.link_events():
                    self._on_link_event(event, now_s)
        except PeerError as error:
            self.fail(error)

    def events(self) -> list[StreamEvent]:
        """The events of streams since the last call; LinkEnded is the last of all."""
        events = self.mux.events()
        if self.error is None:
            return events
        ended, self._ended = self._ended, []
        return ended

    def link_events(self) -> list[EndpointEvent]:
        """The events for the endpoint since the last call."""
        news, self.news = self.news, []
        return news

    def data_to_send(self, now_s: float) -> bytes:
        """The next record for the wire, or empty bytes; call until it is empty."""
        if self._mute or not (plaintext := self.mux.data_to_send()):
            return b""
        record = self._sealer.seal(plaintext, now_s)
        self.sent_bytes += len(record)
        return record

    def pause_writing(self) -> None:
        """The kernel takes no more: messages stay queued here, in order of priority."""
        self._mute = True

    def resume_writing(self) -> None:
        """The kernel takes more again: call `data_to_send`."""
        self._mute = self.state is LinkState.ENDED

    # answers that leave together

    def gather(self) -> bool:
        """Note that one read gave several events.

        The tasks that they wake answer one after the other, and the answers leave in one
        write. Returns whether to call `gathered` when these tasks have run.
        """
        if self.gathering or self.error is not None:
            return False
        self.gathering = 1
        return True

    def gathered(self) -> None:
        """Note that the woken tasks have answered: call `data_to_send`."""
        self.gathering = 0

    def holds_back(self) -> bool:
        """Whether the answer that was just queued should wait for the others."""
        self.gathering += 1
        return self.gathering % GATHERED_MAX != 0

    # bulk

    def want_bulk(self, now_s: float) -> bool:
        """Ask for bulk connections, because a tensor is to be sent or received.

        The side that dialled the link makes them; if the peer does not do so in time, the
        link ends. Returns whether this changed the deadline or made an event, which only the
        first call does.
        """
        if self._bulk_wanted or self.error is not None:
            return False
        self._bulk_wanted = True
        config = self._config
        if self._session.dialled:
            count = config.bulk_connections
            if self.rtt_s >= config.far_s:
                count = max(count, config.bulk_connections_far)
            self.news.append(BulkWanted(count))
        else:
            self._bulk_by_s = now_s + config.dial_s + config.handshake_s
            self.mux.ask_for_bulk()
        return True

    def claim_number(self, number: int) -> bool:
        """Whether a bulk connection of this number may join; each number may join once."""
        numbers = self._bulk_numbers
        if number in numbers or len(numbers) >= self._config.bulk_connections_max:
            return False
        numbers.add(number)
        return True

    def bulk_joined(self) -> None:
        """Note that a bulk connection has joined; may change the deadline."""
        self._bulk_wanted = True
        self._bulk_by_s = None

    def bulk_lost(self, error: SwarmError, now_s: float) -> None:
        """End the link, because a bulk connection ended; may change the deadline.

        Unless the peer broke the protocol, the link ends LAST_WORDS_S later, because the
        peer's last records may still be on the wire.
        """
        if isinstance(error, PeerError):
            self.fail(error)
        elif self._last_words is None:
            self._last_words = (now_s + LAST_WORDS_S, error)

    # time

    def next_deadline_s(self) -> float | None:
        """When `on_deadline` is due, or None."""
        if self.error is not None:
            return self._abort_at_s
        last_words_s = self._last_words[0] if self._last_words is not None else None
        return min(
            (at_s for at_s in (self._ping_at_s, self._bulk_by_s, last_words_s) if at_s is not None),
            default=None,
        )

    def on_deadline(self, now_s: float) -> None:
        """Do what is due: ping, or end the link; changes the deadline."""
        if self.error is not None:
            if _is_due(self._abort_at_s, now_s):
                self._abort_at_s = None
                self.state = LinkState.ENDED
            return
        config = self._config
        if self._last_words is not None and now_s >= self._last_words[0]:
            self.fail(self._last_words[1])
        elif _is_due(self._bulk_by_s, now_s):
            patience_s = config.dial_s + config.handshake_s
            self.fail(LinkLost(f"{self._name}: no bulk connection within {patience_s:g} s"))
        elif _is_due(self._ping_at_s, now_s):
            # Silent periods are counted, not seconds: a stall of our own loop is not the peer's.
            self._silent_s = 0.0 if self._heard else self._silent_s + config.idle_ping_s
            self._heard = False
            if self._silent_s >= config.dead_after_s:
                self.fail(LinkLost(f"{self._name}: silent for {self._silent_s:g} s"))
            else:
                self._ping(now_s)

    # the end

    def leave(self) -> None:
        """Open no more streams; the link closes when the streams of both sides have finished."""
        if self.state in WHEN_WE_LEAVE:
            self.state = WHEN_WE_LEAVE[self.state]
            self.mux.go_away()

    def close_if_quiet(self, now_s: float, *, bulk_busy: bool) -> bool:
        """Close a link that we left and that has nothing left to do; returns whether it closed.

        A peer that does not agree has as long as a silent one. `bulk_busy`: whether tensors are
        on their way. Changes the deadline if the link closes.
        """
        if self.mux.live or bulk_busy or self.state not in (LinkState.LEAVING, LinkState.DRAINING):
            self._quiet_since_s = None
            return False
        if self.state is LinkState.LEAVING:
            if self._quiet_since_s is None:
                self._quiet_since_s = now_s
            if now_s - self._quiet_since_s < self._config.dead_after_s:
                return False
        self._close(LinkLost(f"{self._name}: replaced by another"), now_s)
        return True

    def close(self, now_s: float, why: str = "closed by us") -> None:
        """End the link after sending what is queued; changes the deadline."""
        self._close(LinkLost(f"{self._name}: {why}"), now_s)

    def fail(self, error: SwarmError) -> None:
        """End the link at once for this reason; changes the deadline."""
        if self.error is None:
            self._end(error, LinkState.ENDED)

    def lost(self, error: SwarmError) -> None:
        """End the link, because the control connection is gone; changes the deadline."""
        self.fail(error)
        self.state = LinkState.ENDED
        self._abort_at_s = None

    # inside

    @property
    def _name(self) -> str:
        return f"link to {self._session.peer.short}"

    def _close(self, error: SwarmError, now_s: float) -> None:
        if self.error is None:
            self._end(error, LinkState.CLOSING)
            self._abort_at_s = now_s + CLOSE_S

    def _end(self, error: SwarmError, state: LinkState) -> None:
        self.error = error
        self.state = state
        self._mute = self._mute or state is LinkState.ENDED
        self.gathering = 0
        self.mux.replies.leave()
        self.news.clear()
        self._ended.append(LinkEnded(error))

    def _ping(self, now_s: float) -> None:
        self.mux.ping(_PING.pack(now_s))
        self._ping_at_s = now_s + self._config.idle_ping_s

    def _on_link_event(self, event: LinkEvent, now_s: float) -> None:
        match event:
            case Ponged(payload):
                sample_s = now_s - _PING.unpack(payload)[0]
                if (
                    0.0 <= sample_s <= self._config.dead_after_s
                ):  # else it is no answer to a ping of ours
                    self._round_trip.sample(sample_s)
            case GoneAway():
                self.state = WHEN_PEER_LEAVES.get(self.state, self.state)
            case _:  # AskedForBulk
                if not self._session.dialled:
                    raise BadFrame("the peer asked us to join bulk to a link that it dialled")
                self.want_bulk(now_s)


def _is_due(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and now_s >= at_s
