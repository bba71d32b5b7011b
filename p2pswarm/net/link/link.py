"""LinkMachine: the rules of one link to a proven peer, from its first ping to its last byte.

Errors:  a breach of the peer's ends the link and raises nothing; LinkLost from `check_up`;
         BadHandshake from `on_path`.
Source:  docs/wire.md, docs/paths.md.
"""

from dataclasses import dataclass
from enum import Enum, auto

from p2pswarm.base.errors import BadFrame, BadRecord, LinkLost, PeerError, SwarmError
from p2pswarm.net.config import TransportConfig
from p2pswarm.net.guard.connection_limits import LinkUse
from p2pswarm.net.link.channel_demand import ChannelDemand
from p2pswarm.net.link.control_records import ControlRecords
from p2pswarm.net.link.events import (
    AskedForBulk,
    BulkCount,
    BulkDone,
    BulkWanted,
    GoneAway,
    LinkEnded,
    LinkEvent,
    LinkNotice,
    LinkUp,
    PathAltered,
    PathBroken,
    PathWanted,
    PeerClosed,
    Ponged,
    StreamEvent,
)
from p2pswarm.net.link.liveness import LinkSilence, Liveness
from p2pswarm.net.link.mux import Mux
from p2pswarm.net.link.path_state import PathState
from p2pswarm.net.link.reply_budget import LinkReplyBudget, ReplyBudget
from p2pswarm.net.link.session import Session
from p2pswarm.net.wire import frames


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
    """The bytes that one link has carried, of control records and of bulk payload."""

    control_sent_bytes: int
    bulk_sent_bytes: int
    bulk_received_bytes: int
    bulk_connections: int
    paths_altered: int = 0


CLOSE_S = 1.0  # time for the last bytes to leave when we close a link

# Why records do not go out as usual, in bits: on the hot path one test must do.
PAUSED, NO_PATH, FULL, AGAIN, OVER = 1, 2, 4, 8, 16


