"""Link: one proven peer; small messages on the event loop, tensors beside it.

Bytes of the control connection come in by `received`, run through records and mux,
and reach the owner as events, all in one call of the event loop; what is sent in
answer meanwhile leaves in one write when they are all told. Bulk pipes run by
themselves and report only whole transfers.

Units:   bytes, seconds.
Errors:  LinkLost for whoever waits when the link ends; what ended it comes as LinkEnded.
"""

import asyncio
import logging
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager

from p2pswarm.errors import BadFrame, LinkLost, PeerError, SwarmError
from p2pswarm.ids import Address, Contact, PeerId
from p2pswarm.net.base import Connection, ControlPipe
from p2pswarm.transport.bulk.channel import BulkKeys
from p2pswarm.transport.bulk.channels import BulkArrival, BulkChannels, ChannelCallbacks
from p2pswarm.transport.config import TransportConfig
from p2pswarm.transport.control_channel import ControlChannel
from p2pswarm.transport.events import GoneAway, LinkEnded, Ponged
from p2pswarm.transport.link_owner import LinkOwner, LinkStats
from p2pswarm.transport.mux import LinkEvent
from p2pswarm.transport.session import Session

LAST_WORDS_S = (
    1.0  # the threads of a channel may see the end before the loop has read all before it
)
CLOSE_S = 1.0  # for the last bytes to leave when we close a link
RTT_GAIN = 0.125  # RFC 6298
GATHERED_MAX = 8  # messages woken by one read that leave together: one waits for seven others
_PING = struct.Struct(">d")
_log = logging.getLogger(__name__)