class LinkMachine:
    """One side of a link: implements `Machine`.

    `on_data` takes bytes of the control connection, opens the records and passes their frames to
    the mux. `events` and `drain` return what happened, and `data_to_send` returns sealed records
    for the wire. The caller sends messages with the methods of `mux`.

    The connection under a link may be exchanged: `on_path_loss` and `on_path`. The records that
    the peer does not have are sent again, as they are; those that it sends again are counted and
    dropped. A record that is not authentic costs the path that brought it (`path_state.py`).

    LinkEnded is the last event of a link and comes once. In the state CLOSING the records that are
    left still go out; in ENDED nothing does.

    The deadline changes only in methods whose docstring says so.
    """

    def __init__(
        self,
        session: Session,
        config: TransportConfig,
        now_s: float,
        memory: ReplyBudget | None = None,
    ) -> None:
        """`session`: the finished handshake; call `start` when its connection is up."""
        self._name = f"link to {session.peer.short}"
        self._config = config
        # Callers use it directly: a forwarder would cost 0.1 us a call on the hottest path.
        self.mux = Mux(dialled=session.dialled, replies=LinkReplyBudget(memory))
        """The streams; call `data_to_send` after each method of it."""
        self.records = ControlRecords(session.keys, now_s, LinkReplyBudget(memory))
        """The records that are sealed and opened; only read it elsewhere."""
        self._seal, self._unacked = self.records.seal, self.records.unacked
        self.state = LinkState.UP
        self.error: SwarmError | None = None
        """The reason for its end; None while it can be used."""
        self.notices: list[LinkNotice] = []
        """The events that `drain` will return; only read it here."""
        self._ended: list[StreamEvent] = []
        self.life = Liveness(config)
        """Its liveness, and the round trip of pings; only read it."""
        self.bulk = ChannelDemand(config, dialled=session.dialled)
        """The bulk connections that are joined and wanted; `on_join` may change the deadline."""
        self.path = PathState(dialled=session.dialled)
        self.peer_closed = ""
        """Why the peer has ended the link, if it says so: call `fail` when all is reported."""
        self.mute = 0  # not 0 while something holds records back; only read it elsewhere
        self._quiet_since_s: float | None = None
        self._abort_at_s: float | None = None

    def start(self, now_s: float) -> None:
        """Start with LinkUp and a ping; sets the deadline."""
        self.notices.append(LinkUp())
        self._ping(now_s)

    def check_up(self) -> None:
        """Raise LinkLost if the link has ended."""
        if self.error is not None:
            raise LinkLost(f"{self._name} has ended: {self.error}")

    def on_data(self, data: bytes, now_s: float) -> None:
        """Take bytes of the control connection, cut anywhere; may change the deadline."""
        if self.error is not None:
            return
        records = self.records
        try:
            for plaintext in records.on_data(data):
                self.life.heard = True  # bytes alone prove nothing: a length may be altered
                self.mux.on_record(plaintext)
            if self.mux.notices:
                for event in self.mux.link_events():
                    self._on_link_event(event, now_s)
        except PeerError as error:
            self.fail(error)
        if records.broken is not None:
            self._path_broken(now_s)

    def events(self) -> list[StreamEvent]:
        """The events of streams since the last call; LinkEnded is the last of all."""
        events = self.mux.events()
        if self.error is not None:
            events, self._ended = self._ended, []
        return events

    def drain(self) -> list[LinkNotice]:
        """The events of the link as a whole since the last call."""
        notices, self.notices = self.notices, []
        return notices

    def data_to_send(self, now_s: float) -> bytes:
        """The next record, or empty bytes; call until it is empty; may change the deadline."""
        if self.mute:
            return self._sparingly(now_s)
        if not (plaintext := self.mux.data_to_send()):
            return b""
        record = self._seal(plaintext, now_s)
        unacked = self._unacked
        unacked.records.append(record)
        unacked.sent_bytes += len(record)
        if unacked.sent_bytes >= unacked.check_at:
            self._ask_what_came(now_s)
        return record

    def goodbye(self, now_s: float) -> bytes:
        """The last record of a link that has ended: the peer need not look for another path."""
        if not self.has_path or self.records.has_resends:
            return b""
        self.mux.say(frames.CLOSE)
        return self._seal(self.mux.control_to_send(), now_s)

    def pause_writing(self) -> None:
        """The kernel takes no more: messages stay queued here, in order of priority."""
        self.mute |= PAUSED

    def resume_writing(self) -> None:
        """The kernel takes more again: call `data_to_send`."""
        self.mute &= ~PAUSED

    @property
    def has_path(self) -> bool:
        """Return whether a connection carries the link now."""
        return not self.mute & NO_PATH

    @property
    def doubts_path(self) -> bool:
        """Return whether the path may be dead, and nothing has come since that was noticed."""
        return self.life.doubts(self.records.expected)

    def use(self, *, bulk_busy: bool) -> LinkUse:
        """Tell for whom the link works now; `bulk_busy`: tensors are under way."""
        if self.mux.live_ours or bulk_busy:
            return LinkUse.US
        return LinkUse.THEM if self.mux.live else LinkUse.NOBODY

    def on_path_loss(self, error: SwarmError, now_s: float) -> None:
        """The control connection is gone: wait for another, unless over; changes the deadline."""
        if self.error is not None:
            self._stop()
            return
        self.records.on_path_loss()
        self.life.watch.stop()
        self.mute = (self.mute | NO_PATH) & ~(PAUSED | AGAIN)
        self.path.on_loss(error, now_s + self._config.path_wait_s)
        self.notices.append(PathWanted(error))

    def on_path(self, announced: int, wanted: int, *, dialled: bool) -> None:
        """Go on over a new path; may change the deadline.

        `announced`: the record with which we told the peer to begin. `wanted`: the record with
        which the peer told us to. Raises BadHandshake if we do not have that one any more.
        """
        self.records.on_path(announced, wanted)
        self.mute &= ~(NO_PATH | PAUSED | AGAIN)
        if self.records.has_resends:
            self.mute |= AGAIN
        self._hold_up()
        self.life.heard = True
        self.life.watch.stop()
        self.path.on_path(dialled=dialled)
        self.bulk.on_path_change()

    def want_bulk(self, now_s: float) -> bool:
        """Ask for bulk connections, because a tensor is to be sent or received.

        The side that dialled the path makes them; if the peer does not in time, the link ends.
        Returns whether this changed the deadline or made an event, as only the first call does.
        """
        if self.bulk.wanted or self.error is not None or not self.has_path:
            return False
        if self.path.dials:
            self.notices.append(BulkWanted(self.bulk.want(self.life.rtt_s, now_s)))
        else:
            self.bulk.ask(now_s)
            self.mux.say(frames.ASK_BULK)
        return True

    def on_channel_loss(self, error: SwarmError, now_s: float) -> None:
        """Note that a bulk connection ended: it costs its chunks' time; changes the deadline."""
        self.bulk.on_loss(now_s)
        if isinstance(error, BadRecord):
            self._path_broken(now_s)
        elif isinstance(error, PeerError):
            self.fail(error)

    # time

    def next_deadline_s(self) -> float | None:
        """Return when `on_deadline` is due, or None."""
        if self.error is not None:
            return self._abort_at_s
        of_bulk = self.bulk.by_s, self.bulk.again_at_s, self.bulk.measure_at_s
        times = (self.life.ping_at_s, self.life.watch.at_s, *of_bulk, self.path.by_s)
        return min((at_s for at_s in times if at_s is not None), default=None)

    def on_deadline(self, now_s: float, bulk_bytes: int = 0, *, bulk_busy: bool = False) -> None:
        """Do what is due; changes the deadline. `bulk_bytes`, `bulk_busy`: see `ChannelDemand`."""
        if self.error is not None:
            if _is_due(self._abort_at_s, now_s):
                self._stop()
        elif _is_due(self.path.by_s, now_s):
            self.fail(self.path.loss_error(self._name))
        elif _is_due(self.bulk.by_s, now_s):
            self.fail(LinkLost(f"{self._name}: no bulk connection in {self.bulk.patience_s:g} s"))
        elif _is_due(self.bulk.again_at_s, now_s):
            missing = self.bulk.missing()
            if missing and self.path.dials and self.has_path:
                self.notices.append(BulkWanted(missing))
        elif _is_due(self.bulk.measure_at_s, now_s):
            if (notice := self.bulk.measure(bulk_bytes, now_s, busy=bulk_busy)) is not None:
                self.notices.append(notice)
        else:
            self._look(now_s, in_use=bulk_busy or self.mux.live > 0)

    # the end

    def leave(self) -> None:
        """Open no more streams; the link closes when the streams of both sides have finished."""
        if self.state in WHEN_WE_LEAVE:
            self.state = WHEN_WE_LEAVE[self.state]
            self.mux.say(frames.GOAWAY)

    def close_if_quiet(self, now_s: float, *, bulk_busy: bool) -> bool:
        """Close a link that we left and that has nothing to do; whether it did.

        Changes the deadline then. `bulk_busy`: tensors are under way. A peer that has not left it,
        too, has as long as a silent one.
        """
        if bulk_busy or self.mux.live or self.state not in (LinkState.LEAVING, LinkState.DRAINING):
            self._quiet_since_s = None
            return False
        if self._quiet_since_s is None:
            self._quiet_since_s = now_s
        quiet_s = now_s - self._quiet_since_s
        if self.state is LinkState.LEAVING and quiet_s < self._config.dead_after_s:
            return False
        self.close(now_s, "replaced by another")
        return True

    def close(self, now_s: float, why: str = "closed by us") -> None:
        """End the link after sending what is queued; changes the deadline."""
        error = LinkLost(f"{self._name}: {why}")
        if self.error is None and self.has_path:
            self._end(error, LinkState.CLOSING)
            self._abort_at_s = now_s + CLOSE_S
        self.fail(error)

    def fail(self, error: SwarmError) -> None:
        """End the link at once for this reason; changes the deadline."""
        if self.error is None:
            self._end(error, LinkState.ENDED)

    def _stop(self) -> None:
        """Nothing leaves any more."""
        self.state = LinkState.ENDED
        self.mute |= OVER
        self._abort_at_s = None

    def _end(self, error: SwarmError, state: LinkState) -> None:
        self.error = error
        self.state = state
        if state is LinkState.ENDED:
            self._stop()
        self.mux.replies.leave()
        self._unacked.close()
        self._hold_up()
        self.notices.clear()
        self._ended.append(LinkEnded(error))

    def _ping(self, now_s: float) -> None:
        try:
            self.mux.ping(self.life.ping(self._unacked.on_ping(), now_s))
        except PeerError as error:
            self.fail(error)

    def _look(self, now_s: float, *, in_use: bool) -> None:
        """Look whether the peer is silent, and act on what that means."""
        silence = self.life.on_deadline(self.records.expected, now_s, in_use=in_use)
        if silence is LinkSilence.LINK:
            self.fail(LinkLost(f"{self._name}: silent for {self.life.silent_s:g} s"))
        elif silence is not LinkSilence.NONE:
            if silence is not LinkSilence.ASK and self.has_path:
                self.notices.append(PathWanted(LinkLost("its path brings nothing")))
            if silence is not LinkSilence.DOUBT:
                self._ping(now_s)

    def _path_broken(self, now_s: float) -> None:
        """Give the present path up, or the link if that happens again and again."""
        if self.error is not None or not self.has_path:
            return
        if error := self.path.on_corruption(self._name, now_s):
            self.fail(error)
        else:
            self.notices.append(PathBroken())

    def _sparingly(self, now_s: float) -> bytes:
        """As `data_to_send`, when something holds it back."""
        if self.mute & (PAUSED | NO_PATH | OVER):
            return b""
        if self.mute & AGAIN:
            record = self.records.next_resend()
            if not self.records.has_resends:
                self.mute &= ~AGAIN
            return record
        if not (plaintext := self.mux.control_to_send()):
            return b""
        record = self._seal(plaintext, now_s)
        if self._unacked.keep(record):
            self._ask_what_came(now_s)
        return record

    def _ask_what_came(self, now_s: float) -> None:
        """Ping, if so much was sent that its records should be forgotten; wait, if too much was."""
        try:
            if self.error is None and self._unacked.wants_ack():
                self._ping(now_s)
                self._hold_up()
        except PeerError as error:
            self.fail(error)

    def _hold_up(self) -> None:
        self.mute = self.mute | FULL if self._unacked.full else self.mute & ~FULL

    def _on_link_event(self, event: LinkEvent, now_s: float) -> None:
        match event:
            case Ponged(payload):
                if upto := self.life.on_pong(payload, now_s):
                    self._unacked.on_ack(upto)
                    self._hold_up()
            case GoneAway():
                self.state = WHEN_PEER_LEAVES.get(self.state, self.state)
            case PeerClosed(why):
                self.peer_closed = why
            case BulkDone() | BulkCount() | PathAltered():
                self.notices.append(event)
            case AskedForBulk():
                if self.path.dials:
                    self.want_bulk(now_s)
                elif not self.path.moved:  # else it meant the path before
                    raise BadFrame("the peer asked us to join bulk to a path that it dialled")


def _is_due(at_s: float | None, now_s: float) -> bool:
    return at_s is not None and now_s >= at_s