class Link:
    """A proven peer: streams for messages and buffers for bulk bytes."""

    def __init__(
        self,
        session: Session,
        config: TransportConfig,
        owner: "LinkOwner[Link]",
        new_lock: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._config = config
        self._owner = owner
        self.session = session
        """How the link came to be."""
        self._connection = ControlChannel(
            session.keys, dialled=session.dialled, now_s=self._loop.time()
        )
        self._mux = self._connection.mux
        self._wire: ControlPipe | None = None
        self._error: SwarmError | None = None
        self._receiving = False
        self._told = self._gathering = 0
        self._crowded = False
        self._heard = True
        self._silent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._left = False
        self._peer_left = False
        self._channels = BulkChannels(
            config, new_lock, ChannelCallbacks(self._channel_lost, self._release)
        )
        self._bulk_wanted = False
        self._bulk_timer: asyncio.TimerHandle | None = None
        self._open_sockets = 0
        self._control_sent_bytes = 0
        self._control_received_bytes = 0
        self.rtt_s = 0.0
        """Smoothed round trip of pings; 0 until the first is back."""

    @property
    def peer(self) -> PeerId:
        """Who is at the other end, proven."""
        return self.session.peer

    @property
    def remote(self) -> Address:
        """Where the control connection's other end is."""
        return self.session.remote

    @property
    def contact(self) -> Contact:
        """The peer and where to dial it, as far as it told."""
        return self.session.contact

    @property
    def stats(self) -> LinkStats:
        """What the link has carried so far."""
        return LinkStats(
            self._control_sent_bytes,
            self._control_received_bytes,
            self._channels.sent_bytes,
            self._channels.received_bytes,
            self._channels.count,
        )

    # streams

    def open(self, data: bytes, *, ended: bool, priority: int = 0) -> int:
        """Open a stream with its first message (<= 60 KiB); returns its number.

        Raises Busy if too many streams are open, LinkLost if the link has ended.
        """
        self._check_up()
        stream = self._mux.open(data, ended=ended, priority=priority)
        self._flush()
        return stream

    def send(self, stream: int, data: bytes, *, ended: bool) -> None:
        """Send one message (<= 60 KiB); it is queued if credit is short.

        A stream that is gone (reset, or the link ended) swallows it: its event came or comes.
        Raises ValueError on a stream whose queue is full: ask `writable` first.
        """
        self._mux.send(stream, data, ended=ended)
        self._flush()

    def writable(self, stream: int) -> bool:
        """Whether a message would go out soon; if not, CreditGained(stream) tells when."""
        return self._mux.writable(stream)

    def reset(self, stream: int, code: int) -> None:
        """Give a stream up, both ways; unknown or finished streams are ignored."""
        self._mux.reset(stream, code)
        self._flush()

    def consumed(self, stream: int, n: int) -> None:
        """One message of `n` bytes was taken: the sender gets its credit back.

        Call it once for each StreamOpened and StreamData; finished streams need not.
        """
        self._mux.consumed(stream, n)
        self._flush()

    # bulk

    def expect(self, room: memoryview) -> BulkArrival:
        """Set `room` aside for one transfer from this peer."""
        self._check_up()
        arrival = self._channels.expect(room)
        self._want_bulk()
        return arrival

    async def send_bulk(self, transfer: int, data: memoryview, priority: int) -> None:
        """Send all of `data` into the room that the peer numbered `transfer`.

        Returns once the kernel has every byte; `data` may be reused then.
        """
        self._check_up()
        self._want_bulk()
        await self._channels.send(transfer, data, priority)

    def claim_number(self, number: int) -> bool:
        """Whether a bulk connection of this number may join: each may once."""
        return self._channels.claim_number(number)

    def add_bulk(self, stream: Connection, keys: BulkKeys) -> None:
        """A bulk connection has joined."""
        if self._error is not None:
            stream.close()
            return
        if self._bulk_timer is not None:
            self._bulk_timer.cancel()
        self._bulk_wanted = True
        self._channels.add(stream, keys)
        self._open_sockets += 1

    # the end

    def leave(self) -> None:
        """Open no more streams; close when those of both sides are finished."""
        if not self._left and self._error is None:
            self._left = True
            self._mux.go_away()
            self._flush()

    def close(self) -> None:
        """End the link; LinkEnded follows at once."""
        self.fail(LinkLost(f"link to {self.peer.short}: closed by us"), politely=True)

    # what the wire tells us

    def opened(self, wire: ControlPipe) -> None:
        """The wire is up."""
        self._wire = wire
        self._open_sockets += 1
        self._timer = self._loop.call_later(self._config.idle_ping_s, self._tick)
        self._owner.came_up(self)
        self._ping()

    def received(self, data: bytes) -> None:
        """Bytes came: tell every event, then send what came of it."""
        if self._error is not None:
            return
        self._heard = True
        self._control_received_bytes += len(data)
        self._receiving = True
        try:
            self._connection.receive(data)
            self._deliver()
        except PeerError as error:
            self.fail(error)
        finally:
            self._receiving = False
        if self._told > 1 and not self._gathering:
            # Whoever was woken by these runs before this: their answers leave together.
            self._gathering = 1
            self._loop.call_soon(self._end_gathering)
        else:
            self._flush()

    def pause_writing(self) -> None:
        """The kernel takes no more: what is queued stays in order of priority."""
        self._crowded = True

    def resume_writing(self) -> None:
        """It takes more again."""
        self._crowded = False
        self._flush()

    def lost(self, error: SwarmError) -> None:
        """The wire is gone."""
        if self._timer is not None:
            self._timer.cancel()  # of `fail`, when we were closing
        self.fail(error)
        self._release()

    def _check_up(self) -> None:
        if self._error is not None:
            raise LinkLost(f"link to {self.peer.short} has ended: {self._error}")

    def _end_gathering(self) -> None:
        self._gathering = 0
        self._flush()

    def _flush(self) -> None:
        if self._receiving or self._crowded or self._error is not None:
            return
        if self._gathering:
            self._gathering += 1
            if self._gathering % GATHERED_MAX:
                return
        assert self._wire is not None
        now_s = self._loop.time()
        while not self._crowded and (record := self._connection.data_to_send(now_s)):
            self._control_sent_bytes += len(record)
            self._wire.send(record)
        if self._mux.has_events:  # not from inside the call that sent: its caller is not ready
            self._loop.call_soon(self._deliver)
        if self._left and self._peer_left:
            self._close_if_quiet()

    def _deliver(self) -> None:
        events = self._mux.events()
        self._told = len(events)
        for event in events:
            if self._error is not None:
                return
            if isinstance(event, LinkEvent):
                self._on_link_event(event)
            else:
                self._owner.tell(self, event)

    def _on_link_event(self, event: LinkEvent) -> None:
        if isinstance(event, Ponged):
            sample_s = self._loop.time() - _PING.unpack(event.payload)[0]
            if 0.0 <= sample_s <= self._config.dead_after_s:  # else it answers no ping of ours
                self.rtt_s += (sample_s - self.rtt_s) * (RTT_GAIN if self.rtt_s else 1.0)
        elif isinstance(event, GoneAway):
            self._peer_left = True
        elif not self.session.dialled:
            raise BadFrame("the peer asked us to join bulk connections to a link that it dialled")
        elif not self._bulk_wanted:
            self._want_bulk()

    def _want_bulk(self) -> None:
        if self._bulk_wanted:
            return
        self._bulk_wanted = True
        if self.session.dialled:
            self._owner.join_bulk(self)
            return
        patience_s = self._config.dial_s + self._config.handshake_s
        late = LinkLost(f"link to {self.peer.short}: no bulk connection within {patience_s} s")
        self._bulk_timer = self._loop.call_later(patience_s, self.fail, late)
        self._mux.ask_for_bulk()
        self._flush()

    def _tick(self) -> None:
        """Count silent periods, not seconds: a stall of our own loop is not the peer's."""
        self._silent_s = 0.0 if self._heard else self._silent_s + self._config.idle_ping_s
        self._heard = False
        if self._silent_s >= self._config.dead_after_s:
            self.fail(LinkLost(f"link to {self.peer.short}: silent for {self._silent_s:.0f} s"))
            return
        self._timer = self._loop.call_later(self._config.idle_ping_s, self._tick)
        self._ping()

    def _ping(self) -> None:
        self._mux.ping(_PING.pack(self._loop.time()))
        self._flush()

    def _close_if_quiet(self) -> None:
        if not (self._mux.live or self._channels.busy):
            self._peer_left = False  # what `fail` flushes does not bring us here again
            self.fail(LinkLost(f"link to {self.peer.short}: replaced by another"), politely=True)

    def _channel_lost(self, error: SwarmError) -> None:
        """A channel ended: if the peer closed the link, its last words are still on the wire."""
        if isinstance(error, PeerError):
            self.fail(error)
        else:
            self._loop.call_later(LAST_WORDS_S, self.fail, error)

    def _release(self) -> None:
        self._open_sockets -= 1
        if self._open_sockets == 0:
            self._owner.released(self)

    def fail(self, error: SwarmError, *, politely: bool = False) -> None:
        """End the link for this reason; `politely`: what is queued goes out first."""
        if self._error is not None:
            return
        assert self._wire is not None
        assert self._timer is not None
        if politely:
            self._end_gathering()
        self._error = error
        if isinstance(error, PeerError):
            _log.warning("link to %s closed: %s", self.peer.short, error)
        self._timer.cancel()
        if self._bulk_timer is not None:
            self._bulk_timer.cancel()
        if politely:
            self._wire.close()
            self._timer = self._loop.call_later(CLOSE_S, self._wire.abort)
        else:
            self._wire.abort()
        self._channels.fail(f"link to {self.peer.short} ended: {error}")
        self._owner.ended(self)
        self._owner.tell(self, LinkEnded(error))
